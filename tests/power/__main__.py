"""``python -m power``: see README.md."""

import argparse
import hashlib
import importlib
import sys
from datetime import date
from itertools import zip_longest
from pathlib import Path

from power import draw, reach, run, server, told

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"


def digest(files):
    """Of every source and of the tests that are run."""
    of = hashlib.sha256(" ".join(map(str, files)).encode())
    for path in sorted([*draw.SRC.rglob("*.py"), *TESTS.rglob("*.py")]):
        if path.parent.name != "power":
            of.update(path.read_bytes())
    return of.hexdigest()[:12]


def reached(folder):
    if not (folder / "items.json").exists():
        sys.exit("nothing is recorded of these tests and sources as they stand: begin with `reach`, the same files")
    return reach.Reach(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["draw", "reach", "run", "table", "record"])
    parser.add_argument("tests", nargs="*", help="files of tests")
    parser.add_argument("--rooms", nargs="*", default=["core", "ops", "spines"], choices=draw.ROOMS)
    parser.add_argument("--mutants", type=int, default=60, help="of each room")
    parser.add_argument("--planted", action="store_true", help="also the mistakes of test_mutations in these rooms")
    parser.add_argument("--seconds", type=float, default=5.0, help="of CPU, for each mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="k/n: every n-th mutant, in a process of its own")
    asked = parser.parse_intermixed_args()
    files = [Path(name).resolve() for name in asked.tests]
    folder = ROOT / "_build" / "power" / digest(sorted(f.name for f in files))
    folder.mkdir(parents=True, exist_ok=True)
    rooms = []
    for room in asked.rooms if asked.do in ("draw", "run") else ():
        of_room, n = draw.drawn(room, asked.mutants, asked.seed)
        print(f"{room}: {len(of_room)} of {n} mutants")
        rooms.append(of_room)
    mutants = [m for turn in zip_longest(*rooms) for m in turn if m]  # by turns: whatever ends a run, rooms are even
    if asked.planted:
        sys.path[:0] = [
            str(folder) for folder in (*TESTS.iterdir(), ROOT / "book", ROOT / "book" / "_ext") if folder.is_dir()
        ]
        table = importlib.import_module("test_mutations").MISTAKES
        mutants += [m for m in draw.planted(table) if m.room in asked.rooms]
    if asked.do == "draw":
        print(*mutants, sep="\n")
    elif asked.do == "reach":
        server.serve(files, lambda s: reach.record(s, folder))
    elif asked.do == "run":
        known = reached(folder)
        server.serve(files, lambda s: run.run(s, folder, mutants, known, asked.seconds, asked.seed, asked.part))
    else:
        known, rows = reached(folder), run.results(folder)
        if asked.do == "table":
            print(*told.table(rows.values()), "", *told.survivors(rows.values()), sep="\n")
        else:
            said = {"date": str(date.today()), "seed": asked.seed, "seconds": asked.seconds, "sources": folder.name}
            told.record(Path(__file__).with_name("record.json"), known, rows, said)


if __name__ == "__main__":
    main()
