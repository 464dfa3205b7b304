"""Both sides have to be given the same tuples, whole and at the same rhythm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bench import words
from bench.data import prepare, tuples_of_file
from bench.sender import SCHEMA, FolderSender, Rhythm, batches, send_at, stamped


def test_a_dataset_is_the_same_each_time_and_made_once(tmp_path: Path) -> None:
    first = prepare(tmp_path / "a", 2_500, 100, tuples_per_file=1_000)
    again = prepare(tmp_path / "b", 2_500, 100, tuples_per_file=1_000)
    assert first.files == 3
    assert parquet.read_table(first.folder) == parquet.read_table(again.folder)
    assert parquet.read_table(first.folder).num_rows == 2_500
    made_ns = first.folder.stat().st_mtime_ns
    assert prepare(tmp_path / "a", 2_500, 100, tuples_per_file=1_000) == first
    assert first.folder.stat().st_mtime_ns == made_ns
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == [first.folder.name]


def test_keys_are_uniform_over_all_keys() -> None:
    key = tuples_of_file(0, 100_000, 50)["key"].to_numpy()
    assert set(key.tolist()) == set(range(50))


def test_every_tuple_of_a_rhythm_is_sent_with_its_time() -> None:
    sent = []
    outcome = send_at(Rhythm(tuples_per_second=1_000, batches_per_second=100, keys=5), sent.append, seconds=0.05)
    assert outcome["tuples_sent"] == 50
    assert [table.num_rows for table in sent] == [10] * 5
    times = [table["sent_us"][0].as_py() for table in sent]
    assert times == sorted(times)
    assert all(set(table["sent_us"].to_pylist()) == {time} for table, time in zip(sent, times, strict=True))


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_a_file_in_the_folder_is_whole_and_names_go_on(tmp_path: Path, file_format: str) -> None:
    table = stamped(next(batches(Rhythm(100, 10, 3))), 5)
    folder = tmp_path / "source"
    FolderSender(folder, file_format).open().send(table)
    FolderSender(folder, file_format).open().send(table)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"00000000{number}.{file_format}" for number in (0, 1)]
    if file_format == "parquet":
        assert parquet.read_table(files[0]).cast(SCHEMA) == table
    else:
        assert len(files[0].read_text().splitlines()) == table.num_rows


def test_words_are_the_same_each_time_in_the_order_of_their_event_times_and_few_come_often(tmp_path: Path) -> None:
    folder = words.prepare(tmp_path / "a", 3_000)
    table = parquet.read_table(folder)
    assert table.equals(parquet.read_table(words.prepare(tmp_path / "b", 3_000)))
    assert table.schema.equals(words.SCHEMA) and table.num_rows == 3_000
    times = table["at"].cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert len(set(words.vocabulary().to_pylist())) == words.VOCABULARY
    often = max(Counter(table["word"].to_pylist()).values())
    assert 100 < often < 1_000


def test_a_flow_of_words_has_the_time_of_its_sending_as_event_time() -> None:
    sent: list[pa.Table] = []
    rhythm = Rhythm(tuples_per_second=1_000, batches_per_second=100, keys=1)
    send_at(rhythm, sent.append, 0.03, words.flow(rhythm), words.at_once)
    assert [table.num_rows for table in sent] == [10] * 3
    assert all(len(set(table["at"].to_pylist())) == 1 for table in sent)
    ends = words.ends_us(sent[0]["at"], 5)
    assert ends.tolist() == [time + 5 for time in sent[0]["at"].cast(pa.int64()).to_pylist()]
