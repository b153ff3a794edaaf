"""``make proofs``: let the prover read every proof, and record in book/proofs.json what each assumes and rests on.

Needs Coq 8.16 and Coquelicot (in Debian: ``apt-get install coq libcoq-coquelicot``). Nothing else in the project does.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "_ext"))

import proofs

WORK = proofs.ROOT / "_build" / "proofs"
OLDEST = (8, 16)
JOBS = 2
QUIET = ["-w", "-ambiguous-paths"]  # Coquelicot's own


class ProofError(Exception):
    """What the prover said against a proof."""


def why_not(path=None):
    """Why the proofs cannot be run here, in a line, or None where they can."""
    coqc = shutil.which("coqc", path=path)
    if coqc is None:
        return "the proofs need Coq, which is not installed: apt-get install coq libcoq-coquelicot"
    version = re.search(r"version (\d+)\.(\d+)", _run([coqc, "--version"]).stdout)
    if version is None or tuple(map(int, version.groups())) < OLDEST:
        came = ".".join(version.groups()) if version else "a version without a number"
        return f"the proofs need Coq {'.'.join(map(str, OLDEST))} or later, got {came}"
    if not (Path(_run([coqc, "-where"]).stdout.strip()) / "user-contrib" / "Coquelicot").is_dir():
        return "the proofs need Coquelicot, which Coq does not find: apt-get install libcoq-coquelicot"
    return None


def read(folder=proofs.PROOFS, work=WORK, only=()):
    """Let the prover read every proof in ``folder``, or ``only`` these files and what they rest on."""
    work.mkdir(parents=True, exist_ok=True)
    names = proofs.files(folder)
    for old in work.glob("*.v"):
        if old.stem not in names:
            old.unlink()
    for name in names:  # what has not changed keeps its date, and is not compiled again
        source, copy = folder / f"{name}.v", work / f"{name}.v"
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.write_bytes(source.read_bytes())
    arguments = ["-Q", ".", "attnbook", "-arg", " ".join(QUIET), *(f"{name}.v" for name in names)]
    told(["coq_makefile", *arguments, "-o", "Makefile"], work)
    told(["make", "--no-print-directory", "-k", f"-j{JOBS}", *(f"{name}.vo" for name in only)], work)


def prove(folder=proofs.PROOFS, work=WORK, each=True):
    """What the prover says of every proof in ``folder``. :class:`ProofError` where it takes one for wrong.

    What a theorem assumes takes a second to find: without ``each``, what all of them together assume is said instead.
    """
    names, started = proofs.files(folder), time.monotonic()
    read(folder, work)
    seconds = time.monotonic() - started
    asked = [[name] for name in proofs.theorems(folder)] if each else [list(proofs.theorems(folder))]
    axioms, assumed = assumptions(names, asked, work)
    return {
        "prover": _run(["coqc", "--version"]).stdout.split("version ")[1].split()[0],
        "seconds": round(seconds),
        "sources": proofs.digest(folder),
        "lines": sum(len((folder / f"{name}.v").read_text(encoding="utf-8").splitlines()) for name in names),
        "axioms": axioms,
        "theorems": assumed,
        "uses": {item: " ".join(of) for item, of in uses(names, work).items()},
    }


def assumptions(names, groups, work):
    """The axioms by name with what they say, and which each group of theorems assumes: ``Print Assumptions``."""
    (work / "asked").mkdir(exist_ok=True)

    def answers(part):
        asked = [f"From attnbook Require Import {' '.join(names)}."]
        for i, group in enumerate(groups[part::JOBS]):
            asked += [
                f"Definition asked{i} := ({', '.join(f'@{name}' for name in group)}).",
                f"Print Assumptions asked{i}.",
            ]
        path = work / "asked" / f"assumptions{part}.v"
        path.write_text("\n".join(asked) + "\n", encoding="utf-8")
        answer = told(["coqc", *QUIET, "-Q", ".", "attnbook", str(path)], work)
        return re.split(r"^(?=Axioms:|Closed under)", answer, flags=re.MULTILINE)[1:]

    with ThreadPoolExecutor(JOBS) as pool:
        by_part = list(pool.map(answers, range(JOBS)))
    axioms, assumed = {}, {}
    for i, group in enumerate(groups):
        answer = by_part[i % JOBS][i // JOBS]
        found = re.findall(r"^([\w.']+)\s*:\s*(.*?)(?=^\S|\Z)", answer.partition("\n")[2], re.MULTILINE | re.DOTALL)
        axioms |= {axiom: " ".join(says.split()) for axiom, says in found}
        assumed[group[0]] = " ".join(sorted(axiom for axiom, _ in found))
    return dict(sorted(axioms.items())), assumed


def uses(names, work):
    """Which lemmas and theorems of ours, as file.name, stand in each one's statement or proof: from Coq's own index."""
    rests = {}
    for name in names:
        inside = None
        for line in (work / f"{name}.glob").read_text(encoding="utf-8").splitlines():
            if made := re.match(r"(prf|def) \d+:\d+ \S+ (\S+)$", line):
                inside = f"{name}.{made[2]}" if made[1] == "prf" else None
                if inside:
                    rests.setdefault(inside, [])
            elif inside and (used := re.match(r"R\d+:\d+ attnbook\.(\w+) \S+ (\S+) thm$", line)):
                other = f"{used[1]}.{used[2]}"
                if other not in (inside, *rests[inside]):
                    rests[inside].append(other)
    return rests


def _run(command, cwd=None):
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)


def told(command, cwd):
    """What a command printed; :class:`ProofError` with what it said where it failed."""
    done = _run(command, cwd)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(("COQ", "make"))]
        raise ProofError("\n".join(said) or " ".join(command))
    return done.stdout


def main():
    """Run the proofs and write the record."""
    if reason := why_not():
        sys.exit(reason)
    shutil.rmtree(WORK, ignore_errors=True)  # so that the seconds are those of all
    try:
        found = prove()
    except (ProofError, ValueError) as refused:
        sys.exit(str(refused))
    proofs.RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    labels = len(proofs.by_label())
    print(
        f"{len(found['theorems'])} theorems in {found['lines']} lines hold, {labels} labelled formulas among them, "
        f"by Coq {found['prover']} in {found['seconds']} s. They assume: {', '.join(found['axioms'])}."
    )


if __name__ == "__main__":
    main()
