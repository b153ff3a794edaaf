"""A small picture of what rests on what: boxes in rows, each below what it rests on, as SVG that can be clicked."""

import itertools
from html import escape
from typing import NamedTuple

ROW, GAP, HEIGHT, LETTER, WIDEST = 62, 9, 30, 7.25, 5


class Box(NamedTuple):
    """What a box says, its link, and what a pointer over it is told."""

    text: str
    link: str
    title: str

    @property
    def width(self):
        return LETTER * len(self.text) + 14


def reduced(edges):
    """The same arrows, less those that a longer way along others makes superfluous."""
    above = {}

    def all_above(node):
        if node not in above:
            above[node] = set(edges.get(node, ())).union(*(all_above(of) for of in edges.get(node, ())))
        return above[node]

    return {node: [a for a in of if not any(a in all_above(b) for b in of if b != a)] for node, of in edges.items()}


def rows_of(edges):
    """The boxes in rows, each below those it rests on; a row that would be too wide is two."""
    depth = {}

    def depth_of(node):
        if node not in depth:
            depth[node] = 1 + max((depth_of(of) for of in edges[node]), default=-1)
        return depth[node]

    rows = [[] for _ in range(1 + max(map(depth_of, edges), default=-1))]
    for node in edges:
        rows[depth[node]].append(node)
    return [row[i : i + WIDEST] for row in rows for i in range(0, len(row), WIDEST)]


def ways(rows, edges):
    """Each arrow as the places it goes through: a box, a gap in each row between, a box. The gaps join the rows."""
    at = {node: i for i, row in enumerate(rows) for node in row}
    found = []
    for node, of in edges.items():
        for other in of:
            gaps = [(other, i) for i in range(at[other] + 1, at[node])]  # arrows from one box share them
            for gap in gaps:
                if gap not in rows[gap[1]]:
                    rows[gap[1]].append(gap)
            found.append([other, *gaps, node])
    return found


def sort(rows, found):
    """Each row from left to right, so that what is joined stands near each other."""
    joined = {node: set() for row in rows for node in row}
    for way in found:
        for one, other in itertools.pairwise(way):
            joined[one].add(other)
            joined[other].add(one)
    for _ in range(12):
        place = {node: (i + 0.5) / len(row) for row in rows for i, node in enumerate(row)}
        for row in rows:
            near = {n: sum(place[o] for o in joined[n]) / len(joined[n]) if joined[n] else place[n] for n in row}
            row.sort(key=near.get)


def svg(boxes, edges):
    """The picture of ``boxes``, by name; ``edges`` say on which others each rests."""
    edges = reduced(edges)
    rows = rows_of(edges)
    found = ways(rows, edges)
    sort(rows, found)
    wide = {node: boxes[node].width if node in boxes else 0 for row in rows for node in row}
    widths = [sum(wide[n] + GAP for n in row) - GAP for row in rows]
    whole, at = max(widths, default=0) + 4, {}
    for y, (row, width) in enumerate(zip(rows, widths, strict=True)):
        x = (whole - width) / 2
        for node in row:
            at[node] = (x + wide[node] / 2, y * ROW + 2)
            x += wide[node] + GAP
    lines = []
    for way in found:
        path, (x0, y0) = "", at[way[0]]
        for node in way[1:]:
            (x1, y1), y0, half = at[node], y0 + HEIGHT, (ROW - HEIGHT) / 2
            path += (
                f"{'' if path else f'M{x0:.0f} {y0}'}C{x0:.0f} {y0 + half:.0f} {x1:.0f} {y1 - half:.0f} {x1:.0f} {y1}"
            )
            if node in boxes:
                break
            path, (x0, y0) = path + f"V{y1 + HEIGHT}", (x1, y1)
        lines.append(f'<path d="{path}m-4 -7l4 7l4 -7"/>')
    for node, box in boxes.items():
        x, y = at[node]
        lines.append(
            f'<a href="{escape(box.link)}"><title>{escape(box.title)}</title>'
            f'<rect x="{x - box.width / 2:.0f}" y="{y}" width="{box.width:.0f}" height="{HEIGHT}" rx="5"/>'
            f'<text x="{x:.0f}" y="{y + 20}">{escape(box.text)}</text></a>'
        )
    height = len(rows) * ROW - (ROW - HEIGHT) + 4
    size = f'viewBox="0 0 {whole:.0f} {height}" width="{whole:.0f}" height="{height}"'
    return f'<svg class="graph" {size}>{"".join(lines)}</svg>'
