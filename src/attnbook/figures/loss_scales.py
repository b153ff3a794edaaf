"""Which gradients a loss scale keeps in a 16-bit format: their sizes, moved by the scale, over the format's range."""

import numpy as np

from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.svg import PALETTE, document, number, text

LOWEST, HIGHEST = -48, 24  # the powers of two on the axis
POWER, LEFT, TOP, STRIP, NAME = 4.7, 4, 24, 26, 18  # pixels: a power, the margins, a strip, and the name above it
SHADES = {"0": "grey", "fewer bits": "purple", "kept": None, "∞": "orange"}


def loss_scales(backward, dO, powers, formats, rounded, *, start=0, alt):
    """Draw the sizes of all gradients on one axis, with a choice of formats, and a slider that scales them.

    Parameters
    ----------
    backward : callable
        From dO and a rounding to a dict of gradients, "dS" and "dQ" among them. It rounds all that it makes.
    dO : array
        The gradient that arrives, without a scale.
    powers : sequence of int
        The slider's positions: k, for a scale of 2ᵏ.
    formats : dict of str to Format
        What each radio button is called, and its range.
    rounded : callable
        From an array and the name of a format to the nearest numbers of that format.
    start : int
        Where the slider stands in the first picture.
    alt : str
        What the picture shows, in a sentence or two.

    Returns
    -------
    Figure
    """
    true = backward(dO, lambda x: x)
    states = []
    for name, form in formats.items():
        bands = _bands(form, len(true))
        for k in powers:
            with np.errstate(all="ignore"):  # ∞ and NaN are what the picture is about
                found = backward(2.0**k * dO, lambda x, name=name: rounded(x, name))
            parts = bands | {of: {"transform": f"translate({number(k * POWER)} 0)"} for of in true}
            parts |= {f"{of} fate": {"text": _fate(found[of], form)} for of in true}
            states.append(State(parts, f"{name}, scale {_power(k)}: {_say(found, true, k, form)}"))
    controls = [
        Control("Format", tuple(formats), kind="radio"),
        Control("Scale", tuple(map(_power, powers)), start=start),
    ]
    return interactive(_drawn(true), controls, states, alt=alt)


def _drawn(true):
    wide, high = (HIGHEST - LOWEST) * POWER, len(true) * (STRIP + NAME)
    body = []
    for row, (of, T) in enumerate(true.items()):
        y = TOP + row * (STRIP + NAME)
        body.append(text(LEFT, y + 9, of, anchor="start", weight="bold"))
        body.append(text(LEFT + wide, y + 9, "", anchor="end", size=12, part=f"{of} fate"))
        edge = f'<rect width="{number(wide)}" height="{STRIP}" stroke="{PALETTE["grey"]}" stroke-opacity="0.5"/>'
        bars = f'<path data-part="{of}" d="{_histogram(T)}" fill="{PALETTE["blue"]}"/>'
        place = f'x="{LEFT}" y="{y + NAME}" width="{number(wide)}" height="{STRIP}"'
        body.append(f'<svg {place} viewBox="0 0 {number(wide)} {STRIP}">{bars}{edge}</svg>')
    for band, hue in SHADES.items():
        if hue:
            look = f'fill="{PALETTE[hue]}" fill-opacity="0.22"'
            body += [
                f'<rect data-part="{band} {row}" y="{TOP + row * (STRIP + NAME) + NAME}" height="{STRIP}" {look}/>'
                for row in range(len(true))
            ]
        body.append(text(0, 10, band, size=12, part=f"{band} name"))
    for power in (-40, -24, -14, 0, 16):
        body.append(text(_x(power), TOP + high + 12, _power(power), size=12, opacity=0.75))
    return document(wide + 2 * LEFT, TOP + high + 24, "".join(body))


def _histogram(T):
    """Bars of half a power of two; what is 0 has no place on the axis."""
    sizes = np.log2(np.abs(T[T != 0]))
    edges = np.arange(2 * LOWEST, 2 * HIGHEST + 1) / 2
    counts, _ = np.histogram(sizes, edges)
    bars = zip(edges, counts / counts.max() * STRIP, strict=False)
    return "".join(
        f"M{number(_x(edge) - LEFT)} {STRIP}v{number(-bar)}h{number(POWER / 2)}v{number(bar)}z"
        for edge, bar in bars
        if bar
    )


def _bands(form, rows):
    """Where the format ends: below half its smallest number all is 0, above its largest all is ∞."""
    ends = [LOWEST, *np.log2([form.smallest / 2, form.smallest_normal, form.largest]), HIGHEST]
    ends = np.clip(ends, LOWEST, HIGHEST)
    parts = {}
    for band, low, high in zip(SHADES, ends, ends[1:], strict=False):
        parts[f"{band} name"] = {"x": _x((low + high) / 2), "visibility": None if high > low else "hidden"}
        if SHADES[band]:
            place = {"x": _x(low), "width": (high - low) * POWER}
            parts |= {f"{band} {row}": place for row in range(rows)}
    return parts


def _fate(T, form):
    """What became of the entries of a gradient."""
    if not np.isfinite(T).all():
        return "∞ or NaN"
    shares = {"is 0": np.mean(T == 0), "has fewer bits": np.mean((T != 0) & (np.abs(T) < form.smallest_normal))}
    lost = [f"{share:.0%} {what}" for what, share in shares.items() if share >= 0.005]
    return ", ".join(lost) or "kept"


def _say(found, true, k, form):
    broken = [of for of, T in found.items() if not np.isfinite(T).all()]
    if broken:
        return f"too much for {', '.join(broken)}. Throw this step away, and halve the scale."
    error = np.linalg.norm(found["dQ"] / 2.0**k - true["dQ"]) / np.linalg.norm(true["dQ"])
    vanished = np.mean(found["dS"] == 0)
    if vanished >= 0.005:
        return f"{vanished:.0%} of dS is 0, and dQ is off by {error:.1%}. A larger scale would save it."
    if min(np.min(np.abs(T[T != 0])) for T in found.values()) < form.smallest_normal:
        return f"dQ is off by {error:.1%}. Some entries lie below the normal numbers, and have fewer bits."
    return f"every entry keeps all its bits. dQ is off by {error:.1%}: the format's own rounding, at any scale."


def _x(power):
    return LEFT + (power - LOWEST) * POWER


def _power(k):
    return "2" + str(k).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if k else "1"
