"""A graph of steps with arrows: which quantity is made from which, and which gradient flows where."""

from attnbook.figures.svg import PALETTE, Figure, document, number, text

BOX_W, BOX_H, STEP_X, STEP_Y, MARGIN = 84, 40, 140, 66, 14


def flow(nodes, edges, *, alt, colours=None):
    """Draw named boxes on a grid and arrows between them.

    Parameters
    ----------
    nodes : dict of str to (column, row)
        Where each box stands; fractions are fine. The name is printed in the box; a line break splits it in two.
    edges : sequence of (from, to) or (from, to, label)
        Arrows from box to box.
    alt : str
        What the picture shows, in a sentence or two.
    colours : dict of str to str, optional
        Box name to "blue", "orange", "green", "purple" or "grey" (the default).

    Returns
    -------
    Figure
    """
    colours = colours or {}
    centre = {n: (MARGIN + BOX_W / 2 + c * STEP_X, MARGIN + BOX_H / 2 + r * STEP_Y) for n, (c, r) in nodes.items()}
    body = [_arrow(centre[e[0]], centre[e[1]], e[2] if len(e) > 2 else "") for e in edges]
    body += [_box(*centre[name], name, colours.get(name, "grey")) for name in nodes]
    width = max(x for x, _ in centre.values()) + BOX_W / 2 + MARGIN
    height = max(y for _, y in centre.values()) + BOX_H / 2 + MARGIN
    return Figure(document(width, height, "".join(body)), alt)


def _box(x, y, name, colour):
    place = f'x="{number(x - BOX_W / 2)}" y="{number(y - BOX_H / 2)}" width="{BOX_W}" height="{BOX_H}" rx="6"'
    fill = f'fill="{PALETTE[colour]}" fill-opacity="0.14" stroke="{PALETTE[colour]}" stroke-width="1.5"'
    lines = name.split("\n")
    labels = (
        text(x, y + (i - (len(lines) - 1) / 2) * 15, line, weight="bold" if i == 0 else None)
        for i, line in enumerate(lines)
    )
    return f"<rect {place} {fill}/>" + "".join(labels)


def _arrow(start, end, label):
    (x0, y0), (x1, y1) = _edge_of(start, end), _edge_of(end, start)
    length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1.0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    bx, by = x1 - 8 * ux, y1 - 8 * uy  # where the head begins
    line = f'<path d="M{number(x0)} {number(y0)}L{number(bx)} {number(by)}" stroke="currentColor" stroke-width="1.4"/>'
    corners = ((x1, y1), (bx - 4 * uy, by + 4 * ux), (bx + 4 * uy, by - 4 * ux))
    head = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
    above = -1 if ux >= 0 else 1  # the side of the line on which its label reads as lying above it
    x, y = (x0 + x1) / 2 - 12 * uy * above, (y0 + y1) / 2 + 12 * ux * above
    anchor = "middle" if abs(uy) < 0.9 else ("start" if uy * above < 0 else "end")  # beside a steep line, not across it
    words = text(x, y, label, anchor=anchor, size=12) if label else ""
    return f'{line}<polygon points="{head}" fill="currentColor"/>{words}'


def _edge_of(centre, towards):
    """Where the line from one box's centre to another's leaves the box."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    reach = min((BOX_W / 2 + 2) / abs(dx) if dx else 1e9, (BOX_H / 2 + 2) / abs(dy) if dy else 1e9)
    return centre[0] + dx * reach, centre[1] + dy * reach
