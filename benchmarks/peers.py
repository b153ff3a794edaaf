"""Peers: calls that each live in a process of their own, with a memory, threads and libraries of their own.

A script that has them defines ``ready(*asked)``, which makes a call ready in the child. The child answers on a pipe.
"""

import gc
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np


class PeerError(Exception):
    """A child ended: the last line that it left."""


class Peer:
    """A call of another process. ``about``: the versions and BLAS that it has loaded."""

    def __init__(self, script, asked, threads):
        self._asked, self.about = json.dumps([script, asked, threads]), None
        self.begin()

    def begin(self):
        """A process; the one before has ended."""
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def wait(self):
        """Until it is ready."""
        self.about = self._answer()

    def seconds(self, repeats):
        return self._ask(repeats=repeats)

    def save(self, path):
        """Let it write what its call returns, as NumPy's arrays."""
        self._ask(save=str(path))
        with np.load(path) as found:
            return [found[name] for name in found.files]

    def end(self):
        with suppress(BrokenPipeError):  # what was asked of it when it had ended is still there
            self._process.stdin.close()
        self._process.kill()  # a child holds nothing that must be written
        self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def _ask(self, **what):
        with suppress(BrokenPipeError):
            print(json.dumps(what), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._said.seek(0)
            lines = self._said.read().strip().splitlines()
            raise PeerError(lines[-1] if lines else f"it ended with {code}")
        return json.loads(line)


@contextmanager
def started(script, asked, threads):
    """The peers that came to be ready, by name, and why the others did not; all at once, as loading takes time."""
    all_peers = {}
    try:
        for name, words in asked.items():
            all_peers[name] = Peer(script, words, threads)
        ready, left_out = {}, {}
        for name, peer in all_peers.items():
            try:
                peer.wait()
                ready[name] = peer
            except PeerError as failed:
                left_out[name] = str(failed)
        yield ready, left_out
    finally:
        for peer in all_peers.values():
            peer.end()


def anew(peers):
    """Each in another process: where its memory lies, and so its time, is another."""
    for peer in peers.values():
        peer.end()
        peer.begin()
    for name, peer in peers.items():
        try:
            peer.wait()
        except PeerError as failed:
            raise PeerError(f"{name} did not begin anew: {failed}") from None


# --- in the child ---------------------------------------------------------------------------------------------


def keep_pages():
    """As in a program that has freed an array of 16 MB: from then on glibc keeps the pages of smaller ones. Before, it
    may give those of results back after each call, and most of a short call's time goes to getting them again.
    """
    np.empty(2**24, np.uint8)


def serve(script, asked, threads):
    """Make the call ready, and answer until nobody asks. A call with a ``count`` is that many calls at once."""
    from common import use_threads
    from contenders import to_numpy
    from record import blas, versions

    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(what):
        print(json.dumps(what), file=pipe, flush=True)

    use_threads(threads)
    keep_pages()
    call = importlib.import_module(script).ready(*asked)
    use_threads(threads)  # of libraries that have come since
    call(), call()  # threads start, and compilers compile
    gc.collect()
    gc.freeze()  # the libraries' own objects need no second look
    answer({"versions": versions(), "blas": blas()})
    for line in sys.stdin:
        what = json.loads(line)
        if "repeats" in what:
            count = getattr(call, "count", 1)
            times = math.ceil(what["repeats"] / count)
            call()
            start = time.perf_counter()
            for _ in range(times):
                call()
            answer((time.perf_counter() - start) / times / count)
        else:
            np.savez(what["save"], *getattr(call, "compared", to_numpy)(call()))
            answer(None)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    serve(*json.loads(sys.argv[1]))
