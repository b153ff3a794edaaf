"""What every figure is made of: a palette that CSS can turn dark, text, and the wrapper that carries the alt text.

Colours are CSS variables with a fallback, so that the page decides light or dark and a bare notebook still shows them.
The four hues keep apart for the common kinds of colour blindness (after Okabe and Ito); none carries meaning alone.
"""

import re
from html import escape
from pathlib import Path

PALETTE = {
    "blue": "var(--ab-blue, #0072b2)",
    "orange": "var(--ab-orange, #c24e00)",
    "green": "var(--ab-green, #00795a)",
    "purple": "var(--ab-purple, #a3437b)",
    "grey": "var(--ab-grey, #767676)",
    "ink": "currentColor",
}
INK = "#222"  # what currentColor is in a file, which has no page around it


class Figure:
    """An SVG with its alt text. Shows itself in a notebook; its ``repr`` is the alt text, for readers without it."""

    def __init__(self, svg, alt):
        self.svg = svg
        self.alt = alt
        self.name = self.caption = None

    def captioned(self, name, caption):
        """The figure with a caption. On the site it gets a number, and its name is what ``{numref}`` calls it."""
        self.name, self.caption = name, caption
        return self

    def picture(self):
        """The element itself, without its caption."""
        return f'<figure class="attnbook" tabindex="0" role="img" aria-label="{escape(self.alt)}">{self.svg}</figure>'

    def save(self, path):
        """Write the picture to an SVG file that stands alone: the first, widest form, in the light page's colours."""
        depth = 0
        for tag in re.finditer(r"<svg\b|</svg>", self.svg):  # an SVG may hold others
            depth += 1 if tag[0] == "<svg" else -1
            if depth == 0:
                break
        svg = re.sub(r"var\([\w-]+, ([^()]+)\)", r"\1", self.svg[: tag.end()])
        svg = svg.replace("currentColor", INK).replace("inherit", "sans-serif")
        Path(path).write_text(svg, encoding="utf-8")

    def _repr_html_(self):
        if self.caption is None:
            return self.picture()
        return f'<figure id="{self.name}">{self.picture()}<figcaption>{escape(self.caption)}</figcaption></figure>'

    def __repr__(self):
        return f"Figure: {self.alt}"


def document(width, height, body):
    """An SVG element of that size around ``body``. Hidden from screen readers, which read the figure's alt text."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" aria-hidden="true" fill="none" '
        f'font-family="inherit" font-size="13">{body}</svg>'
    )


def switched(wide, tall):
    """Two SVG elements of which one is seen: ``tall`` on the screen of a phone, ``wide`` elsewhere, and without CSS."""
    rule = "@media screen and (max-width: 720px) {.ab-wide {display: none} .ab-tall {display: inline}}"
    wide = wide.replace("<svg ", '<svg class="ab-wide" style="max-width: 100%; height: auto" ', 1)
    tall = tall.replace("<svg ", '<svg class="ab-tall" display="none" ', 1)
    return f"{wide}{tall}<style>{rule}</style>"


def text(x, y, content, *, anchor="middle", size=None, weight=None, fill="ink", opacity=None, part=None):
    """A line of text; ``y`` is its middle. ``part`` names it, for a picture with controls."""
    more = "".join(
        f' {name}="{value}"'
        for name, value in (("font-size", size), ("font-weight", weight), ("opacity", opacity), ("data-part", part))
        if value is not None
    )
    place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}" dominant-baseline="central"'
    return f'<text {place} fill="{PALETTE[fill]}"{more}>{escape(content)}</text>'


def number(x):
    """At most two decimals, no trailing zeros, no minus zero: short, and the same whatever the last bit was."""
    return (
        f"{x:.2f}".rstrip("0").rstrip(".").replace("-0", "0") if abs(x) < 0.005 else f"{x:.2f}".rstrip("0").rstrip(".")
    )
