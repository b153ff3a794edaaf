"""What the package's hints name: arrays of any library, and the words that options take.

``Array`` is the type of the caller's arrays, whatever their library: NumPy's go in, NumPy's come out. A checker
cannot see a dtype or a shape that does not fit, nor arrays of two libraries in one call: Python refuses these.
"""

import re
import sys
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

Class = TypeVar("Class", bound=type)


def described(named: Class) -> Class:
    """A NamedTuple whose fields have the strings below them for docstrings, as ``help`` shows: Python drops these."""
    try:
        source = Path(sys.modules[named.__module__].__file__ or "").read_text(encoding="utf-8")
    except OSError:  # in an archive, or compiled
        return named
    body = re.split(r"\n(?=\S)", source.partition(f"\nclass {named.__name__}(")[2], maxsplit=1)[0]
    for field, text in re.findall(r'^    (\w+): .+\n    """([^"]+)"""$', body, re.MULTILINE):
        getattr(named, field).__doc__ = text
    return named


class AnyArray(Protocol):
    """An array of NumPy, torch, CuPy or another library with the names of the array API standard.

    What all of them have alike; a function that needs more of their library asks :mod:`attnbook.arrays` for it.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""

    @property
    def ndim(self) -> int:
        """How many axes it has."""

    @property
    def dtype(self) -> Any:
        """The library's own name for the kind of its numbers."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __matmul__(self, other: Any, /) -> Any: ...


Array = TypeVar("Array", bound=AnyArray)  # with no docstring: numpydoc cannot read that of a type variable


class Residuals(Protocol):
    """What :func:`~attnbook.attention.attention` keeps for its derivatives: their fields differ from spine to spine."""

    @property
    def Q(self) -> Any:
        """The queries as they came; likewise the keys and values."""

    @property
    def K(self) -> Any: ...

    @property
    def V(self) -> Any: ...

    @property
    def L(self) -> Any:
        """The logarithm of each row's denominator."""

    @property
    def P(self) -> Any:
        """The weights, where the method keeps them: "dense" does."""

    @property
    def O(self) -> Any:  # noqa: E743
        """The output, where the method keeps that instead."""

    @property
    def M(self) -> Any:
        """The largest score of each row."""

    @property
    def plan(self) -> Any:
        """What the call was resolved into."""


Corner: TypeAlias = Literal["top-left", "bottom-right"]
"""From which corner of the score table keys and queries are counted."""

Method: TypeAlias = Literal["auto", "dense", "tiled", "fused"]
"""How attention is run, by a name."""

Layout: TypeAlias = Literal["interleaved", "half"]
"""Which columns make a pair that a rotary position turns."""

Library: TypeAlias = Literal["numpy", "torch", "cupy", "jax", "mlx", "tensorflow", "onnx"]
"""Whose arrays a function may be given."""
