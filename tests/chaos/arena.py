"""Where a chaos test takes place: a folder, a seed, the nodes it has started, and small disks that fill up."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.processes import PATIENCE_S, SCRIPT, NodeProcess, wait_until

from holdfast.connect.consumer import Consumer


class Arena:
    """One test's store, states and nodes. Nothing that it started outlives it; its folder stays when the test fails."""

    def __init__(self, folder: Path, states: Path, seed: int, script: Path = SCRIPT) -> None:
        self.folder = folder
        self.states = states
        self.seed = seed
        self.script = script
        self.rng = random.Random(seed)
        self.nodes: list[NodeProcess] = []

    @property
    def store(self) -> str:
        return f"{self.folder}/store"

    def start(self, kind: str, *options: str) -> NodeProcess:
        node = NodeProcess(self.folder, self.states, kind, *options, script=self.script)
        self.nodes.append(node)
        return node

    def pause(self, least_s: float, most_s: float) -> None:
        """Let a random time pass: the moment of what follows is what the test varies."""
        time.sleep(self.rng.uniform(least_s, most_s))

    def run_to_the_end(self, kind: str, *options: str) -> NodeProcess:
        """Take what is there, end every window, and return."""
        node = self.start(kind, "--available-now", *options)
        assert node.ended() == 0, node.said()
        return node

    def wait_for_rows(self, consumer: Consumer, node: NodeProcess) -> None:
        """Wait for a result that is new; a node that ended instead has failed the test."""
        while consumer.poll() is not None:
            continue
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            table = consumer.poll(1.0)
            if table is not None and table.num_rows:
                return
            assert node.lives, node.said()
        raise AssertionError(f"no result within {PATIENCE_S} s: {node.said()}")

    def wait_for_words(self, node: NodeProcess, words: str) -> None:
        wait_until(lambda: words in node.said() or not node.lives, f"waiting for {words!r}")
        assert words in node.said(), node.said()

    def end(self) -> None:
        for node in self.nodes:
            node.end()


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a size; where that is not permitted, the test is skipped and says so."""
    at.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is not permitted here: {mounted.stderr.decode().strip()}")
    try:
        yield at
    finally:
        # What is on it is gone with the mount: a copy beside it is what a failed test leaves.
        (at / "ballast").unlink(missing_ok=True)
        subprocess.run(["cp", "-a", "--sparse=always", f"{at}/.", f"{at}-kept"], check=False, capture_output=True)
        subprocess.run(["umount", "--lazy", str(at)], check=True, capture_output=True)


def fill(disk: Path) -> Path:
    """Take all room of a disk, and return the file that holds it."""
    ballast = disk / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        # The last room is less than a block of many.
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    continue
    return ballast


@contextlib.contextmanager
def arena_in(folder: Path, seed: int, script: Path = SCRIPT) -> Iterator[Arena]:
    """Give a test its arena. The seed and the folder are printed, so a test that fails says where to look."""
    print(f"seed {seed}, store {folder}/store, log {folder}/node.log")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-", dir=memory) as states:
        arena = Arena(folder, Path(states), seed, script)
        (folder / "dropped").mkdir()
        try:
            yield arena
            wait_until(
                lambda: not any(node.has_orphans() for node in arena.nodes), "waiting for killed nodes' processes"
            )
        finally:
            arena.end()
