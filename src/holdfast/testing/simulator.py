"""Run a whole pipeline on virtual time over a faulty disk, each time from one seed.

    python -m holdfast.testing.simulator --seed 7 -v           one seed, and all that happens in it
    python -m holdfast.testing.simulator --seeds 1000 --jobs 2

The node's decider, the stream log with its journals, terms, readers and retention are the real ones. Slots, producers,
consumers and sinks are small stand-ins that keep the real protocols.

Guarantees:
    * The same seed and number of steps give the same run.
    * While faults come, and again after they have stopped and everything was processed, it is checked that nothing
      committed is lost, nothing that was read is withdrawn, and what came out is what a run without failures gives.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import msgspec

from holdfast.model import FIRST_BUCKET
from holdfast.testing.faults import Chaos
from holdfast.testing.oracle import check
from holdfast.testing.simulated_world import SPAN_US, Violation, World
from holdfast.testing.timeline import START_US

STEPS = 700
"""Events while things go wrong."""

HEALING_EVENTS_MAX = 20_000
STORY_LINES = 60


class SimulationFailed(AssertionError):
    """A seed broke a promise; the message has its story and how to replay it."""


def simulate(seed: int, steps: int = STEPS, verbose: bool = False) -> World:
    """Run one seed; `SimulationFailed` tells what was broken and how it came to that."""
    world = World(seed)
    world.timeline.verbose = verbose
    try:
        Simulation(world).run(steps)
    except Exception as error:
        story = "\n".join(world.timeline.log[-STORY_LINES:])
        what = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
        command = f"python -m holdfast.testing.simulator --seed {seed} --steps {steps} -v"
        raise SimulationFailed(f"{what}\n\n{story}\n\nTo see all of it: {command}") from error
    return world


class Simulation:
    """One run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chaos = Chaos(world)

    def run(self, steps: int) -> None:
        world = self._world
        world.register_readers()
        for feed in world.feeds.values():
            world.start_producer(feed)
        for seen in world.seen.values():
            world.start_reader(seen)
        world.start_node()
        self._chaos.begin()
        for _ in range(steps):
            world.run_next()
        self._heal()
        check(world, world.scribe)

    def _heal(self) -> None:
        """Stop all faults, let a last node process everything that is there, and wait for it."""
        world = self._world
        world.timeline.tell("world", "all faults stop")
        world.healing = True
        self._chaos.heal()
        world.slots = [0, 1]
        for files in world.files.values():
            files.hurry = True
        for node in world.nodes:
            node.die("replaced by the last node")
        self._run_until_fed()
        world.timeline.tell("world", "everything is logged, the last node starts")
        world.start_node()
        self._run_until_done()
        world.observe(world.seen)

    def _run_until_fed(self) -> None:
        """Let the producers finish, and time pass the buckets of their last rows."""
        world = self._world
        while not all(feed.done for feed in world.feeds.values()):
            self._step("the producers do not finish")
        until_us = max(world.timeline.now_us, START_US + SPAN_US) + 3 * world.width_us
        while world.feeds and any(world.ledger(name).boundary_us(name) < until_us for name in world.feeds):
            self._step("the producers' boundaries do not move")

    def _run_until_done(self) -> None:
        world = self._world
        while not self._processed():
            self._step("the last node does not finish")
            node = world.nodes[-1]
            if not node.alive and not node.finished:
                world.violated(f"{node.name} died after all faults had stopped")

    def _processed(self) -> bool:
        """Return whether all rows are through the stages, in the sinks, and read."""
        world = self._world
        node = world.nodes[-1]
        if not node.is_open:
            return False
        if node.options.available_now and not (node.finished and not node.alive):
            return False
        ends = {stream: self._rows_end(stream) for stream in world.seen}
        for stage in world.topology.stages:
            for shard in range(world.shards):
                unit = world.ledger(stage.name).unit(stage.name, shard)
                needed = max([*(ends[read.stream] for read in stage.inputs), *world.scribe.endings[stage.name]])
                if unit is None or unit.bucket_end < needed:
                    return False
        for sink in world.topology.sinks:
            position = world.ledger(sink.stream).sinks.get(sink.name)
            done = None if position is None else position.bucket_end
            if (FIRST_BUCKET if done is None else done) < ends[sink.stream]:
                return False
        return all(seen.bucket_end >= ends[stream] for stream, seen in world.seen.items())

    def _rows_end(self, stream: str) -> int:
        """Return the end of the last bucket with rows that is known of."""
        world = self._world
        if stream in world.files and len(world.scribe.logged[stream]) < len(world.files[stream].look({}, 0)[0]):
            return 1 << 62
        if stream in world.sources:
            return max((bucket + 1 for bucket, _, _ in world.scribe.logged[stream]), default=FIRST_BUCKET)
        frames = world.ledger(stream).all_frames(stream)
        return max((frame.bucket_end for frame in frames), default=FIRST_BUCKET)

    def _step(self, stuck: str) -> None:
        world = self._world
        if not world.run_next():
            world.violated(f"{stuck}: nothing is due any more")
        world.healing_events += 1
        if world.healing_events > HEALING_EVENTS_MAX:
            world.violated(f"{stuck} within {HEALING_EVENTS_MAX} events")


class Outcome(msgspec.Struct, frozen=True):
    """What became of one seed; `failure` is empty where every promise was kept."""

    seed: int
    failure: str
    events: int
    tally: dict[str, int]


def outcome_of(seed: int, steps: int = STEPS, verbose: bool = False) -> Outcome:
    """Run one seed and say what became of it."""
    try:
        world = simulate(seed, steps, verbose)
    except SimulationFailed as failure:
        return Outcome(seed, str(failure), 0, {})
    return Outcome(seed, "", world.timeline.events, dict(world.timeline.tally))


def outcomes_of(seeds: Sequence[int], steps: int = STEPS, jobs: int = 1) -> Iterator[Outcome]:
    """Run seeds, each as it comes, in as many processes as `jobs` says."""
    if jobs <= 1:
        yield from (outcome_of(seed, steps) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(outcome_of, steps=steps), seeds, chunksize=20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or replay seeds from the command line."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulator", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--steps", type=int, default=STEPS, help="events while things go wrong")
    parser.add_argument("--tally", action="store_true", help="say at the end how often each thing happened")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: tell everything as it happens")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        outcomes = iter([outcome_of(chosen.seed, chosen.steps, chosen.verbose)])
    else:
        outcomes = outcomes_of(range(chosen.first, chosen.first + chosen.seeds), chosen.steps, chosen.jobs)
    return _report(outcomes, chosen.tally)


def _report(outcomes: Iterable[Outcome], with_tally: bool) -> int:
    kept = failed = events = 0
    tally: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.failure:
            failed += 1
            print(f"seed {outcome.seed} failed: {outcome.failure}\n", flush=True)
        else:
            kept += 1
        events += outcome.events
        tally.update(outcome.tally)
    if with_tally:
        for what, count in sorted(tally.items()):
            print(f"{count:10,}  {what}")
    print(f"{kept} of {kept + failed} seeds kept every promise, in {events:,} events")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
