"""Runs what anyone wrote: within a time, and whatever it raises is an answer. Chapter: :doc:`/chapters/in_the_wild`."""

import dis
import textwrap
import threading
import time
import warnings

import numpy as np


class Clock:
    """Seconds of work since it was made: what else the machine does costs no case, unless it is very busy."""

    def __init__(self):
        self.work, self.wall = time.process_time(), time.monotonic()

    @property
    def spent(self):
        return max(time.process_time() - self.work, (time.monotonic() - self.wall) / 5)


def within(limit, f, *args):
    """("done", result), ("raised", exception) or ("too long", None), after at most ``limit`` seconds.

    f runs in a thread of its own, because anything can be called there, and a thread cannot be ended: one that takes
    too long is left behind, and ends with the process. Where there are no threads, as in a browser, f has no limit.
    """
    box = []

    def work():
        try:
            with np.errstate(all="ignore"):
                box.append(("done", f(*args)))
        except BaseException as error:  # whatever it is, it is the answer
            box.append(("raised", error))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            work()
        else:
            thread.join(min(limit, threading.TIMEOUT_MAX))
    return box[0] if box else ("too long", None)


def refuses(error):
    """Whether it was raised on purpose: by a ``raise`` or an ``assert`` in code that is no array library's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    home = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    raised = dis.opname[code.co_code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return raised and home not in ("numpy", "array_api_compat")


def reached(error):
    """How far it came: the line in which each of its calls stands, from the outermost on."""
    trace, lines = error.__traceback__, []
    while trace is not None:
        lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return tuple(lines)


def sentence(error):
    """The exception in one line."""
    words = textwrap.shorten(str(error), 240, placeholder=" …")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
