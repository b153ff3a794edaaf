"""What a mask turns into exact zeros: weights, scores' gradients, and rows of dQ, dK and dV."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.matrices import fill, grid
from attnbook.figures.svg import PALETTE, document, text
from attnbook.softmax import softmax_vjp

CELL_W, CELL_H, LEFT, TOP = 42, 26, 48, 22  # pixels: a cell, and the room for the names of rows and of the matrix
LOOK = "Look at"


def masked_gradients(Q, K, V, dO, masks, *, start=0, alt):
    """Draw P, dS, dQ, dK and dV of one head, with a choice of masks, and of a query or a key to look at.

    Parameters
    ----------
    Q, K, V, dO : arrays (n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v)
        One head, and the gradient of its output.
    masks : dict of str to bool array (n_q, n_k)
        What each radio button is called, and its mask. True = may attend.
    start : int
        The mask of the first picture.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure
    """
    n_q, n_k = len(Q), len(K)
    shapes = {"P": (n_q, n_k), "dS": (n_q, n_k), "dQ": Q.shape, "dK": K.shape, "dV": V.shape}
    looks = [("", 0), *(("query", i) for i in range(n_q)), *(("key", j) for j in range(n_k))]
    states = []
    for name, M in masks.items():
        res = attention(Q, K, V, mask=M, method="dense")[1]
        g = attention_vjp(dO, res)
        T = {"P": res.P, "dS": softmax_vjp(dO @ V.T, res.P), "dQ": g.dQ, "dK": g.dK, "dV": g.dV}
        numbers = {part: look for of, value in T.items() for part, look in _numbers(of, value).items()}
        for kind, at in looks:
            say = {"": _of_all, "query": _of_query, "key": _of_key}[kind](name, M, T, at)
            states.append(State(numbers | {f"{of} frame": _frame(of, *shapes[of], kind, at) for of in T}, say))
    controls = [
        Control("Mask", tuple(masks), kind="radio", start=start),
        Control(LOOK, tuple(f"{kind} {at}" if kind else "everything" for kind, at in looks)),
    ]
    svg = "".join(_panel(of, n, m, n_q) for of, (n, m) in shapes.items())
    return interactive(svg, controls, states, alt=alt)


def _panel(of, n, m, n_q):
    """A matrix whose rows are queries or keys; pointing at a row, or at a key's column, looks at it."""
    rows = "key" if of in ("dK", "dV") else "query"
    before = 1 + n_q if rows == "key" else 1  # positions of the slider before the first of these rows
    top = _top(of)
    body = [text(LEFT + m * CELL_W / 2, 10, f"{of}  {n}×{m}", weight="bold")]
    for i in range(n):
        name = text(LEFT - 6, top + (i + 0.5) * CELL_H, f"{rows} {i}", anchor="end", size=12, opacity=0.75)
        body.append(f'<g data-choose="{LOOK}:{before + i}">{name}</g>')
    for j in range(m if of in ("P", "dS") else 0):
        name = text(LEFT + (j + 0.5) * CELL_W, top - 11, f"key {j}", size=12, opacity=0.75)
        body.append(f'<g data-choose="{LOOK}:{1 + n_q + j}">{name}</g>')

    def row(i, j):
        return f"{LOOK}:{before + i}"

    body.append(grid(of, n, m, x=LEFT, y=top, choose=row, width=CELL_W, height=CELL_H))
    look = f'rx="2" stroke="{PALETTE["purple"]}" stroke-width="3" pointer-events="none"'
    body.append(f'<rect data-part="{of} frame" {look}/>')
    return document(LEFT + m * CELL_W + 4, top + n * CELL_H + 6, "".join(body))


def _top(of):
    """Where a matrix begins: below its name, and the names of its columns where they are keys."""
    return TOP + (18 if of in ("P", "dS") else 0)


def _numbers(of, T):
    """As everywhere in the book, but what is exactly 0 is grey."""
    parts = fill(of, T)
    for i, j in np.argwhere(T == 0):
        parts[f"{of} {i} {j}"] = {"fill": PALETTE["grey"], "fill-opacity": 0.25}
    return parts


def _frame(of, n, m, kind, at):
    """Around the row or the column of what is looked at; nowhere in a matrix that has none."""
    box = {"x": LEFT, "y": _top(of), "width": m * CELL_W, "height": n * CELL_H, "visibility": None}
    if kind == ("key" if of in ("dK", "dV") else "query"):
        return box | {"y": _top(of) + at * CELL_H, "height": CELL_H}
    if kind == "key" and of in ("P", "dS"):
        return box | {"x": LEFT + at * CELL_W, "width": CELL_W}
    return {"visibility": "hidden"}


def _of_all(name, M, T, at):
    forbidden = np.count_nonzero(~M)
    if not forbidden:
        return f"{name}: every query sees every key, and no number is exactly 0."
    say = [f"{name}: {forbidden} of {M.size} pairs are forbidden. Their P and dS are exactly 0, not nearly."]
    seen = M.sum(axis=1)
    if dead := _list(np.flatnonzero(seen == 0), "query", "queries"):
        say.append(f"No key for {dead}: the whole row of P, dS and dQ is 0.")
    if alone := _list(np.flatnonzero(seen == 1), "query", "queries"):
        say.append(f"One key only for {alone}: a weight of 1 whatever the score, so the row of dS and dQ is 0.")
    if unseen := _list(np.flatnonzero(~M.any(axis=0)), "key", "keys"):
        say.append(f"Nobody sees {unseen}: dK and dV are 0 there.")
    return " ".join(say)


def _of_query(name, M, T, i):
    keys = np.flatnonzero(M[i])
    if not len(keys):
        return f"Query {i} sees no key. Its rows of P, dS and dQ are exactly 0, and it gives nothing to any key."
    if len(keys) == 1:
        return (
            f"Query {i} sees key {keys[0]} only. Its weight is 1, whatever its score: the row of dS is exactly 0, and "
            f"so is dQ. The value of key {keys[0]} still gets all of dO of query {i}."
        )
    return (
        f"Query {i} sees {_list(keys, 'key', 'keys')}. Only they are in dQ = "
        f"scale · ({_sum(T['dS'][i, keys], 'K', keys)}), and this row of dS sums to 0."
    )


def _of_key(name, M, T, j):
    queries = np.flatnonzero(M[:, j])
    if not len(queries):
        return f"Nobody sees key {j}. Its columns of P and dS are exactly 0, and so are its rows of dK and dV."
    moved = queries[T["dS"][queries, j] != 0]
    dK = f"scale · ({_sum(T['dS'][moved, j], 'Q', moved)})" if len(moved) else "0: no score of it matters"
    dV = _sum(T["P"][queries, j], "dO", queries)
    return f"Key {j} is seen by {_list(queries, 'query', 'queries')}. dK = {dK}; dV = {dV}."


def _list(places, one, many):
    """ "key 3", "keys 0 and 3", "keys 0, 1 and 3"; nothing where there is none."""
    words = [str(p) for p in places]
    if len(words) < 2:
        return "".join(f"{one} {word}" for word in words)
    return f"{many} {', '.join(words[:-1])} and {words[-1]}"


def _sum(numbers, of, places):
    """Such as "0.12 K₀ − 0.31 K₁"."""
    terms = [f"{abs(t):.2f} {of}{_small(p)}" for t, p in zip(numbers, places, strict=True)]
    signs = ["−" if t < 0 else "+" for t in numbers]
    rest = "".join(f" {sign} {term}" for sign, term in zip(signs[1:], terms[1:], strict=True))
    return signs[0].replace("+", "") + terms[0] + rest


def _small(place):
    return str(place).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
