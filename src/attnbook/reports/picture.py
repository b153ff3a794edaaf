"""Which entries of a gradient are wrong, as a picture: the pattern is the symptom.

Chapter: :doc:`/chapters/in_the_wild`.
"""

from html import escape
from typing import Any

import numpy as np

CELL, GAP, LETTER, LEVELS, MOST_CELLS, MOST_SLICES = 9, 14, 7, 4, 32, 6
"""Pixels of a cell, between slices and of a letter; how many strengths of color there are; more rows or columns than
this are put together; more slices are left out."""

SLIGHT = {"float16": 1e-2, "bfloat16": 5e-2}
"""Of the largest error, by dtype, 1e-5 for all others; an entry that is off by less counts as right."""

_QUERIES, _KEYS = ("query", "queries", "column", "columns"), ("key", "keys", "column", "columns")
AXES = {
    "O": _QUERIES, "dQ": _QUERIES, "dK": _KEYS, "dV": _KEYS,
    "dbias": ("query", "queries", "key", "keys"), "dsink": ("sink", "sinks", "head", "heads"),
}  # fmt: skip
"""What a row is, one and several, and a column."""


def wrong_entries(came: Any, right: Any, dtype: str = "float64") -> Any:
    """How far off each entry is, from 0 (right, up to roundings of the dtype) to 1 (the largest error; NaN and ∞)."""
    finite = np.isfinite(came) & np.isfinite(right)
    off = np.where(finite, np.abs(np.where(finite, came, 0) - np.where(finite, right, 0)), 0.0)
    largest = off.max(initial=0.0)
    share = off / largest if largest > 0 else off
    same = ~finite & ((came == right) | (np.isnan(came) & np.isnan(right)))
    share = np.where(finite | same, share, 1.0)
    return np.where(share < SLIGHT.get(dtype, 1e-5), 0.0, share)


def in_words(name: str, share: Any) -> str:
    """Which entries are wrong, in words: all, whole rows, whole columns, some heads, or how many."""
    wrong = share > 0
    if wrong.all():
        return "every entry is wrong"
    if wrong.shape[-1] == wrong.shape[-2] > 1 and (wrong | np.eye(wrong.shape[-1], dtype=bool)).all():
        return "right on the diagonal only"
    rows, columns = wrong.any(axis=-1), wrong.any(axis=-2)
    lead = tuple(range(rows.ndim - 1))
    of_rows, of_columns = rows.any(axis=lead), columns.any(axis=lead)
    slices = wrong.any(axis=(-2, -1))
    parts = []
    if slices.size > 1 and not slices.all():
        parts.append(f"{np.count_nonzero(slices)} of {slices.size} heads or sequences")
    if not of_rows.all():
        parts.append(_listed(np.flatnonzero(of_rows), *AXES[name][:2], of_rows.size))
    if not of_columns.all():
        parts.append(_listed(np.flatnonzero(of_columns), *AXES[name][2:], of_columns.size))
    parts = parts or [f"{np.count_nonzero(wrong)} of {wrong.size} entries"]
    return "wrong in " + ", ".join(parts)


def _listed(numbers: Any, one: str, several: str, of: int) -> str:
    if len(numbers) == 1:
        return f"{one} {numbers[0]} of {of}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{several} {numbers[0]} to {numbers[-1]} of {of}"
    return f"{len(numbers)} of {of} {several}"


def picture(name: str, came: Any, right: Any, title: str, dtype: str = "float64") -> str:
    """An SVG of which entries of ``came`` differ from ``right``, darker for a larger error.

    Parameters
    ----------
    name : "O", "dQ", "dK", "dV", "dbias" or "dsink"
    came, right : array (..., n, d)
        Of one shape. Each slice over the leading axes is a table of its own; only the first ones are drawn.
    title : str
        Its alternative text begins with it.
    dtype : str
        In which they were computed.

    Returns
    -------
    str
        SVG, without scripts or links; its colors are the CSS variables --ink, --wrong and --paper.
    """
    share = wrong_entries(came, right, dtype)
    rows, columns = (f"{words[0] if n == 1 else words[1]} {_range(n)}" for words, n in _axes(name, share))
    alt = escape(f"{title}: {in_words(name, share)}; each row is of {rows}, each column of {columns}")
    lead = list(np.ndindex(share.shape[:-2]))
    tables = [_fewer(_fewer(table, 0), 1) for table in share.reshape(-1, *share.shape[-2:])[:MOST_SLICES]]
    height, width = (CELL * n for n in tables[0].shape)
    left, step = LETTER * len(AXES[name][0] + " 000"), max(width, LETTER * 8) + GAP
    parts = []
    for k, (index, table) in enumerate(zip(lead, tables, strict=False)):
        label = f"[{', '.join(map(str, index))}]" if index else ""
        cells = f'<rect class="frame" width="{width}" height="{height}"/>{_cells(table)}'
        parts.append(f'<g transform="translate({left + k * step},14)"><text y="-4">{label}</text>{cells}</g>')
    x = left + len(tables) * step
    if len(lead) > len(tables):
        parts.append(f'<text x="{x}" y="30">and {len(lead) - len(tables)} more</text>')
        x += LETTER * 14
    parts.append(_numbers(name, share.shape[-2:], left - 4, height))
    x = max(x, left + LETTER * (len(columns) + 1))
    size = f'width="{x}" height="{height + 32}" viewBox="-1 0 {x} {height + 32}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{alt}" {size}>{"".join(parts)}</svg>'


def _axes(name: str, share: Any) -> tuple[Any, ...]:
    """((one, several) of what a row is, how many), and the same of a column."""
    return (AXES[name][:2], share.shape[-2]), (AXES[name][2:], share.shape[-1])


def _range(n: Any) -> str:
    return f"0 to {n - 1}" if n > 1 else "0"


def _cells(table: Any) -> str:
    """The wrong cells: a path for each of LEVELS strengths, a piece for each run of cells in a row."""
    levels = np.ceil(table * LEVELS).astype(int)
    drawn = []
    for level in range(1, LEVELS + 1):
        runs = []
        for i, row in enumerate(levels == level):
            edges = np.flatnonzero(np.diff(row, prepend=False, append=False))
            runs += [f"M{j} {i}h{end - j}v1h{j - end}z" for j, end in zip(edges[::2], edges[1::2], strict=True)]
        if runs:
            opacity = f"{0.3 + 0.7 * level / LEVELS:.2f}"
            drawn.append(f'<path class="wrong" transform="scale({CELL})" opacity="{opacity}" d="{"".join(runs)}"/>')
    return "".join(drawn)


def _numbers(name: str, shape: Any, left: Any, height: Any) -> str:
    """The first and last row, and the columns, as text beside and below the first table."""
    one, _, column, columns = AXES[name]
    rows = [f'<text text-anchor="end" x="{left}" y="23">{one} 0</text>']
    if shape[0] > 1:
        rows.append(f'<text text-anchor="end" x="{left}" y="{max(height + 13, 34)}">{shape[0] - 1}</text>')
    below = f"{columns if shape[1] > 1 else column} {_range(shape[1])}"
    return "".join([*rows, f'<text x="{left + 4}" y="{height + 27}">{below}</text>'])


def _fewer(table: Any, axis: Any) -> Any:
    """At most MOST_CELLS along the axis, each the largest of those that it stands for."""
    n = table.shape[axis]
    step = -(-n // MOST_CELLS)
    return table if step < 2 else np.maximum.reduceat(table, np.arange(0, n, step), axis=axis)
