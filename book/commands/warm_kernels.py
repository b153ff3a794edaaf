"""Kernels forked from one process that has imported what chapters import: seconds of each, for nbval starts many.

``launch`` stands where jupyter_client starts a kernel. Where the process that forks them does not answer, a kernel is
started in the usual way.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jupyter_client.launcher import launch_kernel

IMPORTED = "ipykernel.kernelapp", "numpy", "torch", "matplotlib.pyplot", "attnbook"


class Forked:
    """What jupyter_client asks of a process, for one that is not a child of this."""

    stdin = stdout = stderr = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0

    def wait(self):
        while self.poll() is None:
            time.sleep(0.02)
        return 0

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    terminate = functools.partialmethod(send_signal, signal.SIGTERM)
    kill = functools.partialmethod(send_signal, signal.SIGKILL)


@functools.cache
def warm():
    """The process that forks. It ends when its input is closed, as it is where this one ends."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def launch(cmd, cwd=None, env=None, **given):
    try:
        asked = json.dumps([cmd[cmd.index("-f") :], str(cwd or Path.cwd()), dict(env or os.environ)])
        print(asked, file=warm().stdin, flush=True)
        return Forked(int(warm().stdout.readline()))
    except (OSError, ValueError):  # it is gone, or said nothing
        return launch_kernel(cmd, cwd=cwd, env=env, **given)


def buried():
    """Wait for the kernels that have ended: nobody else does."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve():
    """Fork for each line that comes; return in what is forked, which becomes a kernel."""
    del sys.path[0]  # this folder, which no kernel has
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as ipykernel has it
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the other end hears
    signal.signal(signal.SIGCHLD, lambda *_: buried())
    for line in iter(sys.stdin.readline, ""):
        if os.fork():
            continue
        os.setsid()  # an interrupt is sent to its group: nobody may hear of it before it has one
        print(os.getpid(), flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv[1:], folder, environment = json.loads(line)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment | {"JPY_PARENT_PID": str(os.getppid())})
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        return True
    return False


if __name__ == "__main__" and serve():
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()
