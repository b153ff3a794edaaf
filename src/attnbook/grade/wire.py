"""What grader and submission say to each other: arrays and JSON over a socket, never pickles.

Chapter: :doc:`/chapters/08_checking`. A pickle runs code where it is read; these messages cannot.
"""

import io
import json
import struct
import time

import numpy as np

LARGEST = 2**28
"""Bytes of the largest message that is read."""

HEAD = struct.Struct("!16sQ")


class BrokenError(Exception):
    """The other side is gone, too late, or says what is no message."""


def send(socket, nonce, message, arrays=()):
    """Send a JSON value and arrays; the nonce marks it as meant, and not printed there by chance."""
    body = io.BytesIO()
    text = np.frombuffer(json.dumps(message).encode(), dtype=np.uint8)
    np.savez(body, text, *arrays)
    socket.sendall(HEAD.pack(nonce, body.tell()) + body.getvalue())


def receive(socket, nonce, deadline=None):
    """(message, arrays). BrokenError where none comes before ``deadline`` (of time.monotonic), or it is no message."""
    came, size = HEAD.unpack(_exactly(socket, HEAD.size, deadline))
    if came != nonce or size > LARGEST:
        raise BrokenError("it wrote into the grader's pipe what is no answer")
    body = io.BytesIO(_exactly(socket, size, deadline))
    try:
        with np.load(body, allow_pickle=False) as archive:
            text, *arrays = (archive[name] for name in archive.files)
        return json.loads(text.tobytes()), arrays
    except Exception as error:  # whatever was written there, it is no answer
        raise BrokenError("it wrote into the grader's pipe what is no answer") from error


def _exactly(socket, count, deadline):
    parts = []
    while count:
        if deadline is not None:
            socket.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            part = socket.recv(min(count, 1 << 20))
        except TimeoutError as error:
            raise BrokenError("too late") from error
        except OSError as error:
            raise BrokenError("gone") from error
        if not part:
            raise BrokenError("gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def layout(T):
    """(contiguous copy, strides in entries): how T lies in memory, for :func:`laid_out`."""
    return np.ascontiguousarray(T).reshape(T.shape), [stride // T.itemsize for stride in T.strides]


def laid_out(T, strides):
    """T's values in an array of these strides: expanded, transposed, sliced or reversed as it was."""
    if T.size == 0 or [stride // T.itemsize for stride in T.strides] == strides:
        return T.copy()
    reach = [(n - 1) * stride for n, stride in zip(T.shape, strides, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    memory = np.zeros(high - low + 1, dtype=T.dtype)
    made = np.lib.stride_tricks.as_strided(memory[-low:], T.shape, [stride * T.itemsize for stride in strides])
    made[...] = T
    return made
