"""One query and its keys as arrows in the plane, and where their gradients point."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.figures.pieces import arrow, shown
from attnbook.figures.svg import PALETTE, Figure, document, number, text

WIDTH, MARGIN, LINE = 330, 26, 18  # fits a phone; room for the names at the tips; the height of a line of words
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
LOOKS = {1: ("better than", "blue", ""), 0: ("as well as", "grey", ""), -1: ("worse than", "orange", "5 3")}


def arrows(q, K, V, dO, *, scale=None, grow=1, alt):
    """Draw a query, its keys and their gradients as arrows in the plane.

    Keys that do better than the row's average are blue, those that do worse orange and dashed. Gradients are green.
    ``dQ`` begins at the tip of the query, and thin lines lead to its tip, one a key: ``scale · dS · k``, along a
    better key and against a worse one. Each ``dK`` begins at the tip of its key and lies along the query.

    Parameters
    ----------
    q : array (2,)
    K : array (n_k, 2)
    V : array (n_k, d_v)
    dO : array (d_v,)
    scale : float, optional
        1/√2 by default.
    grow : float
        Gradients are drawn so many times longer than they are.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure

    See :doc:`/chapters/04_single_head`.
    """
    scale = 2**-0.5 if scale is None else scale
    _, res = attention(q[None], K, V, scale=scale)
    dQ, dK, *_ = attention_vjp(dO[None], res)
    dP = V @ dO
    lead = dP - res.P[0] @ dP  # over the average
    dS = res.P[0] * lead
    pulls = q + grow * np.concatenate([np.zeros((1, 2)), np.cumsum(scale * dS[:, None] * K, axis=0)])
    dQ, dK = q + grow * dQ[0], K + grow * dK

    ends = np.concatenate([np.zeros((1, 2)), pulls, K, dK])
    low, high = ends.min(axis=0), ends.max(axis=0)
    unit = (WIDTH - 2 * MARGIN) / np.max(high - low)
    left, height = (WIDTH - unit * (high[0] - low[0])) / 2, 2 * MARGIN + unit * (high[1] - low[1])

    def at(point):
        return left + unit * (point[0] - low[0]), height - MARGIN - unit * (point[1] - low[1])

    origin, across = np.zeros(2), np.array([-q[1], q[0]])
    body, legend = [_arrow("q", [at(origin), at(q)], "ink", 2.4)], []
    for j, key in enumerate(K):
        name = f"k{str(j).translate(SUBSCRIPTS)}"
        how, colour, dashes = LOOKS[np.sign(round(lead[j], 9))]
        look = (colour, 1.8, dashes)
        body.append(_arrow(f"k {j}", [at(origin), at(key)], *look))
        body.append(_arrow(f"dK {j}", [at(key), at(dK[j])], "green", 2.4))
        body.append(_line(f"pull {j}", at(pulls[j]), at(pulls[j + 1]), dashes))
        side = across if key @ across > 0 else -across  # dK lies along q, the name does not
        body.append(text(*_beside(at(key), side, 13), name, weight="bold", fill=colour))
        legend.append((look, f"{name} does {how} the average: dS = {shown(dS[j])}"))
    turn = np.array([-dQ[1] + q[1], dQ[0] - q[0]])  # a quarter from dQ, away from the thin lines
    turn = -turn if np.sum((pulls - q) @ turn) > 0 else turn
    body.append(_arrow("dQ", [at(q), at(dQ)], "green", 3))
    body.append(text(*_beside(at((q + dQ) / 2), turn, 15), "dQ", weight="bold", fill="green"))
    body.append(text(*_beside(at(0.6 * q), -across, 12), "q", weight="bold"))
    legend.append((("green", 2.4, ""), f"a gradient{f', {shown(grow)} times as long' if grow != 1 else ''}"))
    for i, (look, words) in enumerate(legend):
        y = height + (i + 0.5) * LINE
        body += [_arrow(None, [(12, y), (46, y)], *look), text(54, y, words, anchor="start", size=12)]
    return Figure(document(WIDTH, height + len(legend) * LINE + 4, "".join(body)), alt)


def _arrow(name, points, colour, width, dashes=""):
    """An arrow with its name as a part; without a head where it is too short for one."""
    (x0, y0), (x, y) = points
    path = arrow(points) if np.hypot(x - x0, y - y0) > 9 else _path(*points, "currentColor")
    part = f' data-part="{name}"' if name else ""
    return f'<g{part} color="{PALETTE[colour]}" stroke-width="{width}"{_dashed(dashes)}>{path}</g>'


def _line(name, start, end, dashes):
    return f'<g data-part="{name}" stroke-width="1.2"{_dashed(dashes)}>{_path(start, end, PALETTE["green"])}</g>'


def _path(start, end, colour):
    return f'<path d="M{"L".join(f"{number(x)} {number(y)}" for x, y in (start, end))}" stroke="{colour}"/>'


def _dashed(dashes):
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _beside(place, direction, distance):
    """A point of the picture, that far from another. Directions are those of the plane, where y grows upwards."""
    ux, uy = direction / (np.hypot(*direction) or 1)
    return place[0] + distance * ux, place[1] - distance * uy
