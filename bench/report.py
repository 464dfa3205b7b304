"""Draw the results of all programs into one page.

    python -m bench.report [--results FOLDER] [--page FILE]

Reads every `*.json` of the folder (default `bench/results`) that a program of `bench` wrote with `--json`.

Invariants:
    * The page is one file that needs nothing else, and shows goals that do not hold as plainly as those that do.
    * What is drawn is what is in the JSON files; nothing is measured or rounded here but for the eye.
"""

from __future__ import annotations

import argparse
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.axes import Axes

FOLDER: Final = Path(__file__).resolve().parent / "results"
OURS_COLOUR: Final = "#1f6f5c"
PEER_COLOUR: Final = "#b0b7bd"

STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2b2a }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .3rem .8rem; border-bottom: 1px solid #dde3e1;
text-align: left } td.number { text-align: right; font-variant-numeric: tabular-nums } .holds { color: #1f6f5c }
.fails { color: #b3261e; font-weight: 600 } svg { width: 100%; height: auto } .small { color: #5b6967; font-size: 14px }
"""

Result = Mapping[str, Any]
Bars = Mapping[str, float | None]


def is_ours(name: str) -> bool:
    return name.startswith(("holdfast", "paged"))


def label_of(name: str) -> str:
    return name.replace("_", " ")


def bars(axes: Axes, values: Bars, unit: str) -> None:
    """Draw one horizontal bar for each name, ours in its colour, with its number."""
    names = list(values)[::-1]
    lengths = [values[name] or 0.0 for name in names]
    colours = [OURS_COLOUR if is_ours(name) else PEER_COLOUR for name in names]
    drawn = axes.barh([label_of(name) for name in names], lengths, color=colours)
    texts = [f" {values[name]:,.4g}" if values[name] is not None else " not measured" for name in names]
    axes.bar_label(drawn, labels=texts)
    axes.set_xlabel(unit)
    axes.set_xlim(0, max([*lengths, 1e-9]) * 1.2)
    axes.spines[["top", "right"]].set_visible(False)


def picture(draw: Callable[[Axes], None], rows: int) -> str:
    """Return a drawing as SVG text to put into a page."""
    figure, axes = pyplot.subplots(figsize=(9, 0.8 + 0.42 * rows), layout="constrained")
    try:
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    finally:
        pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def bar_picture(values: Bars, unit: str) -> str:
    return picture(lambda axes: bars(axes, values, unit), len(values))


def stacked_picture(parts: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Return bars that are made of parts: where the time of each went."""

    def draw(axes: Axes) -> None:
        names = list(parts)[::-1]
        kinds = list(dict.fromkeys(kind for some in parts.values() for kind in some))
        ends = [0.0] * len(names)
        for kind in kinds:
            lengths = [parts[name].get(kind, 0.0) for name in names]
            axes.barh([label_of(name) for name in names], lengths, left=ends, label=kind)
            ends = [end + length for end, length in zip(ends, lengths, strict=True)]
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(ncols=4, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.25 - 0.3 / len(names)))

    return picture(draw, len(parts) + 3)


def windows_pictures(figures: Result) -> list[tuple[str, str]]:
    rates: dict[str, float | None] = figures["tuples_per_second"]
    groups = {name: rate for name, rate in rates.items() if "groups" in name}
    windows = {name: rate for name, rate in rates.items() if name not in groups}
    shown = [
        ("W1: count windows of 10, 100,000 keys", bar_picture(windows, "tuples/s")),
        ("W2: count, min and max by group", bar_picture(groups, "tuples/s")),
    ]
    phases = {name: figures[name][0].get("milliseconds_by_phase") for name in rates if is_ours(name)}
    found = {name: spent for name, spent in phases.items() if spent}
    if found:
        shown.append(("Where the time of the slots went", stacked_picture(found, "ms, both slots, first round")))
    return shown


def restart_pictures(figures: Result) -> list[tuple[str, str]]:
    seconds = figures["seconds_to_first_result"]
    shown = [("From SIGKILL to the first new result", bar_picture(seconds, "s"))]
    shares = {name: figures[name][0].get("shares_ms") for name in seconds if figures.get(name)}
    found = {name: share for name, share in shares.items() if share}
    if found:
        shown.append(("Up to where", stacked_picture(found, "ms, first round")))
    return shown


def wave_pictures(figures: Result) -> list[tuple[str, str]]:
    return [("p50 of a wave, and of a trigger", bar_picture(figures["p50_ms"], "ms"))]


def latency_pictures(figures: Result) -> list[tuple[str, str]]:
    return [
        ("From a tuple sent to its result seen, p50", bar_picture(figures["p50_ms"], "ms")),
        ("The same, p99", bar_picture(figures["p99_ms"], "ms")),
    ]


def topology_pictures(figures: Result) -> list[tuple[str, str]]:
    shown = []
    if "words_per_second" in figures:
        shown.append(("Word count, then words by count", bar_picture(figures["words_per_second"], "words/s")))
    shown.append(("From a window's end to its results, p50", bar_picture(figures["p50_ms"], "ms")))
    return shown


def state_pictures(figures: Result) -> list[tuple[str, str]]:
    shown = []
    for groups in (100_000, 1_000_000):
        rounds = figures.get(f"update_{groups}_ms")
        if rounds:
            middle = {name: sorted(values)[len(values) // 2] for name, values in rounds.items()}
            shown.append((f"1,000,000 updates of {groups:,} groups", bar_picture(middle, "ms")))
    return shown


def executor_loss_pictures(figures: Result) -> list[tuple[str, str]]:
    bars_of: dict[str, float | None] = {
        "holdfast, units elsewhere": figures["gap_elsewhere_ms"].get("holdfast"),
        "holdfast, units lost": figures["gap_lost_ms"].get("holdfast"),
        "structured_streaming_rocksdb": figures["gap_all_ms"].get("structured_streaming_rocksdb"),
    }
    return [("The longest time without results after kill -9 of an executor", bar_picture(bars_of, "ms"))]


def scale_pictures(figures: Result) -> list[tuple[str, str]]:
    return [("W1 by slots, units, keys and executors", bar_picture(figures["tuples_per_second"], "tuples/s"))]


def ingest_pictures(figures: Result) -> list[tuple[str, str]]:
    shown = [
        (
            "A streaming DataFrame into the log, and into Parquet files",
            bar_picture(figures["rows_per_second"], "rows/s"),
        )
    ]
    if figures.get("messages_per_second"):
        shown.append(("A Kafka topic", bar_picture(figures["messages_per_second"], "messages/s")))
    return shown


PICTURES: Final[Mapping[str, Callable[[Result], list[tuple[str, str]]]]] = {
    "wave": wave_pictures,
    "windows": windows_pictures,
    "latency": latency_pictures,
    "restart": restart_pictures,
    "topology": topology_pictures,
    "state": state_pictures,
    "executor_loss": executor_loss_pictures,
    "scale": scale_pictures,
    "ingest": ingest_pictures,
}
"""By program; the results of another one are shown without a picture."""


def goals_table(goals: Sequence[Mapping[str, Any]]) -> str:
    """Return the goals as a table: name, value, limit, whether it holds."""
    rows = []
    for goal in goals:
        value = "not measured" if goal["value"] is None else f"{goal['value']:.4g}"
        kind, word = ("holds", "holds") if goal["holds"] else ("fails", "does not hold")
        limit = f"{goal.get('sense', '')} {goal['limit']:.4g}"
        cells = f"<td>{html.escape(goal['name'])}</td><td class=number>{value}</td><td>{limit}</td>"
        rows.append(f"<tr>{cells}<td class={kind}>{word}</td></tr>")
    return f"<table><tr><th>goal<th>value<th>limit<th></tr>{''.join(rows)}</table>" if rows else ""


def section_of(result: Result) -> str:
    """Return the part of the page that one program's results take."""
    name = result["name"]
    title = result["description"].strip().splitlines()[0]
    parts = [f"<h2 id={html.escape(name)}>{html.escape(title)}</h2>", goals_table(result["goals"])]
    draw = PICTURES.get(name)
    if draw is not None:
        parts += [f"<h3>{html.escape(heading)}</h3>{svg}" for heading, svg in draw(result["figures"])]
    parts += [f"<p class=small>{html.escape(note)}</p>" for note in result.get("notes", [])]
    kind = "a quick run" if result["quick"] else "a full run"
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    versions = ", ".join(f"{key} {value}" for key, value in result["versions"].items())
    about = f"<code>python -m bench.{html.escape(name)}</code>, {kind} of {result['took_s']} s, {result['at']}"
    parts.append(f"<p class=small>{about}<br>{html.escape(machine)}<br>{html.escape(versions)}</p>")
    return "\n".join(parts)


def page_of(results: Sequence[Result]) -> str:
    """Return the whole page."""
    goals = [goal for result in results for goal in result["goals"]]
    held = sum(bool(goal["holds"]) for goal in goals)
    links = ", ".join(f"<a href=#{html.escape(result['name'])}>{html.escape(result['name'])}</a>" for result in results)
    head = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>holdfast: measurements</title><style>{STYLE}</style>"
    )
    summary = f"<h1>holdfast: measurements</h1><p>{held} of {len(goals)} goals hold. Programs: {links}.</p>"
    return head + summary + "\n".join(section_of(result) for result in results) + "</html>\n"


def results_in(folder: Path) -> list[Result]:
    """Return what is in every JSON file of the folder that a program of `bench` wrote."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return [result for result in found if isinstance(result, dict) and "goals" in result and "figures" in result]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description="Draw all results into one page.")
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER", help="where the JSON files are")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the page (default: report.html in that folder)")
    options = parser.parse_args()
    results = results_in(options.results)
    if not results:
        parser.exit(1, f"bench.report: no results in {options.results}; run a program with --json FILE there first\n")
    page = options.page or options.results / "report.html"
    page.write_text(page_of(results))
    print(f"{page}: {len(results)} programs")


if __name__ == "__main__":
    main()
