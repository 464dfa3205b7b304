"""Bytes of a committed frame that turn: the error says where, `holdfast log` finds it, and nothing is guessed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.chaos.arena import arena_in
from tests.chaos.feed import Feed, piece
from tests.chaos.oracle import check_digests, check_rows, rows_in
from tests.chaos.processes import wait_until

from holdfast.connect.consumer import Consumer
from holdfast.connect.producer import Producer
from holdfast.errors import SegmentCorrupt
from holdfast.log.inspect import show_frames
from holdfast.log.store import open_store
from holdfast.model import FrameRef

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


def holdfast_log(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run `holdfast log`, and return its exit status and what it says."""
    command = [sys.executable, "-m", "holdfast.cli.main", "log", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def last_frame(store: Path, stream: str) -> FrameRef:
    return list(show_frames(open_store(str(store)), stream))[-1].frame


def flip(store: Path, frame: FrameRef) -> None:
    """Turn a byte in the middle of a frame; turned once more it is as it was."""
    with open(store / frame.segment, "r+b") as file:
        file.seek(frame.offset + frame.length // 2)
        byte = file.read(1)
        file.seek(frame.offset + frame.length // 2)
        file.write(bytes([byte[0] ^ 0xFF]))


def names(text: str, stream: str, frame: FrameRef) -> bool:
    """Whether a message says which bytes are meant."""
    return all(word in text for word in (repr(stream), "shard", frame.segment, f"offset {frame.offset}"))


def test_corrupt_input_stops_the_node_by_name_and_corrupt_output_is_mended_from_a_copy_only(tmp_path: Path) -> None:
    store = tmp_path / "store" / "chaos"
    with arena_in(tmp_path, 21) as arena:
        feed = Feed(tmp_path, 21)
        node = arena.start("time")
        try:
            with Consumer(arena.store, "totals", wait="120 seconds") as consumer:
                arena.wait_for_rows(consumer, node)
            node.kill()
            sent_before = feed.pieces
            wait_until(lambda: feed.pieces > sent_before + 2, "waiting for input that no node has read")
            feed.finish()
        finally:
            feed.leave()

        unread = last_frame(store, "sent")
        flip(store, unread)
        stopped = arena.start("time")
        assert stopped.ended() == 1, stopped.said()
        assert "SegmentCorrupt" in stopped.said()
        assert names(stopped.said(), "sent", unread), stopped.said()
        flip(store, unread)

        arena.run_to_the_end("time")
        expected = rows_in(tmp_path)
        check_rows("time", expected, feed.tables())
        check_digests(tmp_path, 21, feed.tables())

        damaged = last_frame(store, "totals")
        shutil.copy(store / damaged.segment, tmp_path / "copy.seg")
        flip(store, damaged)
        with Consumer(arena.store, "totals") as consumer, pytest.raises(SegmentCorrupt) as raised:
            read_all(consumer)
        assert names(str(raised.value), "totals", damaged)
        status, (found,) = holdfast_log("verify", arena.store, "totals")
        assert status == 1
        assert [each["frame"]["frame"] for each in found["damaged"]] == [msgspec.structs.asdict(damaged)]

        status, (mended,) = holdfast_log("repair", arena.store, "totals")
        assert (status, mended["mended"], len(mended["lost"])) == (1, 0, 1)
        status, _ = holdfast_log("verify", arena.store, "totals")
        assert status == 1, "what has no copy stays damaged"

        (store / damaged.segment).with_name("999999.seg").write_bytes((tmp_path / "copy.seg").read_bytes())
        status, (mended,) = holdfast_log("repair", arena.store, "totals")
        assert (status, mended["mended"], mended["lost"]) == (0, 1, [])
        status, _ = holdfast_log("verify", arena.store, "totals")
        assert status == 0
        with Consumer(arena.store, "totals") as consumer:
            assert sorted(map(repr, read_all(consumer))) == sorted(map(repr, expected))


def test_a_producer_goes_on_after_a_frame_of_its_stream_was_damaged(tmp_path: Path) -> None:
    """What is damaged stays where it is; what comes after it can be sent and read."""
    store = tmp_path / "store" / "chaos"
    with arena_in(tmp_path, 22) as arena:
        node = arena.start("count")
        with Producer(arena.store, "sent", wait="120 seconds") as producer:
            producer.send(piece(22, 0, 0))
        node.kill()
        flip(store, last_frame(store, "sent"))
        with Producer(arena.store, "sent") as producer:
            producer.send(piece(22, 0, 1))
        with Consumer(arena.store, "sent") as consumer, pytest.raises(SegmentCorrupt):
            read_all(consumer)
        status, (found,) = holdfast_log("verify", arena.store, "sent")
        assert (status, len(found["damaged"]), found["frames"]) == (1, 1, 2)


def read_all(consumer: Consumer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while (table := consumer.poll()) is not None:
        rows += table.to_pylist()
    return rows
