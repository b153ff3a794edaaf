"""A row of matrices with their numbers, names and shapes: the picture this book uses most."""

import numpy as np

from attnbook.figures.svg import PALETTE, Figure, document, number, switched, text

CELL_W, CELL_H, GAP, TOP, LEFT = 54, 30, 44, 46, 26


def matrices(
    named, *, alt, digits=2, rows=None, cols=None, between=None, common_scale=False, grey_zeros=False, stack=False
):
    """Draw matrices side by side. Blue cells are positive, orange are negative; deeper is larger; 0 has no colour.

    Parameters
    ----------
    named : dict of str to array (n, m) or (n,)
        The name goes above each matrix with its shape. A vector is drawn as one row.
    alt : str
        What the picture shows, in a sentence or two.
    digits : int
        Decimals of the numbers in the cells.
    rows, cols : sequences of str, optional
        Labels for the rows of the first matrix and the columns of every matrix that has as many.
    between : sequence of str, optional
        What stands between neighbours, such as "=" or "∘".
    common_scale : bool
        One colour scale for all, instead of one each.
    grey_zeros : bool
        What is exactly 0 is grey.
    stack : bool
        On a phone, one below the other, each with the labels of its rows, and nothing between.

    Returns
    -------
    Figure
    """
    arrays = {name: np.atleast_2d(np.asarray(T, dtype=float)) for name, T in named.items()}
    between = list(between or [""] * (len(arrays) - 1))
    largest = {name: _largest(T) for name, T in arrays.items()}
    if common_scale:
        largest = dict.fromkeys(arrays, max(largest.values()))
    tallest = max(T.shape[0] for T in arrays.values())
    margin = LEFT + 9 * max((len(label) for label in rows), default=0) if rows else LEFT

    def matrix(name, x, y, labels):
        T = arrays[name]
        n, m = T.shape
        yield text(x + m * CELL_W / 2, y - 32 if cols else y - 20, f"{name}  {n}×{m}", weight="bold")
        for j, label in enumerate(cols if cols and len(cols) == m else []):
            yield text(x + (j + 0.5) * CELL_W, y - 12, label, size=12, opacity=0.75)
        for i, label in enumerate(labels or []):
            yield text(x - 8, y + (i + 0.5) * CELL_H, label, anchor="end", size=12, opacity=0.75)
        for (i, j), value in np.ndenumerate(T):
            yield _cell(x + j * CELL_W, y + i * CELL_H, value, largest[name], digits, grey_zeros)

    x, body = margin, []
    for k, (name, (n, m)) in enumerate((name, T.shape) for name, T in arrays.items()):
        body += matrix(name, x, TOP + (tallest - n) * CELL_H / 2, rows if k == 0 else None)
        x += m * CELL_W
        if k < len(between):
            body.append(text(x + GAP / 2, TOP + tallest * CELL_H / 2, between[k], size=18))
            x += GAP
    wide = document(x + 8, TOP + tallest * CELL_H + 10, "".join(body))
    if not stack:
        return Figure(wide, alt)

    y, body = TOP, []
    for name, T in arrays.items():
        body += matrix(name, margin, y, rows if rows and len(rows) == len(T) else None)
        y += len(T) * CELL_H + TOP
    width = max(T.shape[1] for T in arrays.values()) * CELL_W
    return Figure(switched(wide, document(margin + width + 8, y - TOP + 10, "".join(body))), alt)


def grid(name, n, m, *, x=0, y=0, choose=None, width=CELL_W, height=CELL_H):
    """Empty cells of a matrix in a picture with controls; the part of cell (i, j) is ``"name i j"``.

    Parameters
    ----------
    name : str
        Of the matrix. It begins the names of the parts.
    n, m, x, y, width, height : numbers
        Rows and columns, the upper left corner, and the size of a cell.
    choose : callable, optional
        From (i, j) to the ``data-choose`` of that cell.

    Returns
    -------
    str
    """
    cells = []
    for i in range(n):
        for j in range(m):
            left, top = x + j * width, y + i * height
            box = f'x="{number(left)}" y="{number(top)}" width="{number(width)}" height="{number(height)}"'
            look = f'fill="{PALETTE["blue"]}" fill-opacity="0" stroke="{PALETTE["grey"]}" stroke-opacity="0.5"'
            label = text(left + width / 2, top + height / 2, "", part=f"{name} {i} {j} n")
            pick = f' data-choose="{choose(i, j)}"' if choose else ""
            cells.append(f'<g{pick}><rect data-part="{name} {i} {j}" {box} {look}/>{label}</g>')
    return "".join(cells)


def fill(name, T, *, largest=None, digits=2):
    """The values of the parts of a ``grid``: colours as in ``matrices``, and the numbers.

    Parameters
    ----------
    name : str
        As given to ``grid``.
    T : array (n, m) or (n,)
        A vector is one row.
    largest : float, optional
        The size that gets the deepest colour; that of the largest entry by default.
    digits : int
        Decimals.

    Returns
    -------
    dict
        Part name to attributes, for ``State``.
    """
    T = np.atleast_2d(np.asarray(T, dtype=float))
    largest = _largest(T) if largest is None else largest
    parts = {}
    for (i, j), value in np.ndenumerate(T):
        hue, depth = _shade(value, largest)
        parts[f"{name} {i} {j}"] = {"fill": hue, "fill-opacity": depth or 0}
        parts[f"{name} {i} {j} n"] = {"text": _label(value, digits)}
    return parts


def _cell(x, y, value, largest, digits, grey_zeros):
    hue, depth = (PALETTE["grey"], 0.25) if grey_zeros and value == 0 else _shade(value, largest)
    box = f'x="{number(x)}" y="{number(y)}" width="{CELL_W}" height="{CELL_H}"'
    fill = f'fill="{hue}" fill-opacity="{depth}"' if depth else ""
    stroke = f'stroke="{PALETTE["grey"]}" stroke-opacity="0.5"'
    return f"<rect {box} {fill} {stroke}/>" + text(x + CELL_W / 2, y + CELL_H / 2, _label(value, digits))


def _largest(T):
    """The size of the largest number in ``T``; ∞ and NaN are none."""
    return np.max(np.abs(T), initial=0.0, where=np.isfinite(T))


def _shade(value, largest, deepest=0.45):
    """Hue and depth of a cell: blue above 0, orange below; no depth where it is far smaller than the largest."""
    size = min(abs(value) / largest, 1) if largest and np.isfinite(value) else 0.0
    return PALETTE["blue" if value > 0 else "orange"], number(deepest * size) if size >= 0.005 else None


def _label(value, digits):
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else ("−∞" if value < 0 else "∞")
    if float(value).is_integer() and digits == 0:
        return f"{int(value)}".replace("-", "−")
    shown = f"{value:.{digits}f}"
    if float(shown) == 0:
        return "0" if value == 0 else shown.lstrip("-")
    return shown.replace("-", "−")
