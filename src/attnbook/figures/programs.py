"""Which blocks of the score table each program of a fused kernel visits, and in which direction it walks."""

import numpy as np

from attnbook.figures.pieces import arrow
from attnbook.figures.svg import PALETTE, Figure, document, number, switched, text
from attnbook.ops import Tile, chain
from attnbook.spines.tiled import pieces

SIDE, LEFT, TOP, GAP = 34, 26, 56, 70  # pixels of a block, the margins, the space between the two tables
LOOK = {
    "whole": 'fill-opacity="0.4" stroke-width="1"',
    "partly masked": 'fill-opacity="0.1" stroke-width="1.5" stroke-dasharray="4 3"',
}


def programs(ops, *, n_q, n_k, rows, cols, alt, stack=False):
    """Draw the table twice: with a program for each block of queries, and with one for each block of keys.

    Parameters
    ----------
    ops : sequence of ops
        They decide which blocks are visited, and which of those a mask cuts.
    n_q, n_k, rows, cols : int
        Of the table, and of a block.
    alt : str
        What the picture shows, in a sentence or two.
    stack : bool
        On a phone, one table below the other.

    Returns
    -------
    Figure
    """
    kinds = [[_kind(ops, Tile(r, c, n_q, n_k)) for c in pieces(range(n_k), cols)] for r in pieces(range(n_q), rows)]
    walks = [[(i, j) for j, kind in enumerate(row) if kind] for i, row in enumerate(kinds)]
    falls = [[(i, j) for i, row in enumerate(kinds) if row[j]] for j in range(len(kinds[0]))]
    tables = _table(kinds, "a block of queries", walks), _table(kinds, "a block of keys", falls)
    across, down = len(kinds[0]) * SIDE, TOP + len(kinds) * SIDE
    drawn = []
    for x, y in ((across + GAP, 0), (0, down + GAP / 2)):
        body = [tables[0], f'<g transform="translate({number(x)} {number(y)})">{tables[1]}</g>']
        for kind, at in (("whole", LEFT), ("partly masked", LEFT + 90), ("not visited", LEFT + 220)):
            body.append(_block(kind if kind in LOOK else "", at, y + down + 16, 16))
            body.append(text(at + 24, y + down + 24, kind, anchor="start"))
        drawn.append(document(max(LEFT + x + across + 4, LEFT + 310), y + down + 40, "".join(body)))
    return Figure(switched(*drawn) if stack else drawn[0], alt)


def _kind(ops, tile):
    """ "whole", "partly masked", or "" for a block that nobody visits."""
    if not chain.live(ops, tile):
        return ""
    masks = (op.allowed(np.empty(0), tile) for op in ops if op.forbids)
    return "whole" if all(mask.all() for mask in masks) else "partly masked"


def _block(kind, x, y, side):
    place = f'x="{number(x)}" y="{number(y)}" width="{number(side)}" height="{number(side)}"'
    if not kind:
        return f'<rect {place} stroke="{PALETTE["grey"]}" stroke-opacity="0.5"/>'
    return f'<rect {place} fill="{PALETTE["blue"]}" stroke="{PALETTE["blue"]}" {LOOK[kind]}/>'


def _table(kinds, owner, walks):
    """The blocks, and an arrow for each program through the blocks that it visits, in order."""
    body = [
        _block(kind, LEFT + j * SIDE + 1.5, TOP + i * SIDE + 1.5, SIDE - 3)
        for i, row in enumerate(kinds)
        for j, kind in enumerate(row)
    ]
    for walk in filter(None, walks):
        (i0, j0), (i1, j1) = walk[0], walk[-1]
        along_keys = owner.endswith("queries")
        dx, dy = (SIDE / 2 - 6, 0) if along_keys else (0, SIDE / 2 - 6)
        start, end = ((LEFT + (j + 0.5) * SIDE, TOP + (i + 0.5) * SIDE) for i, j in ((i0, j0), (i1, j1)))
        body.append(arrow([(start[0] - dx, start[1] - dy), (end[0] + dx, end[1] + dy)]))
    middle = LEFT + len(kinds[0]) * SIDE / 2
    body.append(text(middle, 12, f"a program: {owner}", weight="bold"))
    body.append(text(middle, TOP - 12, "keys", size=12))
    x, y = LEFT - 12, TOP + len(kinds) * SIDE / 2
    body.append(f'<g transform="rotate(-90 {number(x)} {number(y)})">{text(x, y, "queries", size=12)}</g>')
    return "".join(body)
