"""A record as benchmarks/gpu.py writes it, of invented figures: for the tests of what is made from it."""

from attnbook.book.figures.gpu import LOOKS


def invented(lengths=(512, 1024, 2048, 4096, 8192, 16384), names=tuple(LOOKS)):
    """Every contender takes a time of its own, those later in the list more; dense ones end where memory would."""
    cells = []
    for n in lengths:
        B, H, d = 16384 // n, 16, 128
        here = [name for name in names if n < 16384 or not name.endswith(("dense", "math"))]
        forward = 2 * B * H * n * n * d
        flops = {"forward": forward, "backward": 5 * forward // 2, "both": 7 * forward // 2}
        seconds = {
            which: {
                name: dict.fromkeys(("median", "low", "high"), of * (names.index(name) + 2) / 1e15) | {"runs": 9}
                for name in here
            }
            for which, of in flops.items()
        }
        linear, square = B * H * n * d * 2, B * H * n * n * 4
        held = {name: linear + (square if name.endswith(("dense", "math", "eager")) else 0) for name in here}
        cells.append(
            {
                "shape": [B, H, n, d],
                "dtype": "bfloat16",
                "causal": True,
                "flops": flops,
                "seconds": seconds,
                "peak_bytes": {"forward": held, "both": {name: 3 * most for name, most in held.items()}},
                "errors": {name: {"O": 0.9, "dQ": 1.0, "dK": 1.1, "dV": 1.2} for name in here},
                "errors of eager": {"O": 1e-3, "dQ": 2e-3, "dK": 2e-3, "dV": 1e-3},
                "left out": {name: "out of memory" for name in names if name not in here},
            }
        )
    about = {"name": "Invented GPU", "driver": "1.2", "cuda": "3.4", "memory": "5 GiB", "capability": "6.7"}
    return {
        "what": "forward and backward on a GPU, seconds",
        "command": "python benchmarks/gpu.py",
        "date": "2000-01-01",
        "machine": {"cpu": "none", "cores": 1, "memory": "1 GiB"},
        "versions": {"python": "3", "numpy": "2", "attnbook": "0", "torch": "2"},
        "gpu": about,
        "rates": {"matrix": {"bfloat16": 6e14}, "copy": 3e12},
        "skipped": [],
        "stopped": None,
        "cells": cells,
    }
