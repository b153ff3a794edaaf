"""A small picture of what rests on what: boxes in rows, each below what it rests on, as SVG that can be clicked."""

from html import escape
from typing import NamedTuple

ROW, GAP, HEIGHT, LETTER, WIDEST = 62, 14, 30, 7.3, 5


class Box(NamedTuple):
    """What a box says, its link, and what a pointer over it is told."""

    text: str
    link: str
    title: str

    @property
    def width(self):
        return LETTER * len(self.text) + 18


def reduced(edges):
    """The same arrows, less those that a longer way along others makes superfluous."""
    above = {}

    def all_above(node):
        if node not in above:
            above[node] = set(edges.get(node, ())).union(*(all_above(of) for of in edges.get(node, ())))
        return above[node]

    return {node: [a for a in of if not any(a in all_above(b) for b in of if b != a)] for node, of in edges.items()}


def rows_of(edges):
    """The boxes in rows: each one row below the lowest of those it rests on, and near them from left to right."""
    depth = {}

    def depth_of(node):
        if node not in depth:
            depth[node] = 1 + max((depth_of(of) for of in edges[node]), default=-1)
        return depth[node]

    rows = [[] for _ in range(1 + max(map(depth_of, edges), default=-1))]
    for node in edges:
        rows[depth[node]].append(node)
    rows = [row[i : i + WIDEST] for row in rows for i in range(0, len(row), WIDEST)]  # still below what they rest on
    for _ in range(8):
        place = {node: i / len(row) for row in rows for i, node in enumerate(row)}
        below = {node: [n for n, of in edges.items() if node in of] for node in edges}
        for row in rows:
            near = {n: [place[o] for o in (*edges[n], *below[n])] or [place[n]] for n in row}
            row.sort(key=lambda n, near=near: sum(near[n]) / len(near[n]))
    return rows


def svg(boxes, edges):
    """The picture of ``boxes``, by name; ``edges`` say on which others each rests."""
    edges = reduced(edges)
    rows = rows_of(edges)
    widths = [sum(boxes[n].width + GAP for n in row) - GAP for row in rows]
    whole, at = max(widths, default=0) + 4, {}
    for y, (row, width) in enumerate(zip(rows, widths, strict=True)):
        x = (whole - width) / 2
        for node in row:
            at[node] = (x, y * ROW + 2)
            x += boxes[node].width + GAP
    lines = []
    for node, of in edges.items():
        for other in of:
            (x0, y0), (x1, y1) = at[other], at[node]
            x0, x1, y0 = x0 + boxes[other].width / 2, x1 + boxes[node].width / 2, y0 + HEIGHT
            bend = min(ROW - HEIGHT, (y1 - y0) / 2)
            lines.append(f'<path d="M{x0:.0f} {y0}C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} {x1:.0f} {y1}"/>')
    for node, (x, y) in at.items():
        box = boxes[node]
        lines.append(
            f'<a href="{escape(box.link)}"><title>{escape(box.title)}</title>'
            f'<rect x="{x:.0f}" y="{y}" width="{box.width:.0f}" height="{HEIGHT}" rx="5"/>'
            f'<text x="{x + box.width / 2:.0f}" y="{y + 20}">{escape(box.text)}</text></a>'
        )
    height = len(rows) * ROW - (ROW - HEIGHT) + 4
    return (
        f'<svg class="graph" viewBox="0 0 {whole:.0f} {height}" width="{whole:.0f}" height="{height}">'
        f"{''.join(lines)}</svg>"
    )
