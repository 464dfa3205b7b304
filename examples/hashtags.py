"""Fifteen operators over the hashtags of tweets: a parser, four sliding counts of it, and ten that read other counts.

    python examples/hashtags.py                  # the pipeline
    python examples/hashtags.py tweets [SECONDS] # a thousand tweets a second for it; Spark is not needed there
    python examples/hashtags.py watch [STREAM]   # what comes out of an operator, `top` if none is named

Every operator is a named stream, so everything upstream of one is a query that can be read, sent on, or recovered by
itself. Columns are the same everywhere: a hashtag, a number, the end of the window, and the newest tweet's part in it.
"""

import datetime
import random
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf

STORE = "hashtags-store"
TWEET = "text string, at timestamp"
TAGS = [f"#{first}{second}" for first in "abcdefghijklmnopqrst" for second in range(25)]
WORDS = ["what", "a", "day", "to", "be", "out", "there", "with", "all", "of", "you", "again"]


def hashtags(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give a row for each hashtag of each tweet."""
    for batch in batches:
        words = pc.utf8_split_whitespace(batch["text"])
        rows, words = pc.list_parent_indices(words), pc.list_flatten(words)
        is_tag = pc.starts_with(words, "#")
        at = batch["at"].take(rows.filter(is_tag))
        yield pa.record_batch({"tag": words.filter(is_tag), "at": at})


def build(pipeline: hf.Pipeline) -> dict[str, hf.Stream]:
    """Declare the source and all operators; return them by name."""
    from pyspark.sql import functions as F

    made: dict[str, hf.Stream] = {}

    def count(name: str, size: str, slide: str) -> None:
        """Count each hashtag in sliding windows."""
        windows = tags.groupBy("tag", F.window("at", size, slide)).agg(F.count("*").alias("n"))
        made[name] = windows.select("tag", "n", "window.end", F.col("window.end").alias("newest")).named(name)

    def fold(name: str, inputs: str, every: str, keys: str, n: str) -> None:
        """Fold the windows of other operators that end within the same step, by some of their columns."""
        read = [made[one].withWatermark("end", "0 seconds") for one in inputs.split()]
        rows = read[0] if len(read) == 1 else read[0].union(read[1])
        grouped = rows.groupBy(*keys.split(), F.window("end", every))
        folded = grouped.agg(F.max("tag").alias("_tag"), F.expr(n).alias("_n"), F.max("newest").alias("newest"))
        tag, number = ("tag" if "tag" in keys.split() else "_tag"), ("n" if "n" in keys.split() else "_n")
        columns = [F.col(tag).alias("tag"), F.col(number).alias("n"), F.col("window.start").alias("end"), "newest"]
        made[name] = folded.select(*columns).named(name)

    tweets = pipeline.source("tweets", TWEET)
    made["tags"] = tweets.mapInArrow(hashtags, "tag string, at timestamp").named("tags")
    tags = made["tags"].withWatermark("at", "0 seconds")
    count("counts_5s", "5 seconds", "1 second")
    count("counts_10s", "10 seconds", "2 seconds")
    count("counts_4s", "4 seconds", "2 seconds")
    count("counts_20s", "20 seconds", "2 seconds")
    # How many hashtags had how many tweets, the busiest of them, and what the short and the long windows say together.
    fold("volume", "counts_5s", "1 second", "", "sum(n)")
    fold("agreed", "counts_5s counts_10s", "2 seconds", "tag", "min(n)")
    fold("spread", "counts_10s", "2 seconds", "n", "count(*)")
    fold("busiest", "counts_4s", "2 seconds", "", "max(n)")
    fold("rising", "counts_4s counts_20s", "2 seconds", "tag", "max(n)")
    # And what can be said of these.
    fold("peaks", "volume", "4 seconds", "", "max(n)")
    fold("agreed_spread", "agreed", "2 seconds", "n", "count(*)")
    fold("top", "spread", "2 seconds", "", "max(n)")
    fold("race", "busiest volume", "2 seconds", "", "max(n)")
    fold("rising_spread", "rising", "2 seconds", "n", "count(*)")
    return made


def tweets(count: int) -> pa.Table:
    """Return tweets of this moment, with none to three hashtags each; some hashtags are far more frequent."""
    texts = []
    for number in range(count):
        tags = [TAGS[int(random.paretovariate(0.7)) % len(TAGS)] for _ in range(number % 4)]
        chosen = random.sample(WORDS, 5) + tags
        texts.append(" ".join(chosen))
    now = datetime.datetime.now(datetime.UTC)
    return pa.table({"text": texts, "at": pa.array([now] * count, pa.timestamp("us", tz="UTC"))})


def send(seconds: str = "60") -> None:
    with hf.Producer(STORE, "tweets", wait="10 minutes") as producer:
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            producer.send(tweets(50))
            time.sleep(0.05)


def watch(stream: str = "top") -> None:
    for table in hf.Consumer(STORE, stream, wait="10 minutes"):
        for row in table.to_pylist():
            print(row, flush=True)


def run() -> None:
    hf.session("hashtags")
    pipeline = hf.Pipeline("hashtags", store=STORE, bucket="200 milliseconds")
    build(pipeline)
    pipeline.run()


if __name__ == "__main__":
    programs = {"tweets": send, "watch": watch}
    if len(sys.argv) > 1:
        programs[sys.argv[1]](*sys.argv[2:])
    else:
        run()
