"""The process that submissions are forked from, so that numpy and torch are imported once.

Chapter: :doc:`/chapters/08_checking`. Three processes to a submission: this one, which only forks; a supervisor, which
ends it in time; and the submission itself, with its limits, which sees neither.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
import time

from attnbook.grade import isolation, student

POLL = 0.02
"""Seconds between two looks at a submission by its supervisor."""


def main(number, *libraries):
    """Fork a supervisor for each job that comes through the socket of this number, until it closes."""
    for name in libraries:
        importlib.import_module(name)
    control = socket.socket(fileno=int(number))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        text, passed, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not text:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _supervise(json.loads(text), *passed)
            finally:
                os._exit(0)
        for each in passed:
            os.close(each)


def _supervise(job, word, call, output):
    """Run the submission, and say through ``word`` how it ended; kill it when its time is over, or when told to."""
    os.setsid()
    isolation.adopt_orphans()
    apart = job["apart"] and isolation.enter_namespaces()
    pid = os.fork()
    if pid == 0:
        os.close(word)
        _become(job, call, output, apart)
    os.close(call)
    os.close(output)
    word = socket.socket(fileno=word)
    deadline, status = time.monotonic() + job["limit"], None
    while status is None:
        told = select.select([word], [], [], POLL)[0]
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = {"code": os.waitstatus_to_exitcode(code)}
        elif told or time.monotonic() > deadline:
            status = {"killed": "told to" if told else "too long"}
    isolation.end_children(pid)
    word.sendall(json.dumps(status | {"apart": apart}).encode())


def _become(job, call, output, apart):
    """Turn this process into the submission. It does not return."""
    status = 70  # what an internal fault looks like
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for here, there in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(here, there)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", errors="replace", closefd=False) for fd in (1, 2))
        isolation.watch()
        os.chdir("/")
        if apart:
            isolation.protect_files(job["folder"])
        os.chdir(job["folder"])
        os.environ |= {"HOME": job["folder"], "TMPDIR": job["folder"]}
        isolation.limit_resources(job["limit"], job["memory"])
        student.answer(socket.socket(fileno=call), bytes.fromhex(job["nonce"]), job)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # torch takes its time to say goodbye
