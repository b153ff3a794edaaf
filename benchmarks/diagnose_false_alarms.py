"""How often ``diagnose`` finds a mistake where there is none: right implementations, 1,000 random configurations.

    python benchmarks/diagnose_false_alarms.py [how many] [seed of the first]

Each configuration is one of the implementations of tests/right_ones.py in one of its dtypes, with sizes and numbers
from a seed of its own, and runs the whole battery. Prints every false alarm, and the counts as JSON on the last line.
"""

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from right_ones import configurations

import attnbook as ab


def main(count=1000, first=0):
    compared, alarms, of = 0, [], Counter()
    for i, (name, fn, library, dtype, seed) in enumerate(configurations(count), start=1):
        report = ab.diagnose(fn, library=library, dtype=dtype, seed=first + seed)
        compared += len(report.compared)
        of[name] += 1
        if not report.ok:
            alarms.append([name, dtype, first + seed])
            print(f"\n{name}, {dtype}, seed {first + seed}\n{report}")
        if i % 20 == 0 or i == count:
            print(f"\r{i} of {count} configurations, {len(alarms)} false alarms", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(
        json.dumps({"configurations": count, "cases": compared, "false alarms": alarms, "of": of}, ensure_ascii=False)
    )
    return len(alarms)


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
