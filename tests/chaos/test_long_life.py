"""The short form of `make soak`: two thousand waves show what grows fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak.test_long_life import assert_light

pytestmark = [pytest.mark.chaos]


def test_a_node_does_not_grow_heavier_within_two_thousand_waves(tmp_path: Path) -> None:
    assert_light(tmp_path, 2000, 2)
