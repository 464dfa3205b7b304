"""What a user says of jars reaches the JVM when it starts: later it would be too late."""

from __future__ import annotations

import pytest

from holdfast.spark.jvm import submit_arguments


def test_settings_and_the_users_own_arguments_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert submit_arguments({}) == ["pyspark-shell"]
    assert submit_arguments({"spark.jars": "a.jar,b.jar"}) == ["--conf", "spark.jars=a.jar,b.jar", "pyspark-shell"]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages 'x:y:1' pyspark-shell")
    assert submit_arguments({}) == ["--packages", "x:y:1", "pyspark-shell"]
