"""Gradient flow through one head, a step at a time: what each step uses, what it makes, and one entry worked out."""

from typing import NamedTuple

import numpy as np

from attnbook.figures.head import Head
from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.pieces import TIMES, factor, products, shown
from attnbook.figures.svg import PALETTE

LEGEND = (("blue", "4 3", "used"), ("orange", "", "made in this step"))
WHOLE = (
    "Read down the left side: Q and K make the scores S, softmax makes the weights P, and P and V make the output. "
    "Then up the right side: each gradient has the shape of its partner on the left. Move the slider to make the "
    "tables one at a time."
)


class Step(NamedTuple):
    """A table that is made; the cells used for one entry of it, and that entry, each as (table, row, column)."""

    makes: str
    used: list
    made: list
    say: str


def head_steps(Q, K, V, dO, *, alt):
    """Draw one head with all its numbers, and a slider that makes them one table at a time, forwards, then backwards.

    Parameters
    ----------
    Q, K, V, dO : array (n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v)
        A tiny example, so that everything can be printed. The scale is 1/√d_k, the loss the sum of ``dO ∘ O``.
        Each step works out the entry of the last query and the last key, and of the second column.
    alt : str
        What the picture shows and what can be changed, in a sentence or two.

    Returns
    -------
    Figure

    See :doc:`/chapters/04_single_head`.
    """
    head = Head(Q, K, V, dO)
    steps = forwards(head) + backwards(head)
    given = (
        f"Given: {Q.shape[0]} queries and {K.shape[0]} keys of width {K.shape[1]}, and for each key a value of width "
        f"{V.shape[1]}. All four sizes differ, so that a wrong transpose cannot fit."
    )
    states = [State({}, WHOLE), State(_hidden(steps), given)]
    states += [_state(step, steps[i:]) for i, step in enumerate(steps, 1)]
    control = Control("Step", ("all", "Q, K, V", *(step.makes for step in steps)))
    return interactive(head.draw(LEGEND), [control], states, alt=alt)


def forwards(head):
    """The steps from the inputs to the loss."""
    T, i, j, _, m = _worked(head)
    scale, here = shown(head.scale), f"Query {i}, key {j}"
    powers = [shown(x) for x in np.exp(T["S"][i])]
    return [
        Step(
            "S",
            _row(T, "Q", i) + _row(T, "K", j),
            [("S", i, j)],
            f"A score is a query times a key, times the scale 1/√{T['K'].shape[1]} = {scale}. {here}: "
            f"{scale}{TIMES}({products(T['Q'][i], T['K'][j])}) = {shown(T['S'][i, j])}.",
        ),
        Step(
            "P",
            _row(T, "S", i),
            [("P", i, j)],
            "Softmax takes e to the power of each score and divides by the sum of the row: now all are positive, with "
            f"sum 1. {here}: {powers[j]} / ({' + '.join(powers)}) = {shown(T['P'][i, j])}.",
        ),
        Step(
            "O",
            _row(T, "P", i) + _column(T, "V", m),
            [("O", i, m)],
            f"An output is the mean of the values, weighted by its row of P. Query {i}: "
            f"{products(T['P'][i], T['V'][:, m])} = {shown(T['O'][i, m])}.",
        ),
        Step(
            "loss",
            _cells(T, "O"),
            [("loss", 0, 0)],
            "The simplest loss: a sum of the outputs, each times a number. Here it is "
            f"{products(T['dO'].ravel(), T['O'].ravel())} = {shown(T['loss'][0, 0])}. Any other loss would do.",
        ),
    ]


def backwards(head):
    """The steps from the loss to the gradients of the inputs."""
    T, i, j, l, m = _worked(head)
    scale, here = shown(head.scale), f"Query {i}, key {j}"
    P, dP, D, dS = shown(T["P"][i, j]), shown(T["dP"][i, j]), T["D"][i, 0], shown(T["dS"][i, j])
    return [
        Step(
            "dO",
            [("loss", 0, 0)],
            _cells(T, "dO"),
            "Now backwards. dO says how fast the loss grows with each output: here these are just the numbers of that "
            "sum. Nothing else of the loss is needed on the way back.",
        ),
        Step(
            "dV",
            _column(T, "P", j) + _column(T, "dO", m),
            [("dV", j, m)],
            "A value gets back from each query what that query attended to it: it looks down a column of P. Key "
            f"{j}: {products(T['P'][:, j], T['dO'][:, m])} = {shown(T['dV'][j, m])}.",
        ),
        Step(
            "dP",
            _row(T, "dO", i) + _row(T, "V", j),
            [("dP", i, j)],
            "A weight multiplies its value. So its gradient is that value times the dO of its query. "
            f"{here}: {products(T['dO'][i], T['V'][j])} = {dP}.",
        ),
        Step(
            "D",
            _row(T, "P", i) + _row(T, "dP", i),
            [("D", i, 0)],
            f"D is the mean of a row of dP, weighted by P. Query {i}: {products(T['P'][i], T['dP'][i])} = {shown(D)}. "
            f"dO times O gives the same: {products(T['dO'][i], T['O'][i])} = {shown(D)}.",
        ),
        Step(
            "dS",
            [("P", i, j), ("dP", i, j), ("D", i, 0)],
            [("dS", i, j)],
            "The keys of a row compete. A score's gradient is how much better than the mean its key did, times its "
            f"weight. {here}: {P}{TIMES}({dP} − {factor(D)}) = {dS}. Each row of dS sums to 0.",
        ),
        Step(
            "dQ",
            _row(T, "dS", i) + _column(T, "K", l),
            [("dQ", i, l)],
            "A query collects the keys, each times the gradient of its score. The scale comes once more. Query "
            f"{i}, column {l}: {scale}{TIMES}({products(T['dS'][i], T['K'][:, l])}) = {shown(T['dQ'][i, l])}.",
        ),
        Step(
            "dK",
            _column(T, "dS", j) + _column(T, "Q", l),
            [("dK", j, l)],
            "A key collects the queries in the same way, but down a column of dS: hence the transpose. Key "
            f"{j}, column {l}: {scale}{TIMES}({products(T['dS'][:, j], T['Q'][:, l])}) = {shown(T['dK'][j, l])}.",
        ),
    ]


def _worked(head):
    """The tables, and whose entries are worked out: the last query and key, and columns of the keys and the values."""
    (n_q, d_k), (n_k, d_v) = head.tables["Q"].shape, head.tables["V"].shape
    return head.tables, n_q - 1, n_k - 1, min(1, d_k - 1), min(1, d_v - 1)


def _row(T, name, i):
    return [(name, i, j) for j in range(T[name].shape[1])]


def _column(T, name, j):
    return [(name, i, j) for i in range(T[name].shape[0])]


def _cells(T, name):
    return [(name, i, j) for i, j in np.ndindex(T[name].shape)]


def _hidden(later):
    return {f"{step.makes} numbers": {"visibility": "hidden"} for step in later}


def _state(step, later):
    parts = _hidden(later)
    for cells, colour, dashes in ((step.used, "blue", "4 3"), (step.made, "orange", None)):
        for name, i, j in cells:
            parts[f"{name} {i} {j}"] = {"fill": PALETTE[colour], "fill-opacity": 0.3}
            parts[f"{name} frame"] = {"visibility": "visible", "stroke": PALETTE[colour], "stroke-dasharray": dashes}
    if step.makes != "D":  # no arrow leads to it
        parts[f"to {step.makes}"] = {"color": PALETTE["orange"], "stroke-width": 3}
    return State(parts, step.say)
