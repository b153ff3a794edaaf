"""One table of scores under many variants, side by side: what each does to it, at a glance."""

from typing import NamedTuple

import numpy as np

from attnbook.figures.matrices import _shade
from attnbook.figures.svg import PALETTE, Figure, document, number, text

SIDE, PANEL_W, PANEL_H, TOP, ACROSS = 10.5, 108, 124, 26, 3  # pixels; three panels across fit on a phone


class Shape(NamedTuple):
    """What a variant made of the scores: −∞ is forbidden, ``dropped`` says which weights go, ``sink`` is its score."""

    S: object
    dropped: object = None
    sink: float | None = None


def score_shapes(named, *, alt):
    """Draw small tables of scores, all with one colour scale: of the first, stretched for what is added to it.

    Parameters
    ----------
    named : dict of str to Shape
        The name goes above each.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure
    """
    shapes = list(named.values())
    largest = 1.6 * np.max(np.abs(shapes[0].S))
    corners = [(PANEL_W * (k % ACROSS), PANEL_H * (k // ACROSS)) for k in range(len(shapes))]
    body = [
        f'<g transform="translate({number(x)} {number(y)})">{_panel(name, shape, largest)}</g>'
        for (x, y), (name, shape) in zip(corners, named.items(), strict=True)
    ]
    return Figure(document(PANEL_W * ACROSS, PANEL_H * -(-len(shapes) // ACROSS), "".join(body)), alt)


def _panel(name, shape, largest):
    S = np.asarray(shape.S, dtype=float)
    n, m = S.shape
    left = (PANEL_W - (m + (shape.sink is not None) * 1.5) * SIDE) / 2
    body = [text(PANEL_W / 2, 13, name, size=12, weight="bold")]
    for (i, j), value in np.ndenumerate(S):
        x, y = left + j * SIDE, TOP + i * SIDE
        body.append(_cell(x, y, value, largest))
        if value == -np.inf:  # a cross, not a colour: forbidden
            a, b, c, d = (number(z) for z in (x + 3, x + SIDE - 3, y + 3, y + SIDE - 3))
            body.append(f'<path d="M{a} {c}L{b} {d}M{b} {c}L{a} {d}" stroke="{PALETTE["grey"]}"/>')
        elif shape.dropped is not None and shape.dropped[i, j]:
            place = f'cx="{number(x + SIDE / 2)}" cy="{number(y + SIDE / 2)}" r="2.5"'
            body.append(f'<circle {place} fill="{PALETTE["ink"]}"/>')
    if shape.sink is not None:
        x = left + (m + 0.5) * SIDE
        body += [_cell(x, TOP + i * SIDE, shape.sink, largest, "purple") for i in range(n)]
    return "".join(body)


def _cell(x, y, value, largest, edge="grey"):
    hue, depth = _shade(value, largest, deepest=0.9)  # deep: no number stands on it
    fill = f'fill="{hue}" fill-opacity="{depth}"' if depth else ""
    look = f'stroke="{PALETTE[edge]}" stroke-opacity="{1 if edge != "grey" else 0.4}"'
    return f'<rect x="{number(x)}" y="{number(y)}" width="{number(SIDE)}" height="{number(SIDE)}" {fill} {look}/>'
