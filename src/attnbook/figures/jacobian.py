"""The softmax of one row and its Jacobian, while one score and the temperature move."""

import numpy as np

from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.matrices import CELL_H, CELL_W, TOP, fill, grid
from attnbook.figures.svg import PALETTE, document, number, text
from attnbook.softmax import softmax, softmax_jacobian

NAME, SCORE, BAR = 44, 62, 120  # pixels: for a key's name, for its score, and for a weight of 1


def jacobian(scores, *, moving, values, temperatures, start=(0, 0), alt):
    """Draw the weights of a row as bars beside their Jacobian, with a slider for one score and one for the temperature.

    Parameters
    ----------
    scores : array (n,)
        The row. The entry ``moving`` is replaced by each of ``values``.
    moving : int
        The key whose score moves.
    values, temperatures : sequences of float
        The positions of the two sliders.
    start : (int, int)
        Where they stand in the first picture.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure
    """
    n = len(scores)
    states = []
    for value in values:
        s = np.array(scores, dtype=float)
        s[moving] = value
        for tau in temperatures:
            p = softmax(s / tau)
            states.append(State(_bars_of(s / tau, p) | fill("J", softmax_jacobian(p), largest=0.25, digits=3), _say(p)))
    controls = [
        Control(f"Score of key {moving}", tuple(f"{v:g}".replace("-", "−") for v in values), start=start[0]),
        Control("Temperature τ", tuple(f"{tau:g}" for tau in temperatures), start=start[1]),
    ]
    return interactive(_bars(n) + _table(n), controls, states, alt=alt)


def _bars(n):
    body = [text(NAME + SCORE / 2, TOP - 12, "s/τ", size=12, opacity=0.75)]
    body.append(text(NAME + SCORE + BAR / 2, TOP - 32, "weights p", weight="bold"))
    for j in range(n):
        y = TOP + (j + 0.5) * CELL_H
        body.append(text(NAME, y, f"key {j}", anchor="end", size=12, opacity=0.75))
        body.append(text(NAME + SCORE / 2, y, "", part=f"s {j}"))
        place = f'x="{NAME + SCORE}" y="{number(y - 8)}" height="16"'
        body.append(f'<rect data-part="p {j}" {place} fill="{PALETTE["green"]}" fill-opacity="0.5"/>')
        body.append(text(0, y, "", anchor="start", part=f"p {j} n"))
    body.append(f'<path d="M{NAME + SCORE} {TOP}v{n * CELL_H}" stroke="{PALETTE["grey"]}"/>')
    return document(NAME + SCORE + BAR + 48, TOP + n * CELL_H + 10, "".join(body))


def _table(n):
    body = [text(NAME + 8 + n * CELL_W / 2, TOP - 32, "J = diag(p) − p pᵀ", weight="bold")]
    for j in range(n):
        body.append(text(NAME + 8 + (j + 0.5) * CELL_W, TOP - 12, f"key {j}", size=12, opacity=0.75))
        body.append(text(NAME, TOP + (j + 0.5) * CELL_H, f"key {j}", anchor="end", size=12, opacity=0.75))
    body.append(grid("J", n, n, x=NAME + 8, y=TOP))
    return document(NAME + 8 + n * CELL_W + 4, TOP + n * CELL_H + 10, "".join(body))


def _bars_of(s, p):
    parts = {}
    for j, (score, weight) in enumerate(zip(s, p, strict=True)):
        parts[f"s {j}"] = {"text": f"{score:.3g}".replace("-", "−")}
        parts[f"p {j}"] = {"width": BAR * weight}
        parts[f"p {j} n"] = {"text": f"{weight:.3f}", "x": NAME + SCORE + BAR * weight + 5}
    return parts


def _say(p):
    """What a reader should see, chosen by the numbers."""
    order = np.argsort(-p, kind="stable")
    first, second = order[:2]
    J = softmax_jacobian(p)
    if p[first] > 0.95:
        seen = f"Saturated: key {first} has {100 * p[first]:.1f} % of the weight, and hardly any score moves it."
    elif p[first] + p[second] > 0.98:
        seen = f"Keys {first} and {second} have nearly all of the weight: what one gains, the other loses."
    elif p.max() - p.min() < 0.1:
        seen = f"Nearly equal weights: J is close to the matrix that subtracts the mean and divides by {len(p)}."
    else:
        losses = " + ".join(f"{-J[first, j]:.3f}" for j in order if j != first)
        rate = f"{J[first, first]:.3f}"
        seen = f"Raise the score of key {first}: it gains weight at the rate {rate}, the others lose {losses}."
    return f"{seen} Every row sums to 0. J hands on at most {np.linalg.norm(J, 2):.3f} of a gradient's length."
