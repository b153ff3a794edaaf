"""Pieces of pictures with numbers: cells, frames and arrows, and sums written out."""

import numpy as np

from attnbook.figures.svg import PALETTE, number, text

CELL_W, CELL_H = 36, 22  # pixels
TIMES = "\u00a0·\u00a0"


def shown(x):
    """A number as it is printed, with at most two decimals."""
    return number(x).replace("-", "−")


def factor(x):
    """A number as it is printed inside a product: in brackets where it is negative."""
    return f"({shown(x)})" if x < 0 else shown(x)


def products(left, right):
    """The products of two rows of numbers, written out as a sum. No line breaks inside a product."""
    return " + ".join(f"{factor(a)}{TIMES}{factor(b)}" for a, b in zip(left, right, strict=True))


def added(numbers):
    """A sum of numbers, written out."""
    return shown(numbers[0]) + "".join(f" {'−' if x < 0 else '+'} {shown(abs(x))}" for x in numbers[1:])


def frame(x, y, width, height, more, colour, dashes="", thick=2.5):
    """A frame, solid or dashed; ``more`` are further attributes."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="2"'
    return f'<rect {place} stroke="{PALETTE[colour]}" stroke-width="{number(thick)}"{dashed} {more}/>'


def arrow(points):
    """A line through points with a head at the last."""
    (x0, y0), (x, y) = points[-2:]
    length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
    ux, uy = (x - x0) / length, (y - y0) / length
    tip, back = (x - 2 * ux, y - 2 * uy), (x - 9 * ux, y - 9 * uy)
    corners = (tip, (back[0] - 3.5 * uy, back[1] + 3.5 * ux), (back[0] + 3.5 * uy, back[1] - 3.5 * ux))
    path = "L".join(f"{number(a)} {number(b)}" for a, b in (*points[:-1], back))
    head = " ".join(f"{number(a)},{number(b)}" for a, b in corners)
    return f'<path d="M{path}" stroke="currentColor"/><polygon points="{head}" fill="currentColor"/>'


def cells(name, T, x, y, choose=None):
    """The cells of a table, each a part ("S 0 1"), and its numbers, a part together ("S numbers").

    Parameters
    ----------
    name : str
    T : array (n, m)
    x, y : float
        The upper left corner.
    choose : callable, optional
        From ``name``, i and j to the ``data-choose`` of that cell; "" where it chooses nothing.

    Returns
    -------
    str
    """
    body, numbers = [], []
    for (i, j), value in np.ndenumerate(T):
        box = f'x="{number(x + j * CELL_W)}" y="{number(y + i * CELL_H)}" width="{CELL_W}" height="{CELL_H}"'
        look = f'fill="{PALETTE["blue"]}" fill-opacity="0" stroke="{PALETTE["grey"]}" stroke-opacity="0.5"'
        pick = f' data-choose="{choose(name, i, j)}"' if choose and choose(name, i, j) else ""
        body.append(f'<rect data-part="{name} {i} {j}" {box} {look}{pick}/>')
        numbers.append(text(x + (j + 0.5) * CELL_W, y + (i + 0.5) * CELL_H, shown(value), size=12))
    return f'{"".join(body)}<g data-part="{name} numbers" pointer-events="none">{"".join(numbers)}</g>'
