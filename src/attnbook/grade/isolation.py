"""What a submission may not do, as far as the system helps. Chapter: :doc:`/chapters/08_checking`.

It guards against accidents and careless code: no network, no writing outside a copy, no end of memory, time or
processes. It is no sandbox against malice: the code runs as the user who grades, and can read what that user can.
"""

import contextlib
import ctypes
import os
import signal
import struct
import sys
import time

NEW_USER, NEW_PIDS, NEW_NET, NEW_MOUNTS, NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x08000000
"""Flags of Linux's unshare(2)."""

PRIVATE, RECURSIVE, BIND, MOUNT_SETATTR, READ_ONLY = 0x40000, 0x4000, 0x1000, 442, 1
"""Of mount(2) and mount_setattr(2)."""

FILE_SIZE, OPEN_FILES, MORE_PROCESSES, FORKS = 64 << 20, 256, 64, 4


def enter_namespaces():
    """Let the next child be the first process of its own: no network, and all it starts ends with it (Linux).

    Returns whether the system allowed it. Call it in a process of one thread.
    """
    if not sys.platform.startswith("linux"):
        return False
    uid, gid = os.getuid(), os.getgid()
    if _libc().unshare(NEW_USER | NEW_PIDS | NEW_NET | NEW_MOUNTS | NEW_IPC):
        return False
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as opened:  # noqa: PTH123 (no pathlib after a fork)
                opened.write(text)
    except OSError:
        return False
    return True


def adopt_orphans():
    """Become the parent of what a child leaves behind when it ends (Linux)."""
    if sys.platform.startswith("linux"):
        _libc().prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_children(group):
    """Kill the processes of the group, and then all children of this one, the adopted ones too."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    me = os.getpid()
    for _ in range(100):  # whose children are adopted in their turn
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        try:
            with open(f"/proc/{me}/task/{me}/children") as opened:  # noqa: PTH123
                children = opened.read().split()
        except OSError:
            return
        if not children:
            return
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(int(child), signal.SIGKILL)
        time.sleep(0.005)


def protect_files(folder):
    """Make all files read-only but those of ``folder``; whether it worked. In namespaces of one's own."""
    libc, here = _libc(), os.fsencode(folder)

    def set_read_only(path, flags, on):
        wanted = struct.pack("4Q", READ_ONLY * on, READ_ONLY * (not on), 0, 0)
        return libc.syscall(MOUNT_SETATTR, -100, path, flags, wanted, len(wanted))

    return not (
        libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None)
        or libc.mount(here, here, None, BIND, None)
        or set_read_only(b"/", 0x8000, True)
        or set_read_only(here, 0, False)
    )


def limit_resources(seconds, megabytes):
    """At most so many seconds of CPU time, and megabytes of memory more than now."""
    import resource

    limits = {
        "RLIMIT_CPU": int(seconds) + 1,
        "RLIMIT_AS": _memory_now() + (megabytes << 20),
        "RLIMIT_FSIZE": FILE_SIZE,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": _threads_now() + MORE_PROCESSES,  # of the user, not of the process; root has no such limit
    }
    for name, most in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):
            continue  # a system that has the name and not the limit


def watch():
    """Let Python raise PermissionError for a network connection, and where many processes are started.

    For systems without namespaces, and for a plain message. Forks are counted from parent to child, so that there are
    at most 2 to the power of FORKS processes. It cannot be taken back, but what is no Python does not ask it.
    """
    network = {f"socket.{name}" for name in ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname")}
    starts = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}
    started = []

    def hook(event, arguments):
        if event in network:
            raise PermissionError("a submission has no network")
        if event in starts:
            started.append(event)
            if len(started) > FORKS:
                raise PermissionError("a submission may not start that many processes")

    sys.addaudithook(hook)


def _libc():
    return ctypes.CDLL(None, use_errno=True)


def _memory_now():
    try:
        with open("/proc/self/statm") as opened:  # noqa: PTH123
            return int(opened.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 4 << 30


def _threads_now():
    """How many threads the user runs, where /proc tells; else many."""
    uid, count = os.getuid(), 0
    try:
        for name in os.listdir("/proc"):  # noqa: PTH208
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:  # noqa: PTH116
                count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    except OSError:
        return 4096
    return count
