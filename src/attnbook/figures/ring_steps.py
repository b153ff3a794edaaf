"""A ring to step through: whose keys a rank meets at each hop, and where their gradients are meanwhile."""

from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.svg import PALETTE, document, text

WIDE, HIGH, GAP = 130, 84, 44
HUES = ("blue", "orange", "green", "purple")
PLACES = ((4, 4), (4 + WIDE + GAP, 4), (4 + WIDE + GAP, 4 + HIGH + GAP), (4, 4 + HIGH + GAP))


def ring_steps(work, *, alt):
    """Draw four ranks in a ring, with a slider over the hops of the forward and of the backward.

    Parameters
    ----------
    work : dict of str to integer array (4, 4)
        What each radio button is called, and the scores that a rank computes at a hop, as ``simulate`` counts them.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure
    """
    names = [
        *(f"forward, hop {t}" for t in range(4)),
        *(f"backward, hop {t}" for t in range(4)),
        "the gradients go home",
    ]
    controls = [Control("Work", tuple(work), "radio"), Control("Step", tuple(names))]
    states = [_state(scores, i) for scores in work.values() for i in range(len(names))]
    body = "".join(_rank(r) for r in range(4)) + "".join(_arrow(r) for r in range(4))
    return interactive(document(WIDE * 2 + GAP + 8, HIGH * 2 + GAP + 8, body), controls, states, alt=alt)


def _state(scores, i):
    backward, hop = i >= 4, i % 4 if i < 8 else 4
    parts = {}
    for r in range(4):
        s, done = (r - hop) % 4, int(scores[r, hop]) if hop < 4 else 0
        lines = f"has dK{r}, dV{r}", "of all queries", ""
        if hop < 4:
            adds = f"adds to dK{s}, dV{s}" if backward else ""
            lines = (f"meets K{s}, V{s}", f"{done} scores", adds) if done else ("gets no block:", "no key to see", "")
        parts[f"block{r}"] = {"stroke": PALETTE[HUES[s] if done or hop == 4 else "grey"]}
        parts |= {f"line{i}of{r}": {"text": line} for i, line in enumerate(lines)}
    return State(parts, _say(scores, backward, hop))


def _say(scores, backward, hop):
    if hop == 4:
        return (
            "Each dK and dV has its parts from all ranks that see the block, and goes home in one message. No dQ moved."
        )
    most, mean = int(scores[:, hop].max()), scores[:, hop].mean()
    what = (
        "adds to its dQ, and to the dK and dV that travel with the block"
        if backward
        else "merges what it found into its O and L"
    )
    whom = "its own keys" if hop == 0 else f"the keys of the rank {hop} before it, if it may see one"
    return f"Each rank meets {whom}, and {what}. The busiest computes {most} scores, and the mean is {mean:g}."


def _rank(r):
    x, y = PLACES[r]
    lines = ((f"rank {r}: Q{r}, O{r}, dQ{r}", ""), *(("", f"line{i}of{r}") for i in range(3)))
    found = (
        f'<rect data-part="block{r}" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="6" stroke="{PALETTE[HUES[r]]}" '
        f'stroke-width="3" fill="none"/>'
    )
    for i, (said, part) in enumerate(lines):
        found += text(x + WIDE / 2, y + 16 + 18 * i, said, size=12, part=part or None)
    return found


def _arrow(r):
    (x, y), (u, v) = PLACES[r], PLACES[(r + 1) % 4]
    dx, dy = (u > x) - (u < x), (v > y) - (v < y)
    a, b = x + WIDE / 2 + dx * (WIDE / 2 + 6), y + HIGH / 2 + dy * (HIGH / 2 + 6)
    c, d = a + dx * (GAP - 12), b + dy * (GAP - 12)
    head = (
        f"M{c - 6 * dx - 5 * dy:g} {d - 6 * dy - 5 * dx:g}L{c:g} {d:g}L{c - 6 * dx + 5 * dy:g} {d - 6 * dy + 5 * dx:g}"
    )
    return f'<path d="M{a:g} {b:g}L{c:g} {d:g}{head}" stroke="{PALETTE["grey"]}" stroke-width="2" fill="none"/>'
