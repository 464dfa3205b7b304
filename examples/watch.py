"""Print each average as soon as it is final; Spark is not needed. Run it again, and it goes on where it was.

python examples/watch.py
"""

import holdfast as hf


def main() -> None:
    with hf.Consumer("retail-store", "averages", name="watcher", wait="10 minutes") as averages:
        for table in averages:
            for row in table.to_pylist():
                window = f"{row['window']['start']:%H:%M:%S} to {row['window']['end']:%H:%M:%S}"
                print(f"{window}  {row['item']:8} {row['average']:6.2f}  from {row['sales']} sales", flush=True)
            # From now on these rows count as seen, whatever happens to this program.
            averages.commit()


if __name__ == "__main__":
    main()
