"""Ask ``diagnose`` about every cause of the atlas, and record its answers in ``book/atlas.json``: ``make atlas``."""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1]))

from evidence.atlas import CAUSES
from evidence.atlas.recorded import today

RECORD = Path(__file__).parents[1] / "atlas.json"

if __name__ == "__main__":
    began, found = time.perf_counter(), {}
    for slug, cause in (bar := tqdm(CAUSES.items(), unit="cause")):
        bar.set_postfix_str(slug)
        answer, names = today(cause)
        found[slug] = {"answer": answer, "names": list(names)}
    known = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": "make atlas",
        "seconds": round(time.perf_counter() - began, 1),
        "causes": found,
    }
    RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
