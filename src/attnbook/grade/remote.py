"""A submission in a process of its own, as a function that can be called. Chapter: :doc:`/chapters/08_checking`.

What it returns are plain arrays, read without pickle, and judged on this side: nothing that it changes in its own
process, be it ``numpy.allclose`` or this package, changes what is said of it.
"""

import builtins
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np

from attnbook.grade.wire import BrokenError, layout, receive, send

NAMESPACES = True
"""Whether a submission gets namespaces of its own, where the system lets it."""

PRINTED = 2000
"""Characters that are kept of what a submission prints."""

MESSAGE = 220
"""Characters that are kept of what an exception says."""

KEPT_FILES = 4 << 20
"""Bytes of the largest file that goes into a submission's copy of its folder."""


class EndedError(RuntimeError):
    """The submission's process has ended: there are no more answers."""


class ForkServer:
    """The process that submissions are forked from; a context manager. ``libraries`` are imported in it once."""

    def __init__(self, libraries=()):
        self.libraries, self.process = tuple(libraries), None

    def __enter__(self):
        if not hasattr(os, "fork"):
            raise OSError("grading needs a system with fork: Linux or macOS")
        return self

    def __exit__(self, *error):
        if self.process is not None:
            self.control.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def start(self, job, files):
        """Fork a submission; a new server where the last one is gone."""
        for _ in range(2):
            if self.process is None or self.process.poll() is not None:
                self._open()
            try:
                socket.send_fds(self.control, [json.dumps(job).encode()], files)
            except OSError:
                self.process.kill()
                self.process.wait()
            else:
                return
        raise OSError("the process that submissions are forked from does not start")

    def _open(self):
        self.control, other = socket.socketpair()
        home = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        one = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "ATTNBOOK")}
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnbook.grade.forkserver", str(other.fileno()), *self.libraries],
                pass_fds=[other.fileno()], env=os.environ | one | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL,
            )  # fmt: skip


class Submission:
    """A file in its own process, in a copy of its folder; a context manager, to be entered before it is called.

    ``options`` are the names of the options that its function takes, None for any. ``end`` says in words why it is
    there no more, "" while it is. ``notes`` is what is worth knowing of it: what it printed, what it shares.
    """

    def __init__(self, server, path, form, names, *, limit, memory, alone):
        self.server, self.path, self.form, self.names = server, Path(path), form, names
        self.limit, self.memory, self.alone = limit, memory, alone
        self.options, self.end, self.shared, self.printed, self.lines = None, "", {}, "", 0
        self.lock, self.nonce, self.apart = threading.Lock(), secrets.token_bytes(16), False

    def __enter__(self):
        self.started = time.monotonic()
        self.folder = tempfile.mkdtemp(prefix="attnbook-")
        try:
            file = copied(self.path, Path(self.folder), self.alone)
            self.call_socket, call = socket.socketpair()
            self.word, word = socket.socketpair()
            reading, output = os.pipe()
            job = {
                "file": str(file), "folder": self.folder, "form": self.form, "names": self.names,
                "limit": self.limit, "memory": self.memory, "nonce": self.nonce.hex(), "apart": NAMESPACES,
            }  # fmt: skip
            self.server.start(job, [word.fileno(), call.fileno(), output])
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        call.close()
        word.close()
        os.close(output)
        self.reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self.reader.start()
        self.deadline = time.monotonic() + self.limit
        try:
            message, _ = receive(self.call_socket, self.nonce, self.deadline)
        except BrokenError as error:
            self._stop(str(error))
        else:
            if "raised" in message:
                self._stop("it could not be imported: " + _in_words(message["raised"]))
            else:
                self.options = message["options"]
        return self

    def __exit__(self, *error):
        self._stop("")
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, arrays, more=(), **options):
        """What the function returns for these arrays: a list with what stands for everything that is no array.

        What it raises is raised here, by its name; what it writes into its inputs is written into ``arrays``.
        """
        named = {name: value for name, value in options.items() if isinstance(value, np.ndarray)}
        given, strides = zip(*(layout(T) for T in (*arrays, *named.values())), strict=True)
        plain = {name: value for name, value in options.items() if name not in named}
        message = {"strides": strides, "options": plain, "named": list(named), "more": list(more)}
        with self.lock:
            if self.end:
                raise EndedError(self.end)
            try:
                send(self.call_socket, self.nonce, message, given)
                came, results = receive(self.call_socket, self.nonce, self.deadline)
            except (BrokenError, OSError) as error:
                self._stop(str(error) if isinstance(error, BrokenError) else "gone")
                raise EndedError(self.end) from error
        return self._result(came, results, arrays)

    def _result(self, came, results, arrays):
        if "raised" in came:
            raise _error(*came["raised"])
        results = iter(results)
        items = [next(results) if kind == "array" else _named(kind) for kind in came["items"]]
        for at, T in zip(came["changed"], results, strict=True):
            arrays[at][...] = T
        self.shared |= dict(came["shared"])
        return items[0] if came["one"] else items

    def _stop(self, why):
        """End the process, and say how it ended."""
        if self.word is None:
            return
        self.call_socket.close()
        status = {}
        try:
            self.word.settimeout(0.5 if why == "gone" else 0)  # gone: it says by itself how it went
            status = json.loads(self.word.recv(1 << 12) or b"{}")
        except (OSError, ValueError):
            self._tell(status)
        self.word.close()
        self.word = None
        self.apart = status.get("apart", False)
        self.reader.join(2)
        late = why == "too late" or status.get("killed") == "too long"
        self.end = f"no answer after {self.limit:g} s" if late else _ended(status) if why == "gone" else why

    def _tell(self, status):
        try:
            self.word.sendall(b"end")
            self.word.settimeout(5)
            status |= json.loads(self.word.recv(1 << 12) or b"{}")
        except (OSError, ValueError):
            return

    def _read(self, reading):
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while part := pipe.read(1 << 16):
                self.lines += part.count(b"\n")
                if len(self.printed) < PRINTED:
                    self.printed += part[:PRINTED].decode("utf-8", "replace")


def copied(path, folder, alone):
    """The file's place in a copy of its folder; ``alone`` where others hand in from the same folder."""
    there = folder / path.name
    if not alone:
        shutil.copytree(path.parent, folder, ignore=_left_out, dirs_exist_ok=True)
    shutil.copyfile(path, there)
    return there


def _left_out(folder, names):
    """What no submission needs: what is hidden, links, environments, large files."""
    return [
        name for name in names
        if name.startswith(".") or name in ("__pycache__", "node_modules", "venv", "_build")
        or (path := Path(folder) / name).is_symlink() or (path.is_file() and path.stat().st_size > KEPT_FILES)
        or not (path.is_file() or path.is_dir())
    ]  # fmt: skip


def _error(name, text, line):
    """The exception, by its name, with the line in the file where it was raised."""
    known = getattr(builtins, name, None)
    ordinary = isinstance(known, type) and issubclass(known, Exception)
    made = known if ordinary and known not in (UnicodeDecodeError, UnicodeEncodeError) else None
    text = textwrap.shorten(text, MESSAGE, placeholder=" …")  # so that the line is not what is left out
    where = f"line {line}" if line else ""
    return (made or type(name, (RuntimeError,), {}))(f"{text} ({where})" if text and where else text or where)


def _named(kind):
    """Something whose type has this name, or an exception."""
    if isinstance(kind, list):
        return _error(*kind)
    return None if kind == "NoneType" else type(kind, (), {})()


def _in_words(raised):
    name, text, line = raised
    where = f" (line {line})" if line else ""
    where += ", which is not installed here" if name == "ModuleNotFoundError" else ""
    return f"{name}: {text}{where}" if text else name + where


def _ended(status):
    code = status.get("code")
    if code is None:
        return "its process is gone"
    if code >= 0:
        return f"its process ended by itself, with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    more = {signal.SIGKILL: ": out of time or memory", signal.SIGXCPU: ": out of time", signal.SIGSEGV: ": a crash"}
    return f"its process was ended by {name}" + more.get(-code, "")
