"""Logs as JSON: one object a line, and no secret in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from holdfast.errors import Misconfigured
from holdfast.node.log_lines import VARIABLE, JsonLines, set_up, without_secrets

LOG = logging.getLogger("holdfast")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers, level, propagate = list(LOG.handlers), LOG.level, LOG.propagate
    yield
    LOG.handlers, LOG.propagate = handlers, propagate
    LOG.setLevel(level)


def test_a_warning_is_one_object_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    set_up("old", "node-0")
    set_up("retail", "node-1")
    LOG.warning("slot %d\ndid not answer", 3, extra={"stage": "averages"})
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "WARNING",
        "node": "node-1",
        "pipeline": "retail",
        "stage": "averages",
        "logger": "holdfast",
        "message": "slot 3\ndid not answer",
    }


def test_a_traceback_stays_in_its_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    set_up("retail", "node-1")
    try:
        raise ValueError("password=hunter2")
    except ValueError:
        LOG.exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found["stage"] is None and "Traceback" in found["exception"] and "hunter2" not in line


def test_without_being_asked_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    set_up("retail", "node-1")
    assert not any(isinstance(handler.formatter, JsonLines) for handler in LOG.handlers)
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(Misconfigured, match="HOLDFAST_LOG is 'xml'"):
        set_up("retail", "node-1")


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://writer:hunter2@db:5432/sales",
        "option fs.s3a.secret.key=hunter2 was refused",
        'read {"password": "hunter2", "user": "me"}',
        "HOLDFAST_TOKEN=hunter2; next",
        "kafka.sasl.password = 'hunter2 and more'",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    shown = without_secrets(text)
    assert "hunter2" not in shown and "(hidden)" in shown


@pytest.mark.parametrize(
    "text", ["row 3 of north.csv cannot be read", "at 20:40:01: see file:///data/in:1", "tokens are counted: 5"]
)
def test_what_is_none_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
