"""What goes wrong in a simulated world: how often each fault comes is drawn from the seed.

Guarantees:
    * Every fault is one that a real machine, disk or network has; none of them lets a promise be broken.
    * When `heal` has returned nothing goes wrong any more; who is paused wakes up in his time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.testing.faulty_disk import Fault, How
from holdfast.testing.simulated_world import World
from holdfast.testing.timeline import Process

OPERATIONS: Final = ["append", "sync", "create", "write_at", "write_new", "replace", "delete"]


class Chaos(Process):
    """Makes faults happen, as long as it lives."""

    def __init__(self, world: World) -> None:
        super().__init__(world.timeline, "chaos", None)
        self._world = world
        random = self.timeline.random
        self._mean_us = random.choice([30_000, 100_000, 300_000])
        self._damaged: set[str] = set()
        faults: list[tuple[float, Callable[[], None]]] = [
            (2.0, self._kill_worker),
            (1.0, self._kill_node),
            (0.7, self._stop_node),
            (1.0, self._kill_producer),
            (1.0, self._kill_reader),
            (0.7, self._cut_power),
            (1.5, self._fail_operation),
            (1.5, self._fail_named),
            (0.7, self._fill_disk),
            (1.0, self._change_slots),
            (1.5, self._lose_executor),
            (0.7, self._lose_memory),
            (1.0, self._pause_somebody),
            (1.0, self._overlap_nodes),
            (1.0, self._supplant),
            (1.0, self._supplant_producer),
            (3.0, self._interleave),
            (1.0, self._make_sluggish),
            (1.5, self._damage_snapshot),
        ]
        # A world has some kinds of faults and not others, so that each is met often enough with few around it.
        self._faults = [(weight * random.choice([0, 0, 1, 3]), fault) for weight, fault in faults]
        rates = world.rates
        rates.repeated = random.choice([0.0, 0.1, 0.3])
        rates.receipt_lost = random.choice([0.0, 0.0, 0.05])
        rates.late = random.choice([0.0, 0.05, 0.2])
        rates.crowded = random.choice([0.0, 0.5])
        rates.restart_killed = random.choice([0.0, 0.0, 0.3])

    def begin(self) -> None:
        self.later(int(self.timeline.random.expovariate(1 / self._mean_us)), self._act)

    def heal(self) -> None:
        """Let nothing go wrong from now on."""
        self.die("healed")
        world = self._world
        world.disk.fill(False)
        disk = world.disk.disk
        disk.faults.clear()
        disk.wanted.clear()
        disk.interruptions.clear()
        rates = world.rates
        rates.repeated = rates.receipt_lost = rates.late = rates.restart_killed = rates.crowded = 0.0

    def _act(self) -> None:
        weights = [weight for weight, _ in self._faults]
        if sum(weights):
            fault = self.timeline.random.choices(self._faults, weights)[0][1]
            fault()
        self.begin()

    def _did(self, what: str, more: str = "") -> None:
        self.timeline.count(what)
        self.timeline.tell("chaos", f"{what} {more}".rstrip())

    # Processes

    def _kill_worker(self) -> None:
        workers = [worker for worker in self._world.workers if worker.alive]
        if workers:
            worker = self.timeline.random.choice(workers)
            self._did("a worker is killed at work" if worker.busy else "an idle worker is killed", worker.name)
            worker.die("killed")

    def _kill_node(self) -> None:
        for node in self._world.living_nodes[:1]:
            self._did("a node is killed", node.name)
            node.die("killed")

    def _stop_node(self) -> None:
        for node in self._world.living_nodes[:1]:
            if node.is_open:
                self._did("a node is asked to stop", node.name)
                node.request_stop()

    def _kill_producer(self) -> None:
        producers = [producer for producer in self._world.producers.values() if producer.alive]
        if producers:
            self._did("a producer is killed")
            self.timeline.random.choice(producers).die("killed")

    def _kill_reader(self) -> None:
        readers = [reader for reader in self._world.readers.values() if reader.alive]
        if readers:
            self._did("a reader is killed")
            self.timeline.random.choice(readers).die("killed")

    def _cut_power(self) -> None:
        """The machine with the disk loses power, and all that run on it end."""
        self._did("power is cut")
        world = self._world
        world.disk.crash()
        if self.timeline.chance(0.7):
            world.lose_memory()
        for process in [*world.workers, *world.nodes, *world.producer_lives, *world.readers.values()]:
            process.die("power cut")

    def _pause_somebody(self) -> None:
        """Somebody is stopped for a while, and wakes up as if nothing had been."""
        world = self._world
        everybody: list[Process] = [*world.nodes, *world.workers, *world.producer_lives]
        living = [process for process in everybody if process.alive]
        if living:
            self._pause(self.timeline.random.choice(living))

    def _pause(self, process: Process) -> None:
        until_us = self.timeline.now_us + self.timeline.random.randint(10_000, 900_000)
        # Never shorter than before: what waits for the end of the first pause must not be overtaken.
        process.paused_until_us = max(until_us, process.paused_until_us)
        self._did(f"a {type(process).__name__.removesuffix('Process').lower()} is paused", process.name)

    def _overlap_nodes(self) -> None:
        """A second node starts while the first may live; or, where locks are, tries to."""
        if len(self._world.living_nodes) < 3:
            self._did("another node starts")
            self._world.start_node()

    def _supplant(self) -> None:
        """A node is stopped, somebody starts the next one, and then the first wakes up."""
        for node in self._world.living_nodes[:1]:
            self._pause(node)
            self._overlap_nodes()

    def _supplant_producer(self) -> None:
        """The same with a producer, whose program somebody starts a second time."""
        producers = [producer for producer in self._world.producers.values() if producer.alive]
        if producers:
            producer = self.timeline.random.choice(producers)
            self._pause(producer)
            self._did("another producer starts")
            self._world.start_producer(producer.feed)

    def _make_sluggish(self) -> None:
        for worker in self._world.workers:
            if worker.alive and self.timeline.chance(0.5):
                self.timeline.count("a worker becomes slower or faster")
                worker.sluggish = self.timeline.random.choice([1, 10, 60])

    # The disk

    def _at(self) -> int:
        return len(self._world.disk.operations) + self.timeline.random.randint(0, 10)

    def _fail_operation(self) -> None:
        how = self.timeline.random.choice(list(How))
        self._world.disk.fail_at(self._at(), how, self.timeline.chance(0.5))

    def _fail_named(self) -> None:
        """The next operation of one kind fails, so that rare ones fail too."""
        random = self.timeline.random
        fault = Fault(-1, random.choice(list(How)), self.timeline.chance(0.5))
        self._world.disk.disk.wanted[random.choice(OPERATIONS)] = fault

    def _interleave(self) -> None:
        """Somebody else acts in the middle of one of the next operations."""
        self._world.disk.interrupt_at(self._at(), self.timeline.interleave)

    def _fill_disk(self) -> None:
        self._did("the disk fills up")
        self._world.disk.fill()
        self.soon(300_000, lambda: self._world.disk.fill(False))

    def _damage_snapshot(self) -> None:
        """A byte of a verified snapshot goes bad; only the newer one of a unit, as the older one then has to serve."""
        world = self._world
        for stage in world.topology.stages:
            for shard in range(world.shards):
                kept = world.ledger(stage.name).snapshots(stage.name, shard)
                paths = [snapshot.path for snapshot in kept]
                if len(paths) < 2 or self._damaged & set(paths) or f"{paths[-1]}/manifest" not in world.disk.disk.kept:
                    continue
                self._did("a snapshot is damaged", paths[-1])
                self._damaged.add(paths[-1])
                world.disk.flip(f"{paths[-1]}/manifest", 0)
                if self.timeline.chance(0.5):
                    self._lose_memory()
                return

    # Slots and their hosts

    def _change_slots(self) -> None:
        random = self.timeline.random
        world = self._world
        world.slots = random.choice([[0], [1], [0, 1], [0, 1], [1, 2], [0, 2], []])
        self._did("slots change" if world.slots else "all slots go", f"to {world.slots}")
        self._set_slots(world.slots)
        if not world.slots:
            self.soon(200_000, lambda: self._bring_back_slots())

    def _bring_back_slots(self) -> None:
        if not self._world.slots:
            self._set_slots([0])

    def _lose_executor(self) -> None:
        """All slots of an executor go at once, perhaps with its machine; another one comes, with other numbers."""
        random = self.timeline.random
        world = self._world
        if not world.slots:
            return
        host = world.host_of(random.choice(world.slots))
        gone = [slot for slot in world.slots if world.host_of(slot) == host]
        for node in world.living_nodes:
            for slot in gone:
                # What is not killed is cut off, and does not know that nobody waits for it.
                if random.random() < 0.6:
                    node.kill_worker(slot, "its executor is lost")
        if random.random() < 0.4:
            self._did("a machine is lost", f"host {host}, slots {gone}")
            world.lose_memory_of(host)
        else:
            self._did("an executor is lost", f"on host {host}, slots {gone}")
        self._set_slots([slot for slot in world.slots if slot not in gone])
        count = random.randint(1, 2)
        self.soon(
            random.choice([20_000, 200_000]), lambda: self._add_executor(random.randrange(world.host_count), count)
        )

    def _add_executor(self, host: int, cores: int) -> None:
        world = self._world
        added = [world.new_slot(host) for _ in range(cores)]
        self._did("an executor comes", f"on host {host}, slots {added}")
        self._set_slots([*world.slots[-3:], *added])

    def _set_slots(self, slots: list[int]) -> None:
        self._world.slots = slots
        for node in self._world.living_nodes:
            node.change_slots(slots)

    def _lose_memory(self) -> None:
        self._did("memory is lost")
        self._world.lose_memory()
