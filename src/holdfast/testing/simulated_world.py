"""The world that a seed makes: a pipeline, its disk, and the processes that live and die on it.

Guarantees:
    * Everything random comes from the seed; the same seed tells the same story.
    * Whatever contradicts a promise ends the run at once, with a `Violation` that carries the story.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from holdfast.connect import catalog
from holdfast.connect.lease import Lease, write_lease
from holdfast.log.ledger import Ledger
from holdfast.log.terms import Term
from holdfast.model import END_OF_TIME, FIRST_BUCKET, FORMAT_VERSION, FrameRef, JournalItem
from holdfast.node.decider import NodeDecider
from holdfast.node.options import NodeOptions
from holdfast.plan import (
    Aggregation,
    ConsoleSink,
    FilesSource,
    ParquetSink,
    ProducerSource,
    Sink,
    Source,
    Stage,
    StageInput,
    Topology,
    Transform,
)
from holdfast.testing.faulty_store import FaultyStore
from holdfast.testing.scribe import Scribe
from holdfast.testing.simulated_memory import HostMemory
from holdfast.testing.simulated_node import NodeProcess
from holdfast.testing.simulated_producer import Feed, ProducerProcess, SimulatedFiles
from holdfast.testing.simulated_reader import READER, ReaderProcess, Seen
from holdfast.testing.simulated_slots import Chunk, SlotProcess
from holdfast.testing.simulated_stage import SCHEMA, Row
from holdfast.testing.timeline import START_US, Timeline

WIDTH_US = 50_000
KEYS = 7
SPAN_US = 1_500_000
"""How long rows come."""
KEEPS_STATE = Aggregation([], [], [])
"""What a simulated stage computes is its own; that it has state to lose is what the node has to know."""


class Violation(AssertionError):
    """A promise was broken."""


class Rates(msgspec.Struct):
    """How often what goes wrong, as probabilities."""

    repeated: float = 0.0
    receipt_lost: float = 0.0
    late: float = 0.0
    restart_killed: float = 0.0
    crowded: float = 0.0
    """How often others act between all steps of a take-over."""


FIRST_NEW_SLOT = 10
"""Slots that an executor brings which comes later; those of the first ones are 0, 1 and 2."""


class World:
    """Everything in one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.timeline = Timeline(seed)
        random = self.random = self.timeline.random
        self.disk = FaultyStore(seed, "world", lock=random.random() < 0.5)
        self.disk.disk.tally = self.timeline.tally
        self.available_now = random.choice([False, False, True, None])
        """How its nodes run; None: now this way, now that."""
        self.shards = random.randint(2, 3)
        self.width_us = WIDTH_US
        self.rewriting = random.choice([0.0, 0.4])
        self.segment_bytes = random.choice([1500, 3000])
        # Drawn apart, so that a seed's world stays what it was but for the transform.
        self._jobs_random = Random(f"{seed} batch")
        self._has_transform = self._jobs_random.random() < 0.2
        self.topology = self._make_topology()
        self.transforms = frozenset(stage.name for stage in self.topology.stages if stage.transform is not None)
        self.addition: Topology | None = self._make_addition()
        """What the pipeline becomes while nobody runs it: a stage and a sink more."""
        whole = self.addition or self.topology
        self.sources = {source.name: source for source in self.topology.sources}
        self.options = self._make_options()
        self.rates = Rates()
        self.pace_us = random.choice([20_000, 60_000, 120_000])
        self.healing = False
        self.healing_events = 0
        self.broken: str | None = None
        self.slots = [0, 1][: random.randint(1, 2)]
        self._memories = [HostMemory(host) for host in range(random.randint(1, 2))]
        self._slot_hosts: dict[int, int] = {}
        self._value = 0
        self.feeds: dict[str, Feed] = {}
        self.files: dict[str, SimulatedFiles] = {}
        for source in self.topology.sources:
            self._make_rows(source)
        self.written: dict[tuple[str, int], list[Row]] = {}
        self.sinks: dict[str, dict[str, list[Row]]] = {sink.name: {} for sink in whole.sinks}
        self.node_streams = [stage.name for stage in self.topology.stages] + list(self.files)
        streams = [*self.sources, *(stage.name for stage in whole.stages)]
        self.seen = {stream: Seen(stream) for stream in streams}
        self.workers: list[SlotProcess] = []
        self.nodes: list[NodeProcess] = []
        self.producers: dict[str, ProducerProcess] = {}
        self.producer_lives: list[ProducerProcess] = []
        self.readers: dict[str, ReaderProcess] = {}
        self.confirmed: list[JournalItem] = []
        """The items of every entry that somebody was told is committed."""
        self._lives = 0
        self._positions: dict[tuple[str, str, int], int] = {}
        self.scribe = Scribe(self, streams)
        self._write_catalog()

    # What there is

    def _make_topology(self) -> Topology:
        random = self.random
        schema = SCHEMA.serialize().to_pybytes()
        sources: list[Source] = []
        for name in ["north", "south"][: random.randint(1, 2)]:
            origin = FilesSource("in", "csv") if random.random() < 0.4 else ProducerSource()
            sources.append(Source(name, schema, origin, ["key"]))
        every_us = random.choice([100_000, 300_000, 700_000])
        inputs = [StageInput(source.name, schema, []) for source in sources]
        stages = [Stage("totals", inputs, schema, KEEPS_STATE, [], schema, every_us, True)]
        if self._has_transform:
            # Before everything else, or behind it; always with somebody behind it who waits for its buckets.
            echoes = Stage("echoes", [StageInput(sources[0].name, schema, [])], schema, None, [], schema, None, True)
            echoes = msgspec.structs.replace(echoes, transform=Transform("echoed"))
            return self._with_echoes(sources, stages, echoes)
        if random.random() < 0.35:
            stages += self._stages_behind(sources[-1].name, every_us)
            if len(stages[1].inputs) > 1 and random.random() < 0.5:
                # Where there are two sources, rows of the second come to `peaks` alone.
                stages[0] = msgspec.structs.replace(stages[0], inputs=inputs[:1])
        targets = {stages[-1].name, random.choice(stages).name}
        sinks = [
            Sink(f"out-{name}", name, ParquetSink("out", random.choice([50_000, 200_000]))) for name in sorted(targets)
        ]
        if random.random() < 0.3:
            sinks.append(Sink("shown", random.choice(stages).name, ConsoleSink()))
        return Topology("simulated", self.shards, WIDTH_US, sources, stages, sinks)

    def _with_echoes(self, sources: list[Source], stages: list[Stage], echoes: Stage) -> Topology:
        """Return a topology with a transform: of a source, with `totals` behind it, or of `totals`."""
        random = self._jobs_random
        (totals,) = stages
        if random.random() < 0.5:
            first = msgspec.structs.replace(totals.inputs[0], stream=echoes.name)
            totals = msgspec.structs.replace(totals, inputs=[first, *totals.inputs[1:]])
            stages = [echoes, totals]
        else:
            own = [msgspec.structs.replace(echoes.inputs[0], stream=totals.name)]
            tops = msgspec.structs.replace(
                totals, name="tops", inputs=[msgspec.structs.replace(own[0], stream="echoes")]
            )
            stages = [totals, msgspec.structs.replace(echoes, inputs=own), tops][: random.randint(2, 3)]
        every_us = random.choice([50_000, 200_000])
        sinks = [Sink(f"out-{stage.name}", stage.name, ParquetSink("out", every_us)) for stage in stages]
        return Topology("simulated", self.shards, WIDTH_US, sources, stages, sinks)

    def _make_addition(self) -> Topology | None:
        """Return the pipeline as it will be, in some worlds; by random numbers of its own, which disturb no other."""
        chooser = Random(f"addition {self.seed}")
        if not self.disk.capabilities.lock or chooser.random() < 0.6:
            return None
        self._change_us = START_US + chooser.randint(0, SPAN_US)
        schema = SCHEMA.serialize().to_pybytes()
        streams = [source.name for source in self.topology.sources] + [stage.name for stage in self.topology.stages]
        read = chooser.sample(streams, chooser.randint(1, 2))
        added = Stage(
            "added", [StageInput(name, schema, []) for name in read], schema, KEEPS_STATE, [], schema, 300_000
        )
        stages = [*self.topology.stages, msgspec.structs.replace(added, sharded=True)]
        sinks = [Sink(f"new-{name}", name, ParquetSink(f"new-{name}")) for name in ("added", "totals")]
        return msgspec.structs.replace(self.topology, stages=stages, sinks=[*self.topology.sinks, *sinks])

    def _change(self) -> None:
        """Make the pipeline what it will be, if it is time, no node lives and nobody trims."""
        if self.addition is None or self.living_nodes or not (self.healing or self.timeline.now_us >= self._change_us):
            return
        changer = self.disk.process("changer")
        with catalog.changing(changer) as held:
            if held:
                self.topology, self.addition = self.addition, None
                self.node_streams.append("added")
                self._write_catalog()
                self.timeline.count("a stage was added")
        changer.kill()

    def _write_catalog(self) -> None:
        added = [stage.name for stage in self.topology.stages if stage.name == "added"]
        content = catalog.Catalog(FORMAT_VERSION, "simulated", "", self.topology, added=added)
        self.disk.disk.place(catalog.CATALOG_PATH, catalog.encode(content))

    def _stages_behind(self, source: str, every_us: int) -> list[Stage]:
        """Return stages that read `totals`, alone or with a source, and perhaps one more behind them."""
        schema = SCHEMA.serialize().to_pybytes()
        random = self.random
        reads = [("peaks", ["totals", source] if random.random() < 0.4 else ["totals"])]
        if random.random() < 0.4:
            reads.append(("tops", ["totals", "peaks"] if random.random() < 0.5 else ["peaks"]))
        inputs = {name: [StageInput(stream, schema, []) for stream in streams] for name, streams in reads}
        return [Stage(name, some, schema, KEEPS_STATE, [], schema, every_us, True) for name, some in inputs.items()]

    def _make_options(self) -> NodeOptions:
        random = self.random
        rows = random.choice([4, 20, 1000])
        return NodeOptions(
            wave_rows_min=rows,
            wave_rows_max=rows,
            wave_deadline_us=random.choice([60_000, 500_000]),
            job_rows_min=rows,
            job_deadline_us=self._jobs_random.choice([80_000, 500_000]),
            ingest_ahead_rows=random.choice([20, 1000]),
            look_every_us=40_000,
            idle_commit_every_us=150_000,
            snapshot_look_every_us=30_000,
            snapshot_deadline_us=400_000,
            trim_every_us=200_000,
            retain_us=random.choice([0, 300_000]),
            reopen_every_us=random.choice([50_000, 200_000]),
        )

    def _make_rows(self, source: Source) -> None:
        random = self.random
        if isinstance(source.origin, ProducerSource):
            self.feeds[source.name] = Feed(source.name, [self._rows() for _ in range(random.randint(8, 25))])
            return
        chunks: list[tuple[int, Chunk]] = []
        for number in range(random.randint(3, 8)):
            at_us = START_US + (number * SPAN_US) // 8
            parts = [self._rows() for _ in range(random.randint(1, 3))]
            start = 0
            for part in parts:
                end = start + len(part)
                chunks.append((at_us, Chunk(f"in/{number}", start, end, part is parts[-1], part)))
                start = end
        self.files[source.name] = SimulatedFiles(chunks)

    def _rows(self) -> list[Row]:
        """Return a few rows; no value is there twice, so that every row can be told from every other."""
        rows: list[Row] = []
        for _ in range(self.random.randint(1, 6)):
            self._value += 1
            rows.append((self.random.randrange(KEYS), self._value))
        return rows

    # What slots, readers and nodes meet

    def memory_of(self, slot: int) -> HostMemory:
        return self._memories[self.host_of(slot)]

    @property
    def host_count(self) -> int:
        return len(self._memories)

    def host_of(self, slot: int) -> int:
        return self._slot_hosts.get(slot, slot % len(self._memories))

    def new_slot(self, host: int) -> int:
        """Return a slot that there never was, on a host."""
        slot = FIRST_NEW_SLOT + len(self._slot_hosts)
        self._slot_hosts[slot] = host
        return slot

    def lose_memory_of(self, host: int) -> None:
        """A machine is gone: who still runs on it holds on to what is nobody's any more."""
        self._memories[host] = HostMemory(host)

    def lose_memory(self) -> None:
        """All hosts lose what they held."""
        self._memories = [HostMemory(memory.host) for memory in self._memories]

    def wrote(self, stream: str, ref: FrameRef, rows: list[Row]) -> None:
        """Remember what is in a frame of a source."""
        self.written[stream, ref.crc] = rows

    def put_out(self, sink: str, name: str, rows: list[Row]) -> int:
        """Write a sink's file once; whoever comes again finds it there."""
        known = self.sinks[sink].setdefault(name, rows)
        if known != rows:
            self.violated(f"sink {sink} was given {name} with {known}, then with {rows}")
        return len(rows)

    def run_next(self) -> bool:
        """Let the next thing happen; False if nothing is due any more."""
        more = self.timeline.run_next()
        if self.broken is not None:
            raise Violation(self.broken)
        return more

    def taking(self) -> None:
        """Somebody is about to take streams over."""
        if self.timeline.chance(self.rates.crowded):
            number = len(self.disk.operations)
            for step in range(12):
                self.disk.interrupt_at(number + step, self.timeline.interleave)

    def took(self, term: Term) -> None:
        """Somebody has taken streams over."""
        for stream, previous in term.previous.items():
            self.scribe.sealed(stream, previous)
        self.observe(term.names)

    def observe(self, streams: Iterable[str]) -> None:
        """Let the scribe look; after everything that may have changed a journal."""
        self.scribe.observe(streams)

    def looked_at(self, decider: NodeDecider) -> None:
        """Check what must hold after every decision."""
        for (stage, shard), unit in decider.situation.units.items():
            key = (decider.node, stage, shard)
            before = self._positions.get(key, unit.bucket_committed)
            if unit.bucket_committed < before:
                self.violated(f"{decider.node}: unit {shard} of {stage} went from {before} to {unit.bucket_committed}")
            self._positions[key] = unit.bucket_committed

    def violated(self, what: str) -> None:
        """End the run: a promise was broken."""
        self.timeline.tell("VIOLATION", what)
        # Kept too, because a future swallows what its callbacks raise.
        self.broken = self.broken or what
        raise Violation(what)

    # Who lives

    def _name(self, kind: str) -> str:
        self._lives += 1
        return f"{kind}{self._lives}"

    def start_node(self) -> None:
        self._change()
        now = self.available_now
        node = NodeProcess(self, self._name("node"), self.random.random() < 0.5 if now is None else now)
        self.nodes.append(node)
        node.later(0, node.open)

    def start_producer(self, feed: Feed) -> None:
        producer = self.producers[feed.stream] = ProducerProcess(self, feed, self._name(feed.stream))
        self.producer_lives.append(producer)
        producer.later(0, producer.open)

    def register_readers(self) -> None:
        """Give every reader its place before anything is there, so that retention keeps all for it."""
        for stream in self.seen:
            write_lease(self.scribe.store, Lease(stream, READER, FIRST_BUCKET, 0, END_OF_TIME))

    def start_reader(self, seen: Seen) -> None:
        reader = self.readers[seen.stream] = ReaderProcess(self, seen, self._name("reader"))
        reader.later(0, reader.open)

    @property
    def living_nodes(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.alive]

    def node_ended(self, node: NodeProcess) -> None:
        """A supervisor starts the next node, unless another one is there."""
        if not self.healing:
            self.scribe.soon(300_000, self._replace_node)

    def _replace_node(self) -> None:
        if not self.living_nodes and not self.healing:
            self.start_node()

    def producer_ended(self, producer: ProducerProcess) -> None:
        def replace() -> None:
            if not self.producers[producer.feed.stream].alive:
                self.start_producer(producer.feed)

        self.scribe.soon(200_000, replace)

    def reader_ended(self, reader: ReaderProcess) -> None:
        def replace() -> None:
            if not self.readers[reader.seen.stream].alive:
                self.start_reader(reader.seen)

        self.scribe.soon(200_000, replace)

    def ledger(self, stream: str) -> Ledger:
        """Return what is true of a stream now."""
        return self.scribe.ledger(stream)
