"""How kernels are compiled, and the one instruction numba does not offer: prefetch.

Invariants:
    * A kernel never holds the interpreter's lock, so a snapshot's thread writes while a wave computes.
    * No fastmath and no parallel loops: results are the same on every replica and at every replay.
    * A prefetch is a hint. It never faults, so an address that turns out wrong costs time, not correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

Words: TypeAlias = npt.NDArray[np.int64]
Reals: TypeAlias = npt.NDArray[np.float64]
Halves: TypeAlias = npt.NDArray[np.int32]
Octets: TypeAlias = npt.NDArray[np.uint8]
Hashes: TypeAlias = npt.NDArray[np.uint64]


def kernel(function: Function) -> Function:
    """Compile `function` once, keep the machine code on disk, and run it without the interpreter's lock."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def _prefetch(context: Any, array: Any, index: Any) -> Any:
    signature = types.void(array, index)

    def generate(target: Any, builder: Any, call: Any, arguments: Any) -> Any:
        view = target.make_array(call.args[0])(target, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        name = "llvm.prefetch.p0" if cgutils.voidptr_t.is_opaque else "llvm.prefetch.p0i8"
        hint = cast(Any, cgutils).get_or_insert_function(builder.module, kind, name)
        # For reading or writing alike (1), to be kept in all caches (3), data and not code (1).
        builder.call(hint, [pointer, number(1), number(3), number(1)])
        return target.get_dummy_value()

    return signature, generate


prefetch: Callable[[Any, Any], None] = cast(Any, intrinsic(_prefetch))
"""`prefetch(array, index)`: ask for the cache line of `array[index]`; only inside kernels."""
