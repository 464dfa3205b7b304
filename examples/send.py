"""Two shops that sell for a minute; Spark is not needed. `north` sends rows, `south` drops Parquet files into a folder.

    python examples/send.py [SECONDS]

What `send` has returned from is durable, whether the pipeline runs or not.
"""

import datetime
import itertools
import random
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf

ITEMS = ("apple", "bread", "coffee", "rice")
SALE = pa.schema([("item", pa.string()), ("price", pa.float64()), ("sold_at", pa.timestamp("us", tz="UTC"))])


def sales(count: int) -> list[dict[str, object]]:
    """Return sales of this moment."""
    now = datetime.datetime.now(datetime.UTC)
    prices = [random.randint(50, 500) / 100 for _ in range(count)]
    return [{"item": random.choice(ITEMS), "price": price, "sold_at": now} for price in prices]


def drop(folder: Path, number: int) -> None:
    """Put a file where the pipeline looks, under its final name only when it is whole."""
    unfinished = folder / f".{number}.tmp"
    pq.write_table(pa.Table.from_pylist(sales(5), schema=SALE), unfinished)
    unfinished.rename(folder / f"{time.time_ns()}.parquet")


def main(seconds: str = "60") -> None:
    folder = Path("in/south")
    folder.mkdir(parents=True, exist_ok=True)
    # The pipeline may be started after this program: the producer waits for it.
    with hf.Producer("retail-store", "north", wait="10 minutes") as north:
        end = time.monotonic() + float(seconds)
        for number in itertools.count():
            sent = north.send(sales(20))
            drop(folder, number)
            print(f"batch {sent.sequence}: {sent.rows} rows are in the log")
            if time.monotonic() > end:
                break
            time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
