"""A node that has run 100,000 waves holds what one that has run 1,000 does.

WAVES says how many. That is a bound on the slope of everything that `weight.BOUNDS` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.soak.weight import WAVES_FULL

WAVES = int(os.environ.get("WAVES", WAVES_FULL))
STEPS = 12
ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(600 + WAVES // 10)
def test_a_node_does_not_grow_heavier_with_the_waves_that_it_has_run(tmp_path: Path) -> None:
    assert_light(tmp_path, WAVES, STEPS)


def assert_light(folder: Path, waves: int, steps: int) -> None:
    """Run a node in a process of its own; everything in it is then the node's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.life", str(folder), str(waves), str(steps)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
