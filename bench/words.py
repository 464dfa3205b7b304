"""The words that both sides of `bench.topology` count: Parquet files, and a steady flow; and the queries' common form.

Invariants:
    * The same number of words gives the same files on every machine, and files are in the order of their event times.
    * Words are drawn by Zipf's law, as words of a text are: few come often, most are rare.
    * A word that is sent has the time of its sending as its event time.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from bench.sender import FolderSender, Rhythm, Send, send_at

SCHEMA: Final = pa.schema([pa.field("word", pa.string()), pa.field("at", pa.timestamp("us", tz="UTC"))])
SPARK_SCHEMA: Final = "word string, at timestamp"

VOCABULARY: Final = 100_000
WORDS_PER_FILE: Final = 500_000
WORDS_PER_SECOND: Final = 20_000
"""Of event time, in the files."""
START_US: Final = 1_760_000_040_000_000
"""A whole minute."""
LETTERS: Final = "etaoinshrdlu"
SEED: Final = 21


@cache
def vocabulary() -> pa.Array:
    """Return all words, the most frequent first; rarer ones are longer, as in a language."""
    words = []
    for number in range(VOCABULARY):
        letters = []
        rest = number
        while True:
            rest, letter = divmod(rest, len(LETTERS))
            letters.append(LETTERS[letter])
            if rest == 0:
                break
            rest -= 1
        words.append("".join(letters))
    return pa.array(words, pa.string())


@cache
def _frequencies() -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    return np.asarray(np.cumsum(weights) / weights.sum())


def draw(generator: np.random.Generator, count: int) -> pa.Array:
    """Return words by their frequency."""
    return vocabulary().take(pa.array(np.searchsorted(_frequencies(), generator.random(count))))


def words_of_file(number: int, words: int) -> pa.Table:
    """Return the words of one file, in the order of their event times."""
    first = number * WORDS_PER_FILE
    times = START_US + (first + np.arange(words)) * 1_000_000 // WORDS_PER_SECOND
    word = draw(np.random.default_rng([SEED, number]), words)
    return pa.table([word, pa.array(times, SCHEMA.field("at").type)], schema=SCHEMA)


def prepare(work: Path, words: int) -> Path:
    """Return the folder with that many words below `work`, made when it is not there."""
    folder = work / f"words-{words}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".generating-", dir=folder.parent))
        for number, first in enumerate(range(0, words, WORDS_PER_FILE)):
            table = words_of_file(number, min(WORDS_PER_FILE, words - first))
            parquet.write_table(table, beside / f"part-{number:05d}.parquet")
        beside.chmod(0o755)
        try:
            beside.rename(folder)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            if not folder.exists():
                raise
    return folder


def flow(rhythm: Rhythm) -> Any:
    """Yield batches of words without end, their times still to be written."""
    generator = np.random.default_rng(rhythm.tuples_per_second)
    unsent = pa.array(np.zeros(rhythm.tuples_per_batch, np.int64), SCHEMA.field("at").type)
    while True:
        yield pa.table([draw(generator, rhythm.tuples_per_batch), unsent], schema=SCHEMA)


def at_once(table: pa.Table, sent_us: int) -> pa.Table:
    """Return the words with the time at which they are sent."""
    return table.set_column(1, SCHEMA.field(1), pa.array(np.full(table.num_rows, sent_us), SCHEMA.field(1).type))


def send_to_folder(folder: str, tuples_per_second: int, batches_per_second: int, seconds: float) -> dict[str, Any]:
    """Be the sending process of a peer."""
    return _send(FolderSender(Path(folder), "parquet").open().send, tuples_per_second, batches_per_second, seconds)


def send_to_stream(
    store: str, stream: str, tuples_per_second: int, batches_per_second: int, seconds: float
) -> dict[str, Any]:
    """Be the sending process of holdfast's side."""
    import holdfast as hf

    with hf.Producer(store, stream) as producer:
        return _send(producer.send, tuples_per_second, batches_per_second, seconds)


def _send(send: Send, tuples_per_second: int, batches_per_second: int, seconds: float) -> dict[str, Any]:
    rhythm = Rhythm(tuples_per_second, batches_per_second, VOCABULARY)
    return send_at(rhythm, send, seconds, flow(rhythm), at_once)


def ends_us(starts: pa.ChunkedArray | pa.Array, size_us: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return when windows ended that began then: what their results are awaited from."""
    return np.asarray(starts.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()) + size_us
