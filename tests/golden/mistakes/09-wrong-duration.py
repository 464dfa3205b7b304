"""A duration that is not written as Spark has it

Durations are PySpark's intervals everywhere: a number, a blank, and a unit written out.

    holdfast run program.py
"""

import holdfast as hf

# The mistake:
hf.Pipeline("retail", store="retail-store", bucket="200ms")
