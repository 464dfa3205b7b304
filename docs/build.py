"""Build the documentation as one folder of HTML: every Markdown page of the project, its pictures, and an index.

    python -m docs.build [TARGET]

`make docs` does it; the pages land in `docs/html`. Nothing is fetched.

Guarantees:
    * A link inside the project to a page or a heading that is not there is an error that names page and link.
    * The diagrams are drawn anew from the tables in the code.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from docs import mistakes
from docs.diagram import draw
from markdown_it import MarkdownIt
from markdown_it.token import Token

from holdfast.node.delivery import DELIVERY_TRANSITIONS
from holdfast.node.units import TRANSITIONS

ROOT: Final = Path(__file__).resolve().parents[1]
DIAGRAMS: Final[Mapping[str, Mapping[Any, Enum]]] = {"unit": TRANSITIONS, "delivery": DELIVERY_TRANSITIONS}
FRONT: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
GUIDE: Final = (
    "getting-started",
    "sources",
    "windows",
    "stages",
    "transform",
    "sinks",
    "operating",
    "clusters",
    "performance",
    "mistakes",
    "errors",
)
STYLE: Final = (
    "body{max-width:56rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:#222}"
    "nav{font-size:.9em}nav a{margin-right:.8em}pre{background:#f5f5f5;padding:.8rem;overflow:auto}"
    "code{font-size:.92em}img{max-width:100%}table{border-collapse:collapse;display:block;overflow:auto}"
    "td,th{border:1px solid #ccc;padding:.3rem .6rem;vertical-align:top;text-align:left}"
)
PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>'
    "<body><nav>{nav}</nav>{body}</body></html>\n"
)


def pages(root: Path = ROOT) -> list[Path]:
    """Return the Markdown files that are documentation, in reading order."""
    found = [root / name for name in FRONT[:1]]
    found += [root / "docs" / f"{name}.md" for name in GUIDE]
    found += [root / name for name in FRONT[1:]]
    return found + sorted((root / "docs" / "design").glob("*.md"))


def parse(page: Path) -> list[Token]:
    """Return a page's parts, its headings with the anchors that a link may name."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    for opening, text in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrs["id"] = slug(text.content)
    return tokens


def slug(heading: str) -> str:
    """Return a heading's anchor, by the same rule as the well-known code hosts."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links(tokens: list[Token]) -> Iterator[Token]:
    """Yield what points somewhere: links and pictures."""
    for token in tokens:
        if token.type in ("link_open", "image"):
            yield token
        yield from links(token.children or [])


def address(token: Token) -> str:
    return str(token.attrs["href" if token.type == "link_open" else "src"])


def broken_links(root: Path = ROOT) -> list[str]:
    """Return a line for every link inside the project that leads nowhere."""
    anchors = {page: {str(token.attrs.get("id")) for token in parse(page)} for page in pages(root)}
    found = []
    for page in anchors:
        for token in links(parse(page)):
            target = address(token)
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors.get(file, {anchor})):
                found.append(f"{page.relative_to(root)}: {target} leads nowhere")
    return found


def draw_diagrams(folder: Path) -> None:
    """Draw every table of transitions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, transitions in DIAGRAMS.items():
        (folder / f"{name}.svg").write_text(draw(transitions), encoding="utf-8")


def write_page(page: Path, target: Path, names: Mapping[Path, str]) -> None:
    """Write one page as HTML; what it shows or points to inside the project goes with it."""
    place = _html_place(page, target)
    place.parent.mkdir(parents=True, exist_ok=True)
    tokens = parse(page)
    for token in links(tokens):
        _redirect(token, page, target, names)
    shown = [(name, os.path.relpath(_html_place(each, target), place.parent)) for each, name in names.items()]
    nav = "".join(f'<a href="{path}">{escape(name)}</a>' for name, path in shown if "design" not in path)
    body = MarkdownIt("commonmark").enable("table").renderer.render(tokens, MarkdownIt().options, {})
    place.write_text(PAGE.format(title=escape(names[page]), style=STYLE, nav=nav, body=body), encoding="utf-8")


def _redirect(token: Token, page: Path, target: Path, names: Mapping[Path, str]) -> None:
    """Point a link at the HTML of a page, and copy any other file beside it."""
    path, mark, anchor = address(token).partition("#")
    file = (page.parent / path).resolve()
    if "://" in path or not path or not file.is_file():
        return
    if file in names:
        there = os.path.relpath(_html_place(file, target), _html_place(page, target).parent)
        token.attrs["href"] = there + mark + anchor
        return
    copy = target / file.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, copy)


def _html_place(page: Path, target: Path) -> Path:
    return target / page.relative_to(ROOT).with_suffix(".html")


def title_of(page: Path) -> str:
    """Return a page's first heading."""
    heading = re.search(r"^#\s+(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1].strip() if heading else page.stem


def build(target: Path) -> int:
    """Render every page and an index; return how many there are."""
    names = {page: title_of(page) for page in pages()}
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for page in names:
        write_page(page, target, names)
    items = "".join(
        f'<li><a href="{_html_place(page, target).relative_to(target)}">{escape(name)}</a></li>'
        for page, name in names.items()
    )
    index = PAGE.format(title="holdfast", style=STYLE, nav="", body=f"<h1>holdfast</h1><ul>{items}</ul>")
    (target / "index.html").write_text(index, encoding="utf-8")
    return len(names)


def main(arguments: list[str]) -> int:
    """Draw, check and build."""
    target = Path(arguments[0]).resolve() if arguments else ROOT / "docs" / "html"
    draw_diagrams(ROOT / "docs" / "diagrams")
    mistakes.PAGE.write_text(mistakes.page(), encoding="utf-8")
    broken = broken_links()
    for line in broken:
        print(line, file=sys.stderr)
    if broken:
        return 1
    print(f"{build(target)} pages: {target / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
