"""The commands answer for stores that are there, and say what is wrong where they are not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.cli.main import main
from holdfast.connect import catalog
from holdfast.connect.consumer import Consumer
from holdfast.connect.producer import Producer
from holdfast.log.local_store import LocalStore
from holdfast.log.reconcile import segment_paths
from holdfast.plan import ConsoleSink, ProducerSource, Sink, Source, Stage, StageInput, Topology

SALES = pa.schema([("item", pa.string()), ("price", pa.float64())])
PACKED = SALES.serialize().to_pybytes()
COMMANDS = ["run", "explain", "status", "demo", "log", "consume"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a pipeline, whose source has five rows in a complete bucket, and a named consumer."""
    stage = Stage("averages", [StageInput("north", PACKED, [])], PACKED, None, [], PACKED)
    source = Source("north", PACKED, ProducerSource(), ["item"])
    sinks = [Sink("averages.console", "averages", ConsoleSink())]
    store = LocalStore(tmp_path / "store" / "retail")
    catalog.create_or_check(store, Topology("retail", 2, 200_000, [source], [stage], sinks))
    found = str(tmp_path / "store")
    with Producer(found, "north", "till") as producer:
        producer.send([{"item": f"i{number}", "price": 1.5} for number in range(5)])
    with Consumer(found, "north", name="report"):
        pass
    return found


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "command", [*([each] for each in COMMANDS), ["log", "show"], ["log", "verify"], ["log", "repair"]]
)
def test_every_command_has_help_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example:" in shown and f"holdfast {' '.join(command)}" in shown
    if command != ["log"]:
        assert "--json" in shown and "--debug" in shown


def test_the_group_names_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert all(command in capsys.readouterr().out for command in ["demo"])
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    "wrong", [["unknown"], ["status"], ["consume", "store"], ["run", "nowhere.py"], ["status", "a", "-x"]]
)
def test_wrong_use_is_exit_status_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(wrong) == 2
    assert "Usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["status"], ["log", "show"], ["log", "verify"], ["consume", "--wait", "1 millisecond"]]
)
def test_a_missing_store_is_one_message(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "nowhere")
    stream = ["averages"] if arguments[0] == "consume" else []
    assert main([*arguments, path, *stream]) == 1
    error = capsys.readouterr().err
    assert "holds no pipeline" in error and path in error and "Traceback" not in error
    assert arguments[0] == "consume" or "there is no such folder" in error
    assert not Path(path).exists()
    assert main([*arguments, path, *stream, "--json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"] == "Misconfigured"
    assert main([*arguments, path, *stream, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["status"], ["log", "show"], ["log", "verify"], ["consume"]])
@pytest.mark.parametrize("kind", ["file", "empty folder", "empty name"])
def test_what_is_no_store_is_said(
    arguments: list[str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "place"
    path.write_text("x") if kind == "file" else path.mkdir()
    stream = ["averages", "--wait", "1 millisecond"] if arguments[0] == "consume" else []
    assert main([*arguments, "" if kind == "empty name" else str(path), *stream]) == 1
    error = capsys.readouterr().err
    expected = {"file": "it is a file", "empty folder": "holds no pipeline", "empty name": "the name is empty"}
    assert expected[kind] in error and "unexpected" not in error


@pytest.mark.parametrize(
    "arguments", [["status"], ["log", "show"], ["log", "verify"], ["log", "repair"], ["log", "show", "--journal", "x"]]
)
def test_a_folder_of_a_newer_format_is_refused(
    arguments: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog_path = Path(url) / "retail" / "pipeline.json"
    catalog_path.write_text(catalog_path.read_text().replace('"format_version": 1', '"format_version": 2'))
    stream = ["north"] if arguments[-1] == "repair" else []
    assert main([*arguments, url, *stream]) == 1
    assert "format version 2 is newer than 1" in capsys.readouterr().err


def test_a_damaged_pipeline_json_does_not_hide_the_log_nor_other_pipelines(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(url) / "retail" / "pipeline.json"
    path.with_name("kept").write_bytes(path.read_bytes())
    path.write_text("{")
    assert main(["status", url]) == 1
    assert "pipeline.json cannot be read" in capsys.readouterr().err
    assert main(["log", "verify", url]) == 0
    shown = capsys.readouterr()
    assert "retail/north: 1 frames" in shown.out and "pipeline.json cannot be read" in shown.err
    other = Path(url) / "second"
    other.mkdir()
    (other / "pipeline.json").write_bytes(path.with_name("kept").read_bytes())
    assert main(["status", url]) == 1
    shown = capsys.readouterr()
    assert "retail: never started" in shown.out and "pipeline.json cannot be read" in shown.err


@pytest.mark.parametrize("arguments", [["log", "show"], ["log", "verify"], ["log", "repair"], ["consume"]])
def test_an_unknown_stream_lists_what_there_is(
    arguments: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, url, "retail/nort"]) == 1
    assert "retail/north" in capsys.readouterr().err


def test_status_shows_streams_consumers_and_sinks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", url, "--json"]) == 0
    (status,) = lines(capsys)
    north = next(each for each in status["streams"] if each["name"] == "north")
    assert status["name"] == "retail" and status["alive"] is False
    assert north["rows"] == 5 and north["bytes"] > 0 and north["lag_s"] is not None
    assert north["writer"]["owner"] == "producer-till" and north["writer"]["alive"] is False
    assert [each["name"] for each in status["consumers"]] == ["report"]
    assert status["sinks"][0]["stream"] == "averages"
    assert main(["status", url]) == 0
    shown = capsys.readouterr().out
    assert "retail: never started" in shown and "north" in shown and "report" in shown
    with Producer(url, "north", "till"):
        assert main(["status", url, "--json"]) == 0
        (status,) = lines(capsys)
        assert next(each for each in status["streams"] if each["name"] == "north")["writer"]["alive"] is True


def test_log_shows_frames_segments_and_journals(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "show", url, "--frames", "--json"]) == 0
    north, frame = lines(capsys)
    assert (north["stream"], north["rows"], north["frames"]) == ("north", 5, 1)
    segment = frame["frame"]["segment"]
    assert main(["log", "show", url, "--segment", segment, "--json"]) == 0
    shown, end = lines(capsys)
    assert shown["rows"] == 5 and end["stopped"] is None
    assert main(["log", "show", url, "--journal", north["journal"], "--json"]) == 0
    file, *entries = lines(capsys)
    assert file["names"] == ["north"] and [entry["number"] for entry in entries] == list(range(len(entries))) != []
    for arguments in (["--frames"], ["--segment", segment], ["--journal", north["journal"]]):
        assert main(["log", "show", url, *arguments]) == 0
        assert capsys.readouterr().out
    assert main(["log", "show", url, "--segment", "nowhere.seg"]) == 1
    assert "nowhere.seg" in capsys.readouterr().err


def test_verify_finds_damage_and_repair_names_what_is_lost(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", url]) == 0
    assert "retail/north: 1 frames" in capsys.readouterr().out
    store = LocalStore(Path(url) / "retail")
    (segment,) = segment_paths(store, "north")
    path = store.absolute(segment)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert main(["log", "verify", url]) == 1
    shown = capsys.readouterr().out
    assert "1 damaged" in shown and segment in shown
    assert main(["log", "repair", url, "retail/north", "--json"]) == 1
    (repaired,) = lines(capsys)
    assert repaired["mended"] == 0 and len(repaired["lost"]) == 1
    assert main(["log", "repair", url, "retail/north"]) == 1
    shown = capsys.readouterr()
    assert "1 lost" in shown.out and "from a backup" in shown.err
    assert "log repair" not in shown.out + shown.err, "whoever repairs is not told to repair"


def test_repair_is_refused_while_the_stream_is_written(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Producer(url, "north", "till"):
        assert main(["log", "repair", url, "north"]) == 1
    assert "producer-till" in capsys.readouterr().err


def test_consume_prints_rows_and_remembers_its_place(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", url, "north", "--json", "--rows", "2"]) == 0
    assert len(lines(capsys)) == 2
    assert main(["consume", url, "retail/north", "--name", "shell", "--json"]) == 0
    assert sorted(row["item"] for row in lines(capsys)) == [f"i{number}" for number in range(5)]
    assert main(["consume", url, "north", "--name", "shell"]) == 0
    assert "no more complete buckets" in capsys.readouterr().err
    assert main(["consume", url, "north", "--view", "changes"]) == 0
    assert "STABLE" in capsys.readouterr().out
    assert main(["consume", url, "north", "--start", "soon"]) == 1


def test_json_output_may_be_cut_off_by_its_reader(url: str) -> None:
    script = f"import sys; from holdfast.cli.main import main; sys.exit(main(['consume', {url!r}, 'north', '--json']))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, env=environment)
    os.close(write)
    assert done.stderr == b""


def test_run_gives_the_script_its_arguments_and_passes_its_success_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pathlib\n"
        "assert __name__ == '__main__'\n"
        f"pathlib.Path({str(tmp_path / 'out')!r}).write_text(' '.join(sys.argv[1:]))\n"
    )
    assert main(["run", str(script), "--fast", "now"]) == 0
    assert (tmp_path / "out").read_text() == "--fast now"


DYING = """
import os, pathlib, signal, sys
path = pathlib.Path(sys.argv[1])
life = len(path.read_text()) if path.exists() else 0
path.write_text("x" * (life + 1))
if life < int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_json(script: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run a script by the command; return its status, the lines of its output and what went to standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--json", *options, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print('hello')\nraise ValueError('boom')", "ValueError"),
        ("print('hello')\nimport holdfast as hf\nhf.Pipeline('a b', store='x')", "NameInvalid"),
        ("print('hello'", "SyntaxError"),
    ],
)
def test_a_script_that_raises_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    status, events, error = run_json(script)
    assert status == 1 and [event["event"] for event in events] == ["started", "ended"]
    said = [line for line in error.splitlines() if line != "hello"]
    assert [json.loads(line)["error"] for line in said] == [message]
    assert "Traceback" in run_json(script, "--debug")[2]


def test_an_error_of_sparks_is_one_line_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import holdfast as hf\nhf.session('x')\npipeline = hf.Pipeline('x', store='x')\n"
        "pipeline.source('n', 'item string').select('nope')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "holdfast.cli.main", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("holdfast: AnalysisException: ")
    assert "`nope` cannot be resolved" in line and f"(at {script}:4)" in line


def test_a_script_that_can_only_fail_again_is_not_started_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import holdfast as hf\nhf.Pipeline('a b', store='x')")
    _, events, _ = run_json(script, "--restarts", "5")
    assert [event["event"] for event in events] == ["started", "ended"]


def test_a_script_that_is_used_wrongly_is_wrong_use(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args(['--nonsense'])")
    assert run_json(script)[0] == 2


def test_run_starts_a_dead_script_again_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from holdfast.cli import run

    monkeypatch.setattr(run, "BACKOFF_MAX_S", 0.0)
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    lives = tmp_path / "lives"
    assert run.run_script(str(script), [str(lives), "2"], restarts=3, as_json=True, backoff_first_s=0.0) == 0
    assert len(lives.read_text()) == 3
    events = [json.loads(line)["event"] for line in capfd.readouterr().out.splitlines()]
    assert events == ["started", "died", "started", "died", "started", "ended"]
    lives.unlink()
    assert run.run_script(str(script), [str(lives), "9"], restarts=1, backoff_first_s=0.0) == 128 + signal.SIGKILL
    assert len(lives.read_text()) == 2


def test_a_script_that_forgets_to_run_its_pipeline_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import holdfast as hf\nhf.Pipeline('sales', store='store')\n")
    status, events, error = run_json(script, "--restarts", "5")
    assert status == 1 and [event["event"] for event in events] == ["started", "ended"]
    assert json.loads(error)["error"] == "Misconfigured"
    assert "'sales' was never started" in error and "pipeline.run()" in error
    script.write_text("print('done')\n")
    status, _, error = run_json(script)
    assert status == 0 and "made no pipeline" in error


IN_THE_MIDDLE = {
    "before its first line": "",
    "while it imports": "print('here', flush=True)\nimport holdfast as hf, pyspark.sql\nimport numba\nimport pandas\n",
    "while the session starts": "print('here', flush=True)\nimport holdfast as hf\nhf.session('x')\n",
}


@pytest.mark.parametrize("moment", IN_THE_MIDDLE)
def test_ctrl_c_before_a_pipeline_runs_is_130_without_a_traceback(moment: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IN_THE_MIDDLE[moment] + "import signal\nsignal.pause()\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", "holdfast.cli.main", "run", "--json", "--restarts", "5", str(script)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None and process.stderr is not None
    assert b"started" in process.stdout.readline()
    if IN_THE_MIDDLE[moment]:
        assert process.stderr.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in error and b"Exception" not in error, error.decode()


WAITING = """
import signal, sys
def stop(number, frame):
    print("stopped", number, flush=True)
    sys.exit(0)
signal.signal(int(sys.argv[1]), stop)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_passes_a_signal_on_once_and_does_not_start_again(tmp_path: Path, number: int) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", "holdfast.cli.main", "run", "--restarts", "5", str(script), str(int(number))]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out == f"stopped {int(number)}\n".encode()
    assert process.returncode == 0
