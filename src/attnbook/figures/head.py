"""One head with all its numbers: forwards down the left side, backwards up the right side."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.figures.pieces import CELL_H, CELL_W, arrow, cells, frame
from attnbook.figures.svg import PALETTE, document, text

LABEL, ARROW, SIDE, MIDDLE = 18, 28, 13, 20  # room for a name, for an arrow, beside and between the two columns
ROWS = ("Q dQ", "K dK", "S dS D", "P dP V dV", "O loss dO")


class Head:
    """The tables of one head, small enough to be printed, and the picture of them that figures with controls change.

    The loss is the sum of ``dO ∘ O``: the simplest one that has this gradient. ``tables`` maps the name of each table
    to its numbers.

    Parameters
    ----------
    Q, K, V, dO : array (n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v)
        The scale is 1/√d_k.
    """

    def __init__(self, Q, K, V, dO):
        self.scale = Q.shape[1] ** -0.5
        self.tables = self.compute(Q=Q, K=K, V=V, dO=dO)
        beside = K.shape[0] * CELL_W + 12
        column = max(Q.shape[1] * CELL_W, beside + V.shape[1] * CELL_W)
        inset = {"V": beside, "dV": beside, "D": beside, "O": column / 2 - 18, "dO": column / 2 - 18}
        self.width = 2 * SIDE + 2 * column + MIDDLE
        self._place, y = {}, LABEL
        for row in map(str.split, ROWS):
            y += LABEL * ("Q" in row or "K" in row or "S" in row or "P" in row)
            for name in row:
                x = SIDE + (column + MIDDLE) * name.startswith(("d", "D")) + inset.get(name, 0)
                self._place[name] = (x, y)
            tall = max(len(self.tables[name]) for name in row) * CELL_H
            if "loss" in row:
                self._place["loss"] = (self.width / 2 - CELL_W / 2, y + tall / 2 - CELL_H / 2)
            y += tall + (4 if "Q" in row else ARROW)
        self.height = y - ARROW + 16

    @staticmethod
    def compute(Q, K, V, dO):
        """All tables, by the package."""
        O, res = attention(Q, K, V)
        dQ, dK, dV, *_ = attention_vjp(dO, res)
        dP = dO @ V.mT
        D = np.sum(res.P * dP, axis=-1, keepdims=True)
        tables = {"Q": Q, "K": K, "S": Q.shape[1] ** -0.5 * Q @ K.mT, "P": res.P, "V": V, "O": O}
        tables |= {"loss": np.sum(dO * O, keepdims=True), "dO": dO, "dV": dV, "dP": dP, "D": D}
        return tables | {"dS": res.P * (dP - D), "dQ": dQ, "dK": dK}

    def draw(self, legend, choose=None):
        """Draw the tables and the arrows between them.

        The parts are each cell ("S 0 1"), the numbers of a table ("S numbers"), its frame, which is hidden
        ("S frame"), and the arrows that lead to it ("to S").

        Parameters
        ----------
        legend : sequence of (colour, dashes, words)
            What the colour means; dashes are those of a frame, "" where it is solid, and None where there is no frame.
        choose : callable, optional
            From the name of a table, i and j to the ``data-choose`` of that cell; "" where it chooses nothing.

        Returns
        -------
        str
            An SVG element.
        """
        body = [
            text(SIDE, 9, "forwards ↓", anchor="start", size=12, opacity=0.8),
            text(self.width - SIDE, 9, "↑ backwards", anchor="end", size=12, opacity=0.8),
        ]
        body += [self._table(name, choose) for name in self.tables]
        body += [_arrows(name, *arrows) for name, arrows in self._arrows().items()]
        x = SIDE
        for colour, dashes, words in legend:
            fill = f'fill="{PALETTE[colour]}" fill-opacity="0.3"'
            outline = ("grey", "", 1) if dashes is None else (colour, dashes)
            body.append(frame(x, self.height, 14, 14, fill, *outline))
            body.append(text(x + 20, self.height + 7, words, anchor="start", size=12))
            x += 36 + 6 * len(words)
        return document(self.width, self.height + 18, "".join(body))

    def _table(self, name, choose):
        T, (x, y) = self.tables[name], self._place[name]
        n, m = T.shape
        title = name if name == "loss" else f"{name} {n}×{m}"
        spot = {"O": (x - 6, y + n * CELL_H / 2, "end"), "dO": (x + m * CELL_W + 6, y + n * CELL_H / 2, "start")}
        label_x, label_y, anchor = spot.get(name, (x, y - 9, "start"))
        return (
            cells(name, T, x, y, choose)
            + text(label_x, label_y, title, anchor=anchor, weight="bold")
            + frame(x, y, m * CELL_W, n * CELL_H, f'data-part="{name} frame" visibility="hidden"', "blue")
        )

    def _arrows(self):
        """The lines to each table, as points from tail to head, and the formula beside the last of them."""

        place, tables = self._place, self.tables

        def left(name):
            return place[name][0], place[name][1] + len(tables[name]) * CELL_H / 2

        def right(name):
            return left(name)[0] + tables[name].shape[1] * CELL_W, left(name)[1]

        def around(start, end):
            x = left(start)[0] - 10
            return left(start), (x, left(start)[1]), (x, left(end)[1]), left(end)

        def edge(name, below):
            return place[name][1] + (len(tables[name]) * CELL_H + 2 if below else -2)

        def line(start, x, end, to=None):
            """Down or up, from ``x`` to ``x``, or slanted to ``to``."""
            down = place[start][1] < place[end][1]
            return (x, edge(start, below=down)), (x if to is None else to, edge(end, below=not down))

        Q, O, dQ, dO = (place[name][0] for name in ("Q", "O", "dQ", "dO"))
        V, dV = (place[name][0] + CELL_W / 2 for name in ("V", "dV"))
        return {
            "S": ([around("Q", "S"), line("K", Q + 70, "S")], "scale · Q Kᵀ", "right"),
            "P": ([line("S", Q + 70, "P")], "softmax", "right"),
            "O": ([line("V", V, "O", to=O + 26), line("P", O + 10, "O")], "P V", "left"),
            "loss": ([(right("O"), left("loss"))], "", ""),
            "dO": ([(right("loss"), left("dO"))], "", ""),
            "dP": ([line("dO", dO + 10, "dP")], "dO Vᵀ", "left"),
            "dV": ([line("dO", dO + 26, "dV", to=dV)], "Pᵀ dO", "below"),
            "dS": ([line("dP", dQ + 70, "dS")], "P ∘ (dP − D)", "right"),
            "dK": ([line("dS", dQ + 70, "dK")], "scale · dSᵀ Q", "right"),
            "dQ": ([around("dS", "dQ")], "scale · dS K", "above"),
        }


def _arrows(name, lines, formula, side):
    body = [arrow(points) for points in lines]
    if formula:
        (x0, y0), (x, y) = lines[-1][0], lines[-1][-1]
        spot = {
            "left": (min(x0, x) - 7, min(y0, y) + 11, "end"),
            "right": (max(x0, x) + 8, min(y0, y) + 11, "start"),
            "below": ((x0 + x) / 2 + 4, max(y0, y) - 2, "start"),
            "above": (x + 4 * CELL_W, y - CELL_H - 9, "end"),  # in one line with the name of dQ
        }
        label_x, label_y, anchor = spot[side]
        body.append(text(label_x, label_y, formula, anchor=anchor, size=12))
    return f'<g data-part="to {name}" stroke-width="1.3">{"".join(body)}</g>'
