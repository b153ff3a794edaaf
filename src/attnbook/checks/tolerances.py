"""How far two right answers may lie apart. The only place where a tolerance is written down."""

EXACT = 1e-12
"""For two ways to compute one thing in float64, autograd included. Rounding only, relative to the largest entry."""

STEP = 1e-5
"""The step of a central difference, near the cube root of float64's epsilon, where its two errors are equal."""

DIFFERENCES = 1e-8
"""What a central difference of that step may miss, relative to the values and changes that it adds up."""

LOW_PRECISION = {"output": 2, "gradient": 3}
"""How many times a plain implementation's error in the same dtype, both against float64 (flash-attention's rule)."""

DIAGNOSE = {"float64": 16, "float32": 16, "float16": 4, "bfloat16": 4}
"""How many roundings of its dtype a right function may be off, relative to the sizes of what it adds up."""

DIAGNOSE_MEAN = 1.0
"""In 16 bits, also how many in the mean, relative to the mean size of what is added up; right ones stay below 0.5."""
