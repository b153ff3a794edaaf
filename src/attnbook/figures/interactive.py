"""A picture that answers: native controls choose one of its states, and a script of the site puts the values in place.

Python computes every number. The page carries the first picture, and for all that changes its values: one for each
combination of those controls that it depends on.
"""

import json
from html import escape
from math import prod
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from attnbook.figures.svg import Figure, number

NAMESPACE = "http://www.w3.org/2000/svg"


class Control(NamedTuple):
    """A slider or radio buttons: its label, what each position is called, and the position of the first picture."""

    name: str
    values: tuple
    kind: str = "slider"
    start: int = 0


class State(NamedTuple):
    """What the parts of the picture look like with the controls in one position, and a sentence that says it.

    ``parts`` maps the name of a part to its ``"text"`` and its SVG attributes. None takes an attribute away.
    """

    parts: dict
    say: str


class Interactive(Figure):
    """A figure with controls. Where no script runs it is its first picture, and the controls stay hidden."""

    def __init__(self, svg, alt, controls, say, data):
        super().__init__(svg, alt)
        self._controls = controls
        self._say = say
        self._data = data

    def picture(self):
        controls = "".join(_radios(c) if c.kind == "radio" else _slider(c) for c in self._controls)
        data = json.dumps(self._data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        return (
            f'<figure class="attnbook interactive" role="group" aria-label="{escape(self.alt)}">'
            f'<form autocomplete="off" hidden>{controls}</form><div class="interactive-picture">{self.svg}</div>'
            f'<p class="interactive-say" aria-live="polite">{escape(self._say)}</p>'
            f'<script type="application/json">{data}</script></figure>'
        )


def interactive(svg, controls, states, *, alt):
    """Give a picture controls, and the site's script what to show for each of their positions.

    Parameters
    ----------
    svg : str
        One SVG element, or several, which stand side by side or below each other. What changes carries
        ``data-part="name"``. An element with ``data-choose="Query:2"`` sets the control Query to position 2 when it is
        pointed at; ``", "`` separates several.
    controls : sequence of Control
        In the order in which they stand.
    states : sequence of State
        One for each combination of positions; those of the last control follow each other. What a state does not
        mention stays as in ``svg``. The first picture is ``svg`` with the values of the state where the controls start.
    alt : str
        What the picture shows and what can be changed, in a sentence or two.

    Returns
    -------
    Figure
    """
    _check_controls(controls)
    wanted = prod(len(c.values) for c in controls)
    if len(states) != wanted:
        raise ValueError(f"states: {wanted} are needed, one for each combination of positions, but {len(states)} came")
    shown = _picture(svg, controls)
    parts = {element.get("data-part"): element for element in shown.iter() if element.get("data-part")}
    unknown = {name for state in states for name in state.parts} - parts.keys()
    if unknown:
        raise ValueError(f"states: no element of svg has data-part={min(unknown)!r}")
    keys = {(name, key): None for state in states for name, look in state.parts.items() for key in look}
    drawn = {(name, key): _get(parts[name], key) for name, key in keys}
    columns = {("", "text"): [state.say for state in states]} | {
        (name, key): [_value(state.parts.get(name, {}).get(key, drawn[name, key])) for state in states]
        for name, key in keys
    }
    start = np.ravel_multi_index([c.start for c in controls], [len(c.values) for c in controls])
    for name, key in keys:
        _put(parts[name], key, columns[name, key][start])
    svg = "".join(ElementTree.tostring(picture, encoding="unicode") for picture in shown)
    return Interactive(svg, alt, controls, states[start].say, _shortened(columns, controls))


def _shortened(columns, controls):
    """The values of each part, along the controls that it depends on, as places in one list of values.

    What depends on none is in the first picture already. The part without a name is the sentence.
    """
    values, parts = {}, []
    for (name, key), column in columns.items():
        column, axes = np.array(column, dtype=object).reshape([len(c.values) for c in controls]), []
        for axis in range(len(controls)):
            if np.all(column == column.take([0], axis)):
                column = column.take([0], axis)
            else:
                axes.append(axis)
        if axes:
            parts.append([name, key, axes, [values.setdefault(value, len(values)) for value in column.flat]])
    return {"values": list(values), "parts": parts}


def _check_controls(controls):
    names = [c.name for c in controls]
    if len(set(names)) < len(names) or any(mark in name for name in names for mark in (":", ",", '"')):
        raise ValueError(f'controls: names differ and hold none of : , ", but {names} came')
    for c in controls:
        if c.kind not in ("slider", "radio"):
            raise ValueError(f'controls: kind is "slider" or "radio", but {c.name} has {c.kind!r}')
        if not 0 <= c.start < len(c.values):
            raise ValueError(f"controls: {c.name} has {len(c.values)} positions and cannot start at {c.start}")


def _picture(svg, controls):
    """The SVG elements, each knowing its namespace as an attribute, so that they are written back as they came."""
    plain = svg.replace(f' xmlns="{NAMESPACE}"', "")
    shown = ElementTree.fromstring(f"<all>{plain}</all>")
    for picture in shown:
        picture.attrib = {"xmlns": NAMESPACE, **picture.attrib}
    positions = {f"{c.name}:{i}" for c in controls for i in range(len(c.values))}
    names = [element.get("data-part") for element in shown.iter() if element.get("data-part")]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"svg: data-part={min(twice)!r} stands at more than one element")
    for element in shown.iter():
        wrong = {choice for choice in element.get("data-choose", "").split(", ") if choice} - positions
        if wrong:
            raise ValueError(f"svg: data-choose={min(wrong)!r} is no position of a control")
    return shown


def _value(value):
    return value if value is None or isinstance(value, str) else number(value)


def _get(element, key):
    return (element.text or "") if key == "text" else element.get(key)


def _put(element, key, value):
    if key == "text":
        element.text = value
    elif value is None:
        element.attrib.pop(key, None)
    else:
        element.set(key, value)


def _slider(c):
    values = [str(v) for v in c.values]
    value = escape(values[c.start])
    room = max(map(len, values))  # so that the slider stays in its place while it is dragged
    return (
        f'<div class="interactive-slider" data-control="{escape(c.name)}"><label>{escape(c.name)} <input type="range" '
        f'min="0" max="{len(c.values) - 1}" value="{c.start}" aria-valuetext="{value}" '
        f'data-values="{escape(json.dumps(values, ensure_ascii=False))}"></label>'
        f'<span style="min-width:{room}ch" aria-hidden="true">{value}</span></div>'
    )


def _radios(c):
    choices = "".join(
        f'<label><input type="radio" name="{escape(c.name)}" value="{i}"{" checked" * (i == c.start)}> '
        f"{escape(str(value))}</label>"
        for i, value in enumerate(c.values)
    )
    return f'<fieldset data-control="{escape(c.name)}"><legend>{escape(c.name)}</legend>{choices}</fieldset>'
