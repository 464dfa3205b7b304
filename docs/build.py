"""Build the documentation as one folder of HTML: every Markdown page of the project, and an index of them.

Run it with `make docs`; the pages land in `docs/html`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "docs" / "html"
STYLE: Final = (
    "body{max-width:52rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:#222}"
    "pre{background:#f5f5f5;padding:.8rem;overflow:auto}code{font-size:.92em}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .6rem;vertical-align:top}"
)
PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>'
    '<body><p><a href="{up}index.html">holdfast</a></p>{body}</body></html>\n'
)


def pages() -> list[Path]:
    """Return the Markdown files that are documentation, the most important first."""
    found = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if page.exists() and TARGET not in page.parents]


def title_of(text: str, page: Path) -> str:
    """Return a page's first heading, or its name."""
    heading = re.search(r"^#\s+(.+)$", text, re.MULTILINE)
    return heading[1].strip() if heading else page.stem


def write_page(page: Path, markdown: MarkdownIt) -> tuple[str, Path]:
    """Render one page; return its title and where it is below the target."""
    text = page.read_text(encoding="utf-8")
    inside = page.relative_to(ROOT).with_suffix(".html")
    target = TARGET / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    body = re.sub(r'href="(?!\w+://)([^"#]+)\.md', r'href="\1.html', markdown.render(text))
    up = "../" * (len(inside.parts) - 1)
    target.write_text(PAGE.format(title=title_of(text, page), style=STYLE, up=up, body=body), encoding="utf-8")
    return title_of(text, page), inside


def main() -> None:
    """Render every page and an index."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    markdown = MarkdownIt("commonmark").enable("table")
    entries = [write_page(page, markdown) for page in pages()]
    links = "".join(f'<li><a href="{inside.as_posix()}">{title}</a></li>' for title, inside in entries)
    body = f"<h1>holdfast</h1><ul>{links}</ul>"
    (TARGET / "index.html").write_text(PAGE.format(title="holdfast", style=STYLE, up="", body=body), encoding="utf-8")
    print(f"{len(entries)} pages in {TARGET.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()
