"""A machine without Java

Spark runs on Java. A Producer or a Consumer does without.

    holdfast run program.py
"""

import holdfast as hf

# The mistake:
hf.session("retail")
