"""A picture to step through: the tiles of the score table, in the order in which the tiled spine visits them."""

from html import escape

import numpy as np

from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.svg import PALETTE, Figure, document, number, text
from attnbook.ops import Tile, chain
from attnbook.spines.tiled import pieces

PLACE, LEFT, TOP, BAR = 4.7, 42, 40, 7  # pixels for each query and key, the margins, the width of a bar


class Visits(Figure):
    """A picture to step through for each case, and radio buttons that choose one, without a script too."""

    def __init__(self, cases, alt):
        super().__init__("".join(picture.svg for picture in cases.values()), alt)
        self._cases = cases

    def picture(self):
        radios = "".join(
            f'<label><input type="radio" name="visits" value="{i}"{" checked" * (not i)}> {escape(name)}</label>'
            for i, name in enumerate(self._cases)
        )
        boxes = "".join(
            f'<div class="visits-case" data-case="{i}">{picture.picture()}</div>'
            for i, picture in enumerate(self._cases.values())
        )
        return (
            f'<figure class="attnbook visits" role="group" aria-label="{escape(self.alt)}">'
            f"<fieldset><legend>Mask</legend>{radios}</fieldset>{boxes}</figure>"
        )


def visits(cases, *, n_q, n_k, rows, cols, alt):
    """Draw the tiles that are visited, numbered in their order; what no tile reaches is hatched.

    Parameters
    ----------
    cases : dict of str to sequence of ops
        What each radio button is called, and the ops that decide which tiles are live.
    n_q, n_k, rows, cols : int
        Of the table, and of a tile.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure
    """
    drawn = {}
    for name, ops in cases.items():
        strips = [
            [tile for tile in (chain.live(ops, Tile(r, c, n_q, n_k)) for c in pieces(range(n_k), cols)) if tile]
            for r in pieces(range(n_q), rows)
        ]
        tiles = [(tile, tile is strip[-1]) for strip in strips for tile in strip]
        body = [_ground(ops, n_q, n_k, name)] + [_tile(tile, i) for i, (tile, _) in enumerate(tiles, 1)]
        count = f"{len(tiles)} of {len(strips) * len(pieces(range(n_k), cols))} tiles are visited"
        states = [State({}, f"{name}: {count}, in the order of their numbers.")]
        for now, (tile, last) in enumerate(tiles, 1):
            done = {str(i): {"data-state": "done"} for i in range(1, now)}
            states.append(State(done | {str(now): {"data-state": "now"}}, _say(tile, now, len(tiles), last)))
        step = Control("Step", ("before the first tile", *(f"tile {i} of {len(tiles)}" for i in range(1, len(states)))))
        svg = document(LEFT + n_k * PLACE + 4, TOP + n_q * PLACE + 4, "".join(body))
        drawn[name] = interactive(svg, [step], states, alt=f"{name}: {count}.")
    return Visits(drawn, alt)


def _ground(ops, n_q, n_k, name):
    """The table, its axes, and the forbidden pairs hatched."""
    hatch = f"visits-{''.join(c for c in name if c.isalnum())}"
    allowed = np.ones((n_q, n_k), dtype=bool)
    for op in ops:
        if op.forbids:
            allowed = allowed & op.allowed(np.empty(0), Tile.whole(n_q, n_k))
    runs = []
    for i, row in enumerate(~allowed):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]])))
        runs += [(i, int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    path = "".join(f"M{_x(a)} {_y(i)}H{_x(b)}V{_y(i + 1)}H{_x(a)}Z" for i, a, b in runs)
    return (
        f'<defs><pattern id="{hatch}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path d="M0 6L6 0" stroke="{PALETTE["grey"]}" stroke-opacity="0.6"/></pattern></defs>'
        f'<path d="{path}" fill="url(#{hatch})"/>'
        f'<rect x="{_x(0)}" y="{_y(0)}" width="{number(n_k * PLACE)}" height="{number(n_q * PLACE)}" '
        f'stroke="{PALETTE["grey"]}"/>'
        + text(LEFT + n_k * PLACE / 2, 10, f"{n_k} keys", size=12)
        + f'<g transform="rotate(-90 10 {number(TOP + n_q * PLACE / 2)})">'
        + text(10, TOP + n_q * PLACE / 2, f"{n_q} queries", size=12)
        + "</g>"
    )


def _say(tile, count, total, last):
    here = f"queries {tile.rows.start} to {tile.rows.stop - 1}"
    there = f"keys {tile.cols.start} to {tile.cols.stop - 1}"
    say = (
        f"Tile {count} of {total}: {here}, {there}. The forward changes O, m and Z of these queries. "
        "The backward adds to dQ of these queries, and to dK and dV of these keys."
    )
    return say + " It is the last tile of these queries: their O, m, Z and dQ are finished." * last


def _tile(tile, count):
    rows, cols = tile.rows, tile.cols
    high, wide = number(len(rows) * PLACE), number(len(cols) * PLACE)
    across = f'x="{_x(cols.start)}" width="{wide}"'
    down = f'y="{_y(rows.start)}" height="{high}"'
    middle = LEFT + (cols.start + len(cols) / 2) * PLACE, TOP + (rows.start + len(rows) / 2) * PLACE
    return (
        f'<g data-part="{count}"><g data-choose="Step:{count}">'
        f'<rect class="visits-tile" {across} {down} fill="{PALETTE["blue"]}" '
        f'fill-opacity="0.08" stroke="{PALETTE["blue"]}" stroke-width="1.5"/>{text(*middle, str(count), size=12)}</g>'
        f'<rect class="visits-held" x="{LEFT - BAR - 3}" width="{BAR}" {down} fill="{PALETTE["orange"]}"/>'
        f'<rect class="visits-held" y="{TOP - BAR - 3}" height="{BAR}" {across} fill="{PALETTE["orange"]}"/></g>'
    )


def _x(column):
    return number(LEFT + column * PLACE)


def _y(row):
    return number(TOP + row * PLACE)
