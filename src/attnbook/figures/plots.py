"""Curves: matplotlib draws, and its SVG is made small, deterministic and fit for dark pages."""

import io
import re

from attnbook.figures.svg import PALETTE, Figure, number

# matplotlib draws in these; the SVG gets the palette's CSS colours instead.
STAND_INS = {"ink": "#010203", "blue": "#010204", "orange": "#010205", "green": "#010206", "purple": "#010207"}
STAND_INS["grey"] = "#010208"

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attnbook",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 2,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), STAND_INS["ink"]
    ),
}


def plot(draw, *, alt, size=(6.0, 3.2), panels=1):
    """Draw with matplotlib on axes prepared for this book.

    Tell curves apart by colour *and* by dash or marker, and label them.

    Parameters
    ----------
    draw : callable
        Takes the axes (a sequence of them where ``panels`` > 1). Colours cycle through the palette by themselves.
    alt : str
        What the picture shows, in a sentence or two.
    size : (float, float)
        Width and height in inches.
    panels : int
        How many axes, side by side.

    Returns
    -------
    Figure
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    hues = [STAND_INS[name] for name in ("blue", "orange", "green", "purple")]
    cycle = mpl.cycler(color=hues) + mpl.cycler(linestyle=["-", "--", "-.", ":"])
    with mpl.rc_context({**STYLE, "axes.prop_cycle": cycle}):
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots(1, panels)
        draw(axes)
        out = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Figure(_tidy(out.getvalue()), alt)


def _short_numbers(tag):
    return re.sub(r"-?\d+\.\d{3,}", lambda m: number(float(m.group())), tag)


def _tidy(svg):
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", lambda tag: _short_numbers(tag.group()), svg)  # in tags only: a label keeps its digits
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([\w-]+)"', lambda m: m.group() if m.group(1) in used else "", svg)
    svg = re.sub(r"font: [^;\"]*?(\d+)px [^;\"]*", r"font-size: \1px; font-family: inherit", svg)
    for name, stand_in in STAND_INS.items():
        svg = svg.replace(stand_in, PALETTE[name])
    svg = svg.replace("<svg ", '<svg aria-hidden="true" ', 1)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()
