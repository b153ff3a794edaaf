"""What runs beside a submission, in its process: import its file, find the function, and answer calls with arrays.

Chapter: :doc:`/chapters/08_checking`. Nothing is judged here: what the submission changes in this process stays in it.
"""

import importlib.util
import os
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np

from attnbook.grade.forms import FORMS
from attnbook.grade.wire import BrokenError, laid_out, receive, send


def answer(socket, nonce, job):
    """Load ``job["file"]`` and answer calls through the socket until it closes."""
    me = os.getpid()

    def say(message, arrays=()):
        if os.getpid() != me:  # a copy, forked while the submission ran
            os._exit(0)
        send(socket, nonce, message, arrays)

    warnings.simplefilter("ignore")
    try:
        call, options = FORMS[job["form"]](_load(Path(job["file"])), tuple(job["names"]))
    except BaseException as error:  # a file does what it likes when it is imported, SystemExit too
        return say({"raised": _described(error, job["file"]), "importing": True})
    say({"options": options})
    while True:
        try:
            message, arrays = receive(socket, nonce)
        except BrokenError:
            return None
        say(*_called(call, message, arrays, job["file"]))


def _load(path):
    """The module that the file is."""
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location("submission", path)
    module = sys.modules["submission"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _called(call, message, arrays, file):
    """(message, arrays): what came of one call, or what it raised; and the inputs that were written into."""
    given = [laid_out(T, strides) for T, strides in zip(arrays, message["strides"], strict=True)]
    inputs = given[: len(given) - len(message["named"])]
    options = message["options"] | dict(zip(message["named"], given[len(inputs) :], strict=True))
    try:
        with np.errstate(all="ignore"):
            came = call(*inputs, *message["more"], **options)
        one = not isinstance(came, tuple | list)
        described = [_item(T, file) for T in ([came] if one else came)]
        sys.stdout.flush()
    except BaseException as error:
        return {"raised": _described(error, file)}, ()
    changed = [i for i, T in enumerate(inputs) if not np.array_equal(T, arrays[i], equal_nan=True)]
    results = [T for kind, T in described if kind == "array"]
    shared = [
        [at, i] for at, (_, T) in enumerate(described) for i, given in enumerate(inputs)
        if T is not None and np.may_share_memory(T, given)
    ]  # fmt: skip
    message = {"one": one, "items": [kind for kind, _ in described], "changed": changed, "shared": shared}
    return message, (*results, *(inputs[i] for i in changed))


def _item(T, file):
    """("array", NumPy array), or (the name of its type, None); of an exception (what :func:`_described` says, None)."""
    if isinstance(T, Exception):
        return _described(T, file), None
    if isinstance(T, np.generic):
        T = np.asarray(T)
    if not isinstance(T, np.ndarray):
        return type(T).__name__, None
    return ("array", T) if T.dtype.kind in "fiub" else (f"array of {T.dtype}", None)


def _described(error, file):
    """[name, message, line of the file] of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    try:
        text = str(error)[:1000]
    except Exception:
        text = "with a message that cannot be printed"
    return [type(error).__name__, text, line]
