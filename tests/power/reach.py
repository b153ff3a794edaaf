"""Which test reaches which line, by coverage's contexts: one run of the tests, kept until a source changes."""

import json
import sqlite3

import coverage
import numpy as np
from coverage.numbits import numbits_to_nums

from power.draw import SRC


class Reach:
    """``items``, names of tests; ``cost`` of each, CPU seconds; ``right``, whether it passed; ``lines`` reached."""

    def __init__(self, folder):
        said = json.loads((folder / "items.json").read_text(encoding="utf-8"))
        self.items, self.cost = said["items"], np.array(said["cost"])
        self.right = np.array(said["right"])
        self.places = {tuple(place): k for k, place in enumerate(said["places"])}
        self.lines = np.unpackbits(np.load(folder / "lines.npy"), axis=1, count=len(self.places)).astype(bool)
        self.functions = [item.split("[")[0] for item in self.items]

    def of(self, mutant):
        """The tests that reach a mutant's line and pass without it."""
        for before in range(4):  # a line in the midst of a statement may have no code of its own
            at = [self.places.get((mutant.file, n)) for n in range(mutant.line - before, mutant.last + 1)]
            if at := [k for k in at if k is not None]:
                return np.flatnonzero(self.lines[:, at].any(axis=1) & self.right)
        return np.zeros(0, int)

    def order(self, rng):
        """The tests of each function, each adding the most lines a second to those before it; then by chance."""
        tests = {}
        for i, function in enumerate(self.functions):
            if self.right[i]:
                tests.setdefault(function, []).append(i)
        for function, mine in tests.items():
            mine = [mine[k] for k in rng.permutation(len(mine))]
            rows, cost, first = self.lines[mine], 0.01 + self.cost[mine], []
            new = rows.copy()
            for _ in range(min(len(mine), 30)):
                k = int(np.argmax(new.sum(axis=1) / cost))
                if not new[k].any():
                    break
                first.append(k)
                new &= ~rows[k]
            tests[function] = [mine[k] for k in first] + [mine[k] for k in range(len(mine)) if k not in set(first)]
        return tests


def record(server, folder):
    """Run every test once, in a child, and write what each reached."""
    data = folder / "coverage.sqlite"
    data.unlink(missing_ok=True)
    cov = coverage.Coverage(data_file=str(data), source=[str(SRC)], config_file=False, messages=False)

    def begin():
        cov.start()
        one = server.one

        def recorded(i):
            server.forget()  # what one test has put into a cache, the next would not reach
            cov.switch_context(str(i))
            result = one(i)
            if i == len(server.items) - 1:
                cov.stop()
                cov.save()
            return result

        server.one = recorded
        return True

    n = len(server.items)
    rows = server.in_child(begin, range(n), lambda i: 3.0, float("inf"))
    cost, right = [0.0] * n, [False] * n
    for i, outcome, cpu in rows:
        cost[i], right[i] = cpu, outcome == "passed"
    reached, places = {}, {}
    with sqlite3.connect(data) as database:
        query = "select context, path, numbits from line_bits join context on context_id = context.id"
        for context, path, bits in database.execute(f"{query} join file on file_id = file.id"):
            if context:
                file = path[len(str(SRC)) + 1 :]
                at = [places.setdefault((file, n), len(places)) for n in numbits_to_nums(bits)]
                reached.setdefault(int(context), []).extend(at)
    lines = np.zeros((n, len(places)), bool)
    for i, at in reached.items():
        lines[i, at] = True
    np.save(folder / "lines.npy", np.packbits(lines, axis=1))
    names = [item.nodeid for item in server.items]
    said = {"items": names, "cost": cost, "right": right, "places": list(places)}
    (folder / "items.json").write_text(json.dumps(said), encoding="utf-8")
    failed = [names[i] for i, outcome, _ in rows if outcome not in ("passed", "skipped")]
    print(f"{n} tests, {sum(cost):.0f} CPU seconds, {len(places)} lines; failed or hung without a mutant: {failed}")
