"""Turn what a command printed into a picture of a terminal, as SVG.

    holdfast demo | python -m docs.picture "make demo" > docs/images/demo.svg

What is drawn is the text as it came, line by line; nothing is added but the command that made it.
"""

from __future__ import annotations

import sys
from html import escape
from typing import Final

CHARACTER_WIDTH: Final = 7.8
LINE_HEIGHT: Final = 17
MARGIN: Final = 14
STYLE: Final = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d8dee4;"
    "white-space:pre}"
    ".command{fill:#8fbf7f}"
)


def picture(command: str, text: str) -> str:
    """Return the SVG of a command and what it printed."""
    lines = [f"$ {command}", *(line.rstrip() for line in text.rstrip().splitlines())]
    width = round(max(map(len, lines)) * CHARACTER_WIDTH) + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    drawn = [_line(number, line) for number, line in enumerate(lines) if line.strip()]
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" rx="6" fill="#1c2128"/>\n{body}\n</svg>\n'
    )


def _line(number: int, line: str) -> str:
    """Return one line, stretched to the width that its characters have: a font may differ, the grid may not."""
    start = len(line) - len(line.lstrip())
    shown = line[start:]
    x = MARGIN + start * CHARACTER_WIDTH
    y = MARGIN + number * LINE_HEIGHT + 12
    kind = ' class="command"' if number == 0 else ""
    length = f'textLength="{len(shown) * CHARACTER_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text{kind} x="{x:.1f}" y="{y}" {length}>{escape(shown)}</text>'


if __name__ == "__main__":
    print(picture(sys.argv[1], sys.stdin.read()), end="")
