"""Which commit the sources are of, and when it was made."""

import subprocess
from shutil import which

from equations import ROOT


def commit():
    """Such as ("1a2b3c4 of 2026-11-20", 1795000000); ("", 0) where there is no git to ask."""
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%h of %cs|%ct"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() if which("git") else ""
    name, _, seconds = told.partition("|")
    return name, int(seconds or 0)
