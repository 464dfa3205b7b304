"""Windows that Spark does not have."""

from __future__ import annotations

from holdfast import plan
from holdfast.errors import Misconfigured
from holdfast.pipeline.callsite import names_the_line


@names_the_line
def count_window(size: int, slide: int | None = None) -> plan.CountWindow:
    """Return windows of `size` tuples of a key, one every `slide` tuples (`size` if not given), for `groupBy`.

    The result has the column `window: struct<start: timestamp, end: timestamp, number: bigint>`.
    """
    step = size if slide is None else slide
    for name, value in (("size", size), ("slide", step)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Misconfigured(f"{name} of a count window is {value!r} and must be a whole number from 1")
    if step > size:
        raise Misconfigured(f"count windows of {size} tuples every {step} would leave tuples out; slide at most {size}")
    return plan.CountWindow(size, step)
