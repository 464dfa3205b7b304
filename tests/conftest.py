"""Fixtures that several kinds of tests use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.golden.golden import Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a golden file, or write the file."""
    from tests.golden.golden import compare

    return lambda name, text: compare(name, text, bool(request.config.getoption("--update-golden")))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session that can run waves; also for analysis and as the oracle."""
    import holdfast as hf

    # Functions of test modules travel by name: workers have to find the modules.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    session = hf.session(
        "holdfast tests",
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.log.level": "ERROR",
        },
    )
    yield session
    session.stop()
