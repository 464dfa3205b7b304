"""The documentation says what is: its code is the examples' code, its links, tests, errors and commands are there."""

from __future__ import annotations

import inspect
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest
from docs.build import DIAGRAMS, ROOT, broken_links, build, pages
from docs.diagram import draw

from holdfast import errors
from holdfast.cli.main import _COMMANDS

ARCHITECTURE: Final = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one of its level or above."""
    level = heading.split(" ")[0]
    below = text.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", below, maxsplit=1)[0]


def test_the_pipeline_in_the_readme_is_the_example() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert block == (ROOT / "examples" / "retail.py").read_text(encoding="utf-8")


def test_the_kafka_pipeline_in_the_docs_is_the_example() -> None:
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", section(page, "### Kafka"), re.DOTALL)
    assert block == (ROOT / "examples" / "kafka.py").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    assert broken_links() == []


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    for page in pages(tmp_path):
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("# Title\n")
    (tmp_path / "README.md").write_text(
        "# Title\n[a](docs/nowhere.md) [b](CHANGELOG.md#nothing) [c](CHANGELOG.md#title)"
    )
    assert broken_links(tmp_path) == [
        "README.md: docs/nowhere.md leads nowhere",
        "README.md: CHANGELOG.md#nothing leads nowhere",
    ]


def test_the_pages_become_html(tmp_path: Path) -> None:
    assert build(tmp_path / "html") == len(pages())
    index = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    for target in re.findall(r'href="([^"]+)"', index):
        assert (tmp_path / "html" / target).is_file()
    assert (tmp_path / "html" / "docs" / "images" / "demo.svg").is_file()


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_that_of_the_table_in_the_code(name: str) -> None:
    committed = (ROOT / "docs" / "diagrams" / f"{name}.svg").read_text(encoding="utf-8")
    assert committed == draw(DIAGRAMS[name]), "run `make docs`"
    for (before, step), after in DIAGRAMS[name].items():
        assert all(f">{each.value}<" in committed for each in (before, step, after))


def test_the_tests_that_the_fault_table_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section(ARCHITECTURE, "## Faults"))
    rows = [line for line in section(ARCHITECTURE, "## Faults").splitlines() if line.startswith("| ")]
    assert len(named) == len(rows) - 1, "every fault has its test"
    missing = [
        f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_the_modules_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(\w+/\w+\.py)`", ARCHITECTURE))
    assert named and [name for name in named if not (ROOT / "src" / "holdfast" / name).is_file()] == []


def test_the_tree_names_every_package_from_the_top_down() -> None:
    from tests.unit.test_imports import ROOMS

    shown = re.findall(r"^(\w+) {2,}", section(ARCHITECTURE, "## The tree"), re.MULTILINE)
    assert shown == ROOMS


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    declared = {re.split(r"[<>=]", each)[0] for each in [*project["dependencies"], *extras]}
    table = section(ARCHITECTURE, "## Dependencies")
    reasoned = {
        name.strip() for row in re.findall(r"^\| ([\w\-, ]+) \|", table, re.MULTILINE) for name in row.split(",")
    }
    assert reasoned - {"package"} == declared


def test_every_error_is_explained() -> None:
    classes = {name for name, each in vars(errors).items() if inspect.isclass(each)}
    groups = {"HoldfastError", "Retryable", "Repairable", "Reportable"}
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == classes - groups


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_commands_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"^holdfast ([a-z]+)|`holdfast ([a-z]+)", text, re.MULTILINE))
    assert {first or second for first, second in named} <= set(_COMMANDS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)", text, re.MULTILINE))
    assert all(f"\n{first or second}:" in makefile for first, second in targets)


def test_make_alone_explains_every_target() -> None:
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (phony,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {line.split()[1] for line in shown.splitlines() if line.startswith("  make ")} == set(phony.split())
