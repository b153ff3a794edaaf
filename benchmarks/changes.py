"""What changed between two records of one script, beyond noise.

    python benchmarks/changes.py results/cpu_amd.json new.json

Cells are matched by all that says what they are. A figure changed where its quartiles and those of the other do not
touch, and the medians are more than 5 % apart; of one that was found once, the 5 % must do. Records of other machines,
threads, libraries or ways of measuring can be compared, too; then it says in which of these they differ, as that may be
the whole reason. Not those of gpu.py and gpu_compiled.py, whose cells are others.
"""

import argparse
import json
import math
from pathlib import Path

from common import geometric_mean, table

FIGURES = {"seconds", "refused", "rates", "errors", "error", "left out", "floor", "peak_bytes", "bytes", "rate"}
FIGURES |= {"low", "high", "allowed", "kept"}
LEAST = 0.05


def figures(record):
    """(what a cell is, whose figure) → (median, low, high), None where it was refused."""
    found = {}
    for cell in record["cells"]:
        key = tuple((name, str(value)) for name, value in sorted(cell.items()) if name not in FIGURES)
        seconds = cell.get("seconds")
        for name in ("peak_bytes", "rate"):
            if not isinstance(one := cell.get(name, {}), dict):
                found[key, name] = one and (one, cell.get("low", one), cell.get("high", one))
        if "method" in cell or "rate" in cell:
            continue
        if seconds is None or "median" in seconds:
            name = next(name for name in ("seconds", "bytes", "error") if name in cell)
            found[key, name] = (cell[name],) * 3 if name != "seconds" else seconds and quartiles(seconds)
        else:
            found |= {(key, name): one and quartiles(one) for name, one in seconds.items()}
    return found


def quartiles(one):
    return one["median"], one["low"], one["high"]


def changed(before, after):
    """after ÷ before, where that is more than noise; else None."""
    (old, low, high), (new, new_low, new_high) = before, after
    apart = new_low > high or new_high < low
    if not apart or not old:
        return None
    return new / old if abs(new / old - 1) > LEAST else None


def differences(a, b):
    """In what the two runs differ besides their figures."""
    for name in ("commit", "machine", "threads", "environment", "versions", "blas", "how"):
        if a.get(name) != b.get(name):
            yield name, a.get(name), b.get(name)


def compare(a, b):
    """Rows of what changed; the number of figures in both; what only one has."""
    ours, theirs = figures(a), figures(b)
    both = [key for key in ours if ours[key] and theirs.get(key) and ours[key][0] and theirs[key][0]]
    rows = [(name_of(key), ours[key][0], theirs[key][0], changed(ours[key], theirs[key])) for key in both]
    alone = [name_of(key) for key in {**ours, **theirs} if not (ours.get(key) and theirs.get(key))]
    ratios = {}
    for key in both:
        ratios.setdefault(key[1] if key[1] in FIGURES else "seconds", []).append(theirs[key][0] / ours[key][0])
    return [row for row in rows if row[-1]], ratios, alone


def name_of(key):
    what, name = key
    return " ".join([*(value for _, value in what), name])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    args = parser.parse_args(argv)
    a, b = (json.loads(path.read_text(encoding="utf-8")) for path in (args.before, args.after))
    if a["what"] != b["what"]:
        parser.error(f"these measured two things: {a['what']}; {b['what']}")
    if any({"flops", "registers"} & set(cell) for cell in a["cells"]):
        parser.error("records of gpu.py and of gpu_compiled.py are not compared")
    for name, one, other in differences(a, b):
        print(f"{name}: {one} → {other}")
    rows, ratios, alone = compare(a, b)
    of_all = ", ".join(f"{name} {geometric_mean(of):.3f}" for name, of in ratios.items())
    count = f"{len(rows)} of {sum(map(len, ratios.values()))}"
    print(f"\n{count} figures changed beyond noise; after ÷ before, all: {of_all}")
    table(["", "before", "after", "after ÷ before"], sorted(rows, key=lambda row: -abs(math.log(row[-1]))))
    if alone:
        print(f"\nRefused or missing in one of them, {len(alone)}:", *alone, sep="\n  ")


if __name__ == "__main__":
    main()
