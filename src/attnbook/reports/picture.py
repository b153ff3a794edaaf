"""Which entries of a gradient are wrong, as a picture: the pattern is the symptom.

Chapter: :doc:`/chapters/in_the_wild`.
"""

from html import escape

import numpy as np

CELL, GAP, MOST_CELLS, MOST_SLICES = 9, 14, 32, 6
"""Pixels of a cell and between slices; more rows or columns than this are put together; more slices are left out."""

SLIGHT = {"float16": 1e-2, "bfloat16": 5e-2}
"""Of the largest error, by dtype, 1e-5 for all others; an entry that is off by less counts as right."""

AXES = {"O": ("query", "queries"), "dQ": ("query", "queries"), "dK": ("key", "keys"), "dV": ("key", "keys")}
"""What a row is, one and several."""


def wrong_entries(came, right, dtype="float64"):
    """How far off each entry is, from 0 (right, up to roundings of the dtype) to 1 (the largest error; NaN and ∞)."""
    finite = np.isfinite(came) & np.isfinite(right)
    off = np.where(finite, np.abs(np.where(finite, came, 0) - np.where(finite, right, 0)), 0.0)
    largest = off.max(initial=0.0)
    share = off / largest if largest > 0 else off
    same = ~finite & ((came == right) | (np.isnan(came) & np.isnan(right)))
    share = np.where(finite | same, share, 1.0)
    return np.where(share < SLIGHT.get(dtype, 1e-5), 0.0, share)


def in_words(name, share):
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
        one, several = AXES[name]
        parts.append(_listed(np.flatnonzero(of_rows), one, several, of_rows.size))
    if not of_columns.all():
        parts.append(_listed(np.flatnonzero(of_columns), "column", "columns", of_columns.size))
    parts = parts or [f"{np.count_nonzero(wrong)} of {wrong.size} entries"]
    return "wrong in " + ", ".join(parts)


def _listed(numbers, one, several, of):
    if len(numbers) == 1:
        return f"{one} {numbers[0]} of {of}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{several} {numbers[0]} to {numbers[-1]} of {of}"
    return f"{len(numbers)} of {of} {several}"


def picture(name, came, right, title, dtype="float64"):
    """An SVG of which entries of ``came`` differ from ``right``, darker for a larger error.

    Parameters
    ----------
    name : "O", "dQ", "dK" or "dV"
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
    alt = escape(f"{title}: {in_words(name, share)}")
    tables = share.reshape(-1, *share.shape[-2:])[:MOST_SLICES]
    lead = list(np.ndindex(share.shape[:-2]))
    x, parts, height = 0, [], 0
    for index, table in zip(lead, tables, strict=False):
        cells = _fewer(_fewer(table, 0), 1)
        rows, columns = cells.shape
        label = f"[{', '.join(map(str, index))}]" if index else ""
        parts.append(f'<g transform="translate({x},14)"><text y="-4">{label}</text>')
        parts.append(f'<rect class="frame" width="{columns * CELL}" height="{rows * CELL}"/>')
        parts += [
            f'<rect class="wrong" x="{j * CELL}" y="{i * CELL}" width="{CELL}" height="{CELL}" '
            f'opacity="{0.35 + 0.65 * cells[i, j]:.2f}"/>'
            for i, j in np.argwhere(cells > 0)
        ]
        parts.append("</g>")
        x += max(columns * CELL, 10 * len(label)) + GAP
        height = max(height, rows * CELL)
    left = len(lead) - len(tables)
    if left:
        parts.append(f'<text x="{x}" y="30">and {left} more</text>')
        x += 90
    size = f'width="{x}" height="{height + 18}" viewBox="-1 0 {x} {height + 18}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{alt}" {size}>{"".join(parts)}</svg>'


def _fewer(table, axis):
    """At most MOST_CELLS along the axis, each the largest of those that it stands for."""
    n = table.shape[axis]
    step = -(-n // MOST_CELLS)
    return table if step < 2 else np.maximum.reduceat(table, np.arange(0, n, step), axis=axis)
