"""A Spark Connect session

The driver has to be here: a Connect client has no access to the tasks' own places.

    SPARK_REMOTE=sc://cluster holdfast run program.py
"""

import holdfast as hf

# The mistake:
hf.session("retail")
