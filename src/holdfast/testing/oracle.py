"""What should have come out: everything that was logged, run through the same stage without any failure.

Guarantees:
    * The expected output is computed bucket by bucket in plain Python, from rows and stamps alone: it cannot depend on
      waves, replays, snapshots or on the code under test.
    * What was promised is counted from the promises: every entry whose commit was confirmed has to be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.log.ledger import Ledger
from holdfast.model import FIRST_BUCKET, Published, UnitCommitted
from holdfast.testing.scribe import Scribe
from holdfast.testing.simulated_stage import Row, StageState, digest_of, echoed, shard_of

if TYPE_CHECKING:
    from holdfast.testing.simulated_world import World

Output = dict[tuple[int, int], list[Row]]
"""Rows per (bucket, shard)."""


def expected(world: World, scribe: Scribe) -> dict[str, Output]:
    """Return the output of every stage, from what was logged."""
    outputs: dict[str, Output] = {}
    for stage in world.topology.stages:
        pieces: dict[tuple[int, int], list[tuple[int, int, int, int, Row]]] = {}
        begun = scribe.ledger(stage.name).begun(stage.name)
        begins = FIRST_BUCKET if begun is None else begun.bucket_start
        for number, read in enumerate(stage.inputs):
            for bucket, stamp_us, shard, order, row in _rows_of(scribe, outputs, read.stream):
                if bucket < begins:
                    continue
                key = (bucket, shard_of(row[0], world.shards))
                pieces.setdefault(key, []).append((stamp_us, number, shard, order, row))
        if stage.name in world.transforms:
            made = {key: echoed(piece[-1] for piece in sorted(some)) for key, some in pieces.items()}
            outputs[stage.name] = {key: rows for key, rows in made.items() if rows}
        else:
            outputs[stage.name] = _run(world, pieces, set(scribe.endings[stage.name]))
    return outputs


def _rows_of(scribe: Scribe, outputs: dict[str, Output], stream: str) -> list[tuple[int, int, int, int, Row]]:
    """Return (bucket, stamp, shard, order, row) of a stream's rows."""
    if stream in outputs:
        return [
            (bucket, 0, shard, order, row)
            for (bucket, shard), rows in outputs[stream].items()
            for order, row in enumerate(rows)
        ]
    found: list[tuple[int, int, int, int, Row]] = []
    for bucket, stamp_us, rows in scribe.logged[stream]:
        found += [(bucket, stamp_us, 0, len(found) + order, row) for order, row in enumerate(rows)]
    return found


def _run(world: World, pieces: dict[tuple[int, int], list[tuple[int, int, int, int, Row]]], ended: set[int]) -> Output:
    output: Output = {}
    for shard in range(world.shards):
        state = StageState()
        buckets = {bucket for bucket, of_shard in pieces if of_shard == shard} | {end - 1 for end in ended}
        for bucket in sorted(buckets):
            rows = [piece[-1] for piece in sorted(pieces.get((bucket, shard), []))]
            left = state.process(rows, bucket + 1 in ended)
            if left:
                output[bucket, shard] = left
    return output


def check(world: World, scribe: Scribe) -> None:
    """Compare everything that is there at the end with what should be."""
    for stream in world.seen:
        scribe.check_frames(stream)
    scribe.check_endings()
    _check_promises(world, scribe)
    _check_feeds(world, scribe)
    outputs = expected(world, scribe)
    for stage, output in outputs.items():
        _check_digests(world, scribe.ledger(stage), stage, output)
        _check_reader(world, stage, output)
    for sink in world.topology.sinks:
        _check_sink(world, sink.name, outputs[sink.stream], scribe.ledger(sink.stream))
    for source in world.sources:
        rows = sorted(row for _, _, some in scribe.logged[source] for row in some)
        seen = sorted(row for (bucket, _), some in world.seen[source].rows.items() for row in some)
        _same(world, f"rows read of {source}", seen, rows)


def _check_promises(world: World, scribe: Scribe) -> None:
    """Everything whose commit was confirmed to whoever asked for it is part of its stream."""
    for item in world.confirmed:
        if isinstance(item, Published) and item.frame.crc not in scribe.frames[item.stream]:
            world.violated(f"a frame of {item.stream} was committed and is lost: {item}")
        if isinstance(item, UnitCommitted):
            end = scribe.unit_ends.get((item.stage, item.shard), FIRST_BUCKET)
            if end < item.bucket_end:
                world.violated(f"unit {item.shard} of {item.stage} was committed to {item.bucket_end}, is at {end}")


def _check_feeds(world: World, scribe: Scribe) -> None:
    for stream, feed in world.feeds.items():
        logged = sorted(row for _, _, rows in scribe.logged[stream] for row in rows)
        _same(world, f"rows logged of {stream}", logged, sorted(row for batch in feed.batches for row in batch))
        if len(feed.acknowledged) != len(feed.batches):
            world.violated(f"not every batch of {stream} was acknowledged")
    for stream, files in world.files.items():
        logged = sorted(row for _, _, rows in scribe.logged[stream] for row in rows)
        _same(world, f"rows logged of {stream}", logged, sorted(files.rows()))


def _check_digests(world: World, ledger: Ledger, stage: str, output: Output) -> None:
    trimmed = ledger.trimmed_before(stage)
    known = ledger.digests(stage)
    folded: dict[int, tuple[int, int]] = {}
    wanted: dict[tuple[int, int], tuple[int, int]] = {}
    for (bucket, shard), rows in output.items():
        if trimmed is not None and bucket < trimmed:
            count, digest = folded.get(shard, (0, 0))
            folded[shard] = (count + len(rows), (digest + digest_of(rows)) % (1 << 64))
        else:
            wanted[shard, bucket] = (len(rows), digest_of(rows))
    _same(world, f"digests of {stage}", known, wanted)
    _same(world, f"folded digests of {stage}", ledger.digests_folded(stage), folded)


def _check_reader(world: World, stage: str, output: Output) -> None:
    seen = world.seen[stage]
    _same(world, f"rows read of {stage}", seen.rows, {k: rows for k, rows in output.items() if k[0] < seen.bucket_end})


def _check_sink(world: World, sink: str, output: Output, ledger: Ledger) -> None:
    position = ledger.sinks.get(sink)
    begins = FIRST_BUCKET if position is None or position.begun is None else position.begun
    rows = sorted(row for some in world.sinks[sink].values() for row in some)
    wanted = sorted(row for (bucket, _), some in output.items() for row in some if bucket >= begins)
    _same(world, f"rows in sink {sink}", rows, wanted)
    counted = 0 if position is None else position.rows
    _same(world, f"rows counted by sink {sink}", counted, len(rows))


def _same(world: World, what: str, found: object, wanted: object) -> None:
    if found == wanted:
        return
    if isinstance(found, dict) and isinstance(wanted, dict):
        missing = {k: v for k, v in wanted.items() if k not in found}
        extra = {k: v for k, v in found.items() if k not in wanted}
        wrong = {k: (v, wanted[k]) for k, v in found.items() if k in wanted and wanted[k] != v}
        world.violated(f"{what}: missing {missing}, too much {extra}, different (found, wanted) {wrong}")
    if isinstance(found, list) and isinstance(wanted, list):
        missing_rows = [row for row in wanted if row not in found]
        extra_rows = [row for row in found if found.count(row) > wanted.count(row)]
        world.violated(f"{what}: missing {missing_rows}, too much {extra_rows}")
    world.violated(f"{what}: found {found}, expected {wanted}")
