"""Write the page of mistakes from the golden files: the program that makes each one, and what it prints.

    python -m docs.mistakes

`make docs` does it. A mistake is `tests/golden/mistakes/NN-name.py`: its docstring is a heading, what to do, and the
command; what stands below `# The mistake:` is shown. `NN-name.txt` beside it is what the command prints.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "tests" / "golden" / "mistakes"
PAGE: Final = ROOT / "docs" / "mistakes.md"
MARK: Final = "# The mistake:\n"
HEAD: Final = """# Mistakes, and what they print

The mistakes that are made most often. Each is made for real in the tests, and what stands here is what it printed
there; only paths, process ids and times were made plain. A message names what failed, what was expected and what to
do, and the line of the program where there is one (lines here are those of the whole programs, which are in
`tests/golden/mistakes`). What each kind of error means is in [error messages](errors.md).
"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake. `program` is the whole of it, `shown` the part that makes it."""

    heading: str
    advice: str
    command: str
    program: str
    shown: str
    printed: str


def _names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))


MISTAKES: Final = _names()


def read(name: str) -> Mistake:
    """Return a mistake by the name of its file."""
    program = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    told = ast.get_docstring(ast.parse(program))
    assert told is not None, f"{name}.py says what the mistake is"
    heading, advice, command = told.split("\n\n")
    golden = FOLDER / f"{name}.txt"
    printed = golden.read_text(encoding="utf-8") if golden.exists() else ""
    return Mistake(heading, advice, command.strip(), program, program.split(MARK)[1].strip(), printed)


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(_section(number, read(name)) for number, name in enumerate(MISTAKES, 1))


def _section(number: int, mistake: Mistake) -> str:
    return (
        f"\n## {number}. {mistake.heading}\n\n```python\n{mistake.shown}\n```\n\n"
        f"```\n$ {mistake.command}\n{mistake.printed}```\n\n{mistake.advice}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
