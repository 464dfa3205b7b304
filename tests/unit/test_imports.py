"""Imports point one way, and a program with a Producer never loads Spark."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import holdfast

PACKAGE: Final = Path(holdfast.__file__).parent
ROOMS: Final = ["cli", "pipeline", "explain", "spark", "node", "connect", "checkpoint", "operators", "state", "log"]
"""From the top down; a room imports itself and what stands behind it, and everybody the plain modules."""

ABOVE_ALL: Final = ["demo", "testing"]


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "holdfast" and parts[1] in (*ROOMS, *ABOVE_ALL) else None


def _imports_at_load(tree: ast.Module) -> Iterator[str]:
    """Return what a module imports when it is loaded: not in functions, not for types alone."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            waiting.extend(statement.orelse)
        elif isinstance(statement, (ast.If, ast.Try, ast.With)):
            waiting.extend(statement.body)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_what_stands_below_it(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    found = list(_imports_at_load(ast.parse(path.read_text(encoding="utf-8"))))
    if own != "spark":
        assert not [name for name in found if name.split(".")[0] in ("pyspark", "py4j")], "only spark imports pyspark"
    if own in ABOVE_ALL:
        return
    level = ROOMS.index(own) if own in ROOMS else len(ROOMS)
    for name in found:
        room = _room(name)
        if room is not None:
            assert room in ROOMS and ROOMS.index(room) >= level, f"{own} imports {name}, which stands above it"


def test_producer_and_consumer_do_not_load_spark() -> None:
    program = (
        "import sys, holdfast as hf; hf.Producer, hf.Consumer, hf.errors;"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = holdfast.nonesuch
