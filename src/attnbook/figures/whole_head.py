"""A whole head and its gradients on one picture: forwards, and back with what each step needs of the way there."""

from attnbook.figures.pieces import arrow
from attnbook.figures.svg import PALETTE, Figure, document, number, switched, text

# Name: how many steps from the input, its first and last lane (those of Q, K and V), how it is made, what that needs.
BOXES = {
    "X": (0, 0, 2, ("(input)",), ""),
    "Q": (1, 0, 0, ("= X W_Q",), ""),
    "K": (1, 1, 1, ("= X W_K",), ""),
    "V": (1, 2, 2, ("= X W_V",), ""),
    "S": (2, 0, 1, ("= scale · Q Kᵀ",), ""),
    "P": (3, 0, 1, ("= softmax(S)",), ""),
    "O": (4, 0, 2, ("= P V",), ""),
    "ℓ": (5, 0, 2, ("(loss)",), ""),
    "dO": (4, 0, 2, ("(given)",), ""),
    "dP": (3, 0, 1, ("= dO Vᵀ",), "V"),
    "dS": (2, 0, 1, ("= P ∘ (dP − D)",), "P"),
    "dV": (1, 2, 2, ("= Pᵀ dO",), "P"),
    "dQ": (1, 0, 0, ("= scale · dS K",), "K"),
    "dK": (1, 1, 1, ("= scale · dSᵀ Q",), "Q"),
    "dX": (0, 0, 2, ("= dQ W_Qᵀ", "+ dK W_Kᵀ", "+ dV W_Vᵀ"), "every W"),
}
EDGES = (  # from, to, and the lane between them
    *(("X", "Q", 0), ("X", "K", 1), ("X", "V", 2), ("Q", "S", 0), ("K", "S", 1), ("S", "P", 0.5), ("P", "O", 0.5)),
    *(("V", "O", 2), ("O", "ℓ", 1), ("ℓ", "dO", 1), ("dO", "dP", 0.5), ("dO", "dV", 2), ("dP", "dS", 0.5)),
    *(("dS", "dQ", 0), ("dS", "dK", 1), ("dQ", "dX", 0), ("dK", "dX", 1), ("dV", "dX", 2)),
)
LINE, GAP, EDGE = 15, 20, 2  # the height of a line of words, the length of an arrow, the margin


def whole_head(*, alt):
    """Draw a head with its gradients: two rows that run to the right and back, or, on a phone, one column downwards.

    Parameters
    ----------
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure

    See :doc:`/chapters/01_a_first_head`.
    """
    return Figure(switched(_wide(), _tall()), alt)


def _wide():
    """Gradients under their partners: steps are columns, lanes are rows, those of the gradients below."""
    widths, lane, below = (98, 106, 106, 102, 66, 56), 3 * LINE + 8, 3 * (3 * LINE + 16) + 14
    left = [EDGE + sum(widths[:step]) + step * GAP for step in range(6)]
    boxes, bottom = {}, 0
    for name, (step, first, last, made, needs) in BOXES.items():
        y = EDGE + first * (lane + 8) + below * name.startswith("d")
        height = (last - first) * (lane + 8) + lane + below * (name == "ℓ")
        words = [name, *made, *_needs(needs)]
        boxes[name] = (left[step], y, widths[step], height, words)
        bottom = max(bottom, y + height)
    lines = []
    for start, end, place in EDGES:
        (x0, _, w0, *_), (x1, _, w1, *_) = boxes[start], boxes[end]
        y = EDGE + place * (lane + 8) + lane / 2 + below * end.startswith("d")
        lines.append([(x0 + w0, y), (x1, y)] if x0 < x1 else [(x0, y), (x1 + w1, y)])
    return _drawn(left[-1] + widths[-1] + EDGE, bottom + EDGE, boxes, lines)


def _tall():
    """Gradients further down: lanes are columns, and steps are rows, first those forwards, then those back."""
    lane, boxes, y, row, height = 104, {}, EDGE, None, 0
    for name, (step, first, last, made, needs) in BOXES.items():
        if row != (row := (name.startswith("d"), step)) and boxes:
            y += height + GAP
        x, width = EDGE + first * (lane + 7), (last - first) * (lane + 7) + lane
        words = [name, *made] if last == first and needs else [f"{name} {' '.join(made)}"]
        height = (len(words) + bool(needs)) * LINE + 10
        boxes[name] = (x, y, width, height, [*words, *_needs(needs)])
    lines = []
    for start, end, place in EDGES:
        x = EDGE + place * (lane + 7) + lane / 2
        lines.append([(x, boxes[start][1] + boxes[start][3]), (x, boxes[end][1])])
    return _drawn(3 * lane + 14 + 2 * EDGE, y + height + EDGE, boxes, lines)


def _needs(needs):
    return [f"needs {needs}"] if needs else []


def _drawn(width, height, boxes, lines):
    body = [f'<g stroke-width="1.4">{arrow(line)}</g>' for line in lines]
    for name, (x, y, w, h, words) in boxes.items():
        colour = "orange" if name.startswith("d") else "grey" if name == "ℓ" else "blue"
        place = f'data-part="{name}" x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}" rx="6"'
        body.append(f'<rect {place} fill="{PALETTE[colour]}" fill-opacity="0.14" stroke="{PALETTE[colour]}"/>')
        for i, line in enumerate(words):
            words_y = y + h / 2 + (i - (len(words) - 1) / 2) * LINE
            drawn = text(x + w / 2, words_y, line, size=None if line == name else 12.5)
            body.append(drawn.replace(f">{name}", f'><tspan font-weight="bold">{name}</tspan>') if i == 0 else drawn)
    return document(width, height, "".join(body))
