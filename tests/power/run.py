"""Each mutant against the tests that reach its line, as far as its share of CPU seconds goes: first the richest test
of every function, then the next of each. The first tests are the same for all mutants: so the matrix has few holes.
"""

import json
import time

import numpy as np

from power.draw import functions, plant


def results(folder):
    """What was run so far, by mutant."""
    rows = {}
    for path in sorted(folder.glob("results*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["key"]] = row
    return rows


def rounds(reached, tests, cost):
    """The tests to run, function by function in turn, cheap ones first in each turn."""
    reached = set(map(int, reached))
    mine = [[i for i in items if i in reached] for items in tests.values()]
    for turn in range(max(map(len, mine), default=0)):
        yield from sorted((items[turn] for items in mine if turn < len(items)), key=cost)


def run(server, folder, mutants, reach, seconds, seed, part="1/1"):
    """``seconds`` of CPU for each mutant, and four times as many where no test notices it. What an earlier run has
    written is not run again.
    """
    tests, living = reach.order(np.random.default_rng(seed)), functions()
    assert reach.items == [item.nodeid for item in server.items], "other tests than those of the record"
    done = results(folder)
    mine, parts = map(int, part.split("/"))
    cost = reach.cost.__getitem__
    with (folder / f"results-{mine}.jsonl").open("a", encoding="utf-8") as out:
        for k, mutant in enumerate(mutants):
            if k % parts != mine - 1 or mutant.key in done:
                continue
            begun, reached = time.time(), reach.of(mutant)
            order = list(rounds(reached, tests, cost))
            rows = server.in_child(lambda mutant=mutant: plant(mutant, living), order, cost, seconds) if order else []
            if rows and not any(outcome in ("failed", "hung") for _, outcome, _ in rows):  # what survives is looked at
                rest = order[len(rows) :]
                rows += rest and server.in_child(lambda mutant=mutant: plant(mutant, living), rest, cost, 3 * seconds)
            row = {"key": mutant.key, **mutant.row(), "reached": len(reached)}
            if rows is None:
                row["not planted"] = True
            else:
                row["ran"] = [i for i, outcome, _ in rows if outcome != "skipped"]
                row["noticed"] = [i for i, outcome, _ in rows if outcome in ("failed", "hung")]
                row["hung"] = [i for i, outcome, _ in rows if outcome == "hung"]
                row["cpu"] = round(sum(cpu for *_, cpu in rows), 2)
            out.write(json.dumps(row) + "\n")
            out.flush()
            seen = len(row.get("noticed", ()))
            print(f"{k + 1}/{len(mutants)} {seen} of {len(row.get('ran', ()))} of {len(reached)} "
                  f"({row.get('cpu', 0)} s, {time.time() - begun:.0f} s): {mutant}", flush=True)  # fmt: skip
