"""How often ``diagnose`` finds a mistake where there is none: right implementations, 1,000 random configurations.

    python benchmarks/diagnose_false_alarms.py [how many] [seed of the first]

Each configuration is one of the implementations of tests/attentions/right.py in one of its dtypes, with sizes and
numbers from a seed of its own, and runs the whole battery. Prints every false alarm, and the counts as JSON on the
last line.
"""

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from attentions.right import configurations
from tqdm import tqdm

import attnbook as ab


def main(count=1000, first=0):
    compared, alarms, of = 0, [], Counter()
    for name, fn, library, dtype, seed in (bar := tqdm(configurations(count), total=count, unit="configuration")):
        report = ab.diagnose(fn, library=library, dtype=dtype, seed=first + seed)
        compared += len(report.compared)
        of[name] += 1
        if not report.ok:
            alarms.append([name, dtype, first + seed])
            bar.write(f"{name}, {dtype}, seed {first + seed}\n{report}")
        bar.set_postfix_str(f"{len(alarms)} false alarms")
    print(
        json.dumps({"configurations": count, "cases": compared, "false alarms": alarms, "of": of}, ensure_ascii=False)
    )
    return len(alarms)


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
