"""From what was noticed: a smallest set of tests that notices as much, and the table by room."""

import json
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

from power.draw import ROOMS, room_of

LEFT = "by a hang", "not reached", "survived all", "some not run", "not planted"
PROMISES = Path(__file__).with_name("promises.txt")


def promised(function):
    """Whether a test is one of a public promise: it stays, whatever it notices."""
    lines = PROMISES.read_text(encoding="utf-8").splitlines()
    return any(fnmatch(Path(function).name, line.split("#")[0].strip()) for line in lines if line.strip())


def smallest(noticed, cost, first=()):
    """Greedy, from ``noticed``, {mutant: tests}: after ``first``, always what notices most anew for each second."""
    of = defaultdict(set)
    for mutant, tests in noticed.items():
        for test in tests:
            of[test].add(mutant)
    taken = list(first) + sorted({next(iter(tests)) for tests in noticed.values() if len(tests) == 1} - set(first))
    left = {m for m, tests in noticed.items() if tests} - {m for test in taken for m in of[test]}
    while left:
        best = max(of, key=lambda test: len(of[test] & left) / (0.005 + cost[test]))
        taken.append(best)
        left -= of[best]
    return taken


def by_function(reach, rows):
    """Of each function of tests its seconds; and for every mutant the functions that ran, and those that noticed."""
    cost = defaultdict(float)
    for function, seconds in zip(reach.functions, reach.cost, strict=True):
        cost[function] += seconds
    ran = {k: {reach.functions[i] for i in row.get("ran", ())} for k, row in rows.items()}
    noticed = {k: {reach.functions[i] for i in row.get("noticed", ())} for k, row in rows.items()}
    return cost, ran, noticed


def table(rows):
    """Lines: for each room how many mutants were run, noticed, and not."""
    yield f"{'room':12}" + "".join(f"{head:>13}" for head in ("drawn", "noticed", *LEFT))
    for room in [*ROOMS, "all"]:
        mine = [row for row in rows if room in ("all", room_of(row["file"]))]
        if not mine:
            continue
        away = sum("not planted" in row for row in mine)
        rest = [row for row in mine if "not planted" not in row and not row["noticed"]]
        whole = [row for row in rest if row["reached"] and len(row["ran"]) == row["reached"]]
        unreached = sum(not row["reached"] for row in rest)
        hung = sum(bool(row.get("hung")) and row["hung"] == row["noticed"] for row in mine)
        left = hung, unreached, len(whole), len(rest) - unreached - len(whole), away
        yield f"{room:12}" + "".join(f"{n:13}" for n in (len(mine), len(mine) - away - len(rest), *left))


def survivors(rows):
    for row in rows:
        if not row.get("noticed"):
            ran = "not planted" if "not planted" in row else f"{len(row['ran'])} of {row['reached']} tests"
            place = f"{row['file']}:{row['line']} {row['function']} [{row['kind']}]"
            yield f"{place} {row['before']} -> {row['after']} ({ran})"


def choose(reach, rows):
    """Lines: which functions of tests are enough, and which items of them; what each other costs."""
    cost, ran, noticed = by_function(reach, rows)
    keep = [f for f in cost if promised(f)]
    functions = smallest(noticed, cost, keep)
    items = smallest({k: set(row.get("noticed", ())) for k, row in rows.items()}, dict(enumerate(reach.cost)))
    enough = defaultdict(list)
    for i in items:
        enough[reach.functions[i]].append(i)
    count = defaultdict(int)
    for function in reach.functions:
        count[function] += 1
    yield f"{len(functions)} of {len(cost)} functions notice all ({len(keep)} of them are promised), or"
    seconds = sum(reach.cost[i] for i in items), sum(reach.cost)
    yield f"{len(items)} of {len(reach.items)} items ({seconds[0]:.1f} of {seconds[1]:.0f} s)"
    yield f"{'items':>5} {'CPU s':>7} {'tried':>5} {'noticed':>7} {'alone':>5}"
    for function in sorted(cost, key=cost.get, reverse=True):
        tried = sum(function in fs for fs in ran.values())
        seen = [fs for fs in noticed.values() if function in fs]
        alone = sum(len(fs) == 1 for fs in seen)
        why = "promised" if function in keep else "chosen" if function in functions else "-"
        mine = [reach.items[i].partition("[")[2].rstrip("]") for i in enough[function]]
        head = f"{count[function]:5} {cost[function]:7.2f} {tried:5} {len(seen):7} {alone:5} {why:8}"
        yield f"{head} {function.removeprefix('tests/')} {mine[:12] or ''}"


def record(path, reach, rows, said):
    """A short record: what was drawn, and which functions of tests noticed it."""
    cost, _, noticed = by_function(reach, rows)
    names = sorted(cost)
    at = {name: k for k, name in enumerate(names)}
    mutants = [
        [row[key] for key in ("file", "line", "function", "kind", "before", "after", "reached")]
        + [len(row.get("ran", ())), sorted(at[f] for f in noticed[key]), bool(row.get("hung"))]
        for key, row in rows.items()
    ]
    lines = ",\n".join(json.dumps(m, ensure_ascii=False) for m in mutants)
    functions = ",\n".join(json.dumps([name, round(cost[name], 2)]) for name in names)
    head = json.dumps(said)
    path.write_text(f'{{"said": {head},\n"functions": [\n{functions}],\n"mutants": [\n{lines}]}}\n', encoding="utf-8")
