"""BLAS on one thread, while the workers share its work, and then as it was."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # takes milliseconds, so once, and when first needed

    return ThreadpoolController().select(user_api="blas")


_in_use: dict[str, Any] = {"runs": set(), "limit": None, "setter": None}
_in_use_lock = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[Any]:
    """BLAS on one thread inside; outside, as it was. Two callers at once share one limit, and the last one lifts it.

    An interrupt may come in any line: what BLAS was set to is kept before it is set, and set back in a second try.
    """
    own = object()
    try:
        with _in_use_lock:
            if not _in_use["runs"]:
                _in_use.update(limit=_blas().limit(limits=None), setter=threading.current_thread())
                for library in _blas().lib_controllers:
                    library.set_num_threads(1)
            _in_use["runs"].add(own)
        yield
    finally:
        try:
            _leave(own)
        except BaseException:
            _leave(own)
            raise


def _leave(own: object) -> None:
    with _in_use_lock:
        _in_use["runs"].discard(own)
        if not _in_use["runs"] and _in_use["limit"] is not None:
            _lift(_in_use["limit"], _in_use["setter"])
            _in_use["limit"] = None


def _lift(limit: Any, setter: Any) -> None:
    """Set BLAS back. Newer versions of threadpoolctl let only the thread that set a limit lift it, until forgotten."""
    from threadpoolctl import OpenBLASController

    forget_setter = getattr(OpenBLASController, "clear_controlling_thread", lambda force=False: None)
    if threading.current_thread() is not setter:
        forget_setter(force=True)
    limit.restore_original_limits()
    forget_setter()


def _begin_anew() -> None:
    """In a child process, which has none of its parent's threads: no run that would lift the limit."""
    global _in_use_lock
    _in_use_lock = threading.Lock()
    if _in_use["runs"]:
        _in_use["runs"].clear()
        _lift(_in_use["limit"], _in_use["setter"])
        _in_use["limit"] = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
