"""Durations, sizes and names as a user writes them."""

from __future__ import annotations

import pytest

from holdfast.config import check_name, duration_us, interval_us, size_bytes
from holdfast.errors import Misconfigured, NameInvalid


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [
        ("3 seconds", 3_000_000),
        ("200 milliseconds", 200_000),
        ("1 minute 30 seconds", 90_000_000),
        ("interval 1 day", 86_400_000_000),
        ("1.5 seconds", 1_500_000),
        ("2 WEEKS", 1_209_600_000_000),
        ("-5 minutes", -300_000_000),
        ("7 microseconds", 7),
        ("0 second", 0),
        ("  1 hour ", 3_600_000_000),
    ],
)
def test_an_interval_is_read_as_pyspark_reads_it(text: str, expected_us: int) -> None:
    assert interval_us(text) == expected_us


@pytest.mark.parametrize("text", ["", "3", "seconds", "3 fortnights", "3s", "1.5 minutes", "1 month", "3 seconds and"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        interval_us(text)


def test_a_duration_is_longer_than_nothing() -> None:
    with pytest.raises(Misconfigured, match="bucket"):
        duration_us("0 seconds", "bucket")


@pytest.mark.parametrize(("text", "expected"), [("64 MB", 64 << 20), ("1.5 KB", 1536), ("2GB", 2 << 30), ("7 B", 7)])
def test_sizes(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(Misconfigured, match="64 MB"):
        size_bytes("large")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "-a", "x" * 101, "a.late", "ä"])
def test_a_name_never_leaves_its_folder(name: str) -> None:
    with pytest.raises(NameInvalid):
        check_name(name, "a stream")


def test_a_plain_name_is_taken() -> None:
    assert check_name("north-2_x", "a stream") == "north-2_x"
