"""A seed is a run: the same in every process, and what fails says how to see it again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib

import pytest

from holdfast.log.terms import Term
from holdfast.testing.simulator import SimulationFailed, main, simulate

SEEDS = [3, 11, 26]
PROGRAM = """
import sys, zlib
from holdfast.testing.simulator import simulate
for seed in map(int, sys.argv[1:]):
    world = simulate(seed)
    print(zlib.crc32("\\n".join(world.timeline.log + world.disk.operations).encode()))
"""


def story_of(seed: int) -> list[str]:
    world = simulate(seed)
    return world.timeline.log + world.disk.operations


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_tells_the_same_story(seed: int) -> None:
    assert story_of(seed) == story_of(seed)


def test_different_seeds_tell_different_stories() -> None:
    assert len({tuple(story_of(seed)) for seed in SEEDS}) == len(SEEDS)


def test_a_seed_tells_the_same_story_in_another_process() -> None:
    """Nothing depends on the order of sets, on process numbers or on what ran before."""
    told = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, SEEDS)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        told.append(done.stdout.split())
    here = [str(zlib.crc32("\n".join(story_of(seed)).encode())) for seed in SEEDS]
    assert told == [here, here]


def test_a_seed_that_fails_prints_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Term, "check_held", lambda term: None)
    assert main(["--seeds", "100"]) == 1
    printed = capsys.readouterr().out
    command = re.search(
        r"To see all of it: python -m holdfast\.testing\.simulator (--seed \d+ --steps \d+) -v", printed
    )
    assert command is not None
    assert main(command[1].split()) == 1, "the command fails as the seed did"
    seed = int(command[1].split()[1])
    with pytest.raises(SimulationFailed) as again:
        simulate(seed)
    assert str(again.value).split("\n")[0] in printed


def test_the_command_runs_seeds_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "4", "--from", "20", "--jobs", "2", "--tally"]) == 0
    printed = capsys.readouterr().out
    assert "4 of 4 seeds kept every promise" in printed and "a reader follows a new term" in printed
