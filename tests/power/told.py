"""From what was noticed: the table by room, what nobody noticed, and a record of it."""

import json
from collections import defaultdict

from power.draw import ROOMS, room_of

LEFT = "by a hang", "not reached", "survived all", "some not run", "not planted"


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


def record(path, reach, rows, said):
    """A short record: what was drawn, and which functions of tests noticed it."""
    cost = defaultdict(float)
    for function, seconds in zip(reach.functions, reach.cost, strict=True):
        cost[function] += seconds
    noticed = {key: {reach.functions[i] for i in row.get("noticed", ())} for key, row in rows.items()}
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
