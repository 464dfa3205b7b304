"""Compare with a file that was looked at, or write it anew: `pytest --update-golden`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

GOLDEN: Final = Path(__file__).parent


class Golden(Protocol):
    """Compares a text with the golden file of that name."""

    def __call__(self, name: str, text: str) -> None: ...


def compare(name: str, text: str, update: bool) -> None:
    """Assert that a golden file holds the text; with `update` it is made to."""
    path = GOLDEN / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.is_file(), f"tests/golden/{name} is missing; write it with --update-golden, and look at it"
    assert text == path.read_text(encoding="utf-8"), f"differs from tests/golden/{name}; --update-golden if it should"
