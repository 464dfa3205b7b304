"""Fifteen stages: chains, forks, and streams that are read far behind where they are made."""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("fifteen", store="/data/store", shards=2)
left, middle, right = (pipeline.source(name, "k string, v bigint") for name in ("left", "middle", "right"))


def summed(stream: hf.Stream, name: str) -> hf.Stream:
    return stream.groupBy("k").agg(F.sum("v").alias("v")).named(name)


def swapped(stream: hf.Stream, name: str) -> hf.Stream:
    return stream.select(F.col("v").cast("string").alias("k"), F.length("k").cast("bigint").alias("v")).named(name)


a = summed(left, "a")
b = summed(middle, "b")
c = swapped(right, "c")
d = summed(a.union(b), "d")
e = summed(c, "e")
f = swapped(d, "f")
g = summed(f.union(e), "g")
h = summed(a, "h")
i = swapped(h, "i")
j = summed(i.union(right), "j")
k = summed(g.union(j), "k")
m = swapped(k, "m")
n = summed(m.union(b), "n")
o = summed(n, "o")
p = summed(o.union(left).union(c), "p")
for stream in (d, j, o, p):
    stream.to(hf.parquet(f"/data/out/{stream.name}"))
