"""What ``benchmarks/gpu.py`` recorded on a GPU, drawn: speed, times beside torch's kernels, and memory, over n.

Where nothing is recorded each function says so in a line, and draws nothing.
"""

import json
import math
from pathlib import Path

from attnbook.book.figures.plots import STAND_INS, plot

LOOKS = {
    "attnbook fused": ("purple", "o", "-"),
    "attnbook.torch": ("purple", "s", "--"),
    "attnbook tiled": ("purple", "^", "-."),
    "attnbook dense": ("purple", "v", ":"),
    "CuPy tiled": ("orange", "^", "-."),
    "CuPy dense": ("orange", "v", ":"),
    "SDPA flash": ("blue", "o", "-"),
    "SDPA cuDNN": ("blue", "s", "--"),
    "SDPA efficient": ("blue", "^", "-."),
    "SDPA math": ("blue", "v", ":"),
    "FlexAttention": ("green", "D", "-"),
    "eager": ("grey", "D", ":"),
}
"""How each contender looks in every picture, with a colour for its family."""

PEER = "fastest SDPA"


def recorded(path):
    """The record at ``path``, or None, with a line that says so.

    Parameters
    ----------
    path : str or Path
        ``benchmarks/results/gpu.json``, as seen from here.

    Returns
    -------
    dict or None
    """
    path = Path(path)
    if not path.exists():
        print(f"No GPU figures are recorded yet: {path.name} is made by benchmarks/gpu.py, on a machine with a GPU.")
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def source(record):
    """Print where the figures come from: command, date, GPU, driver and versions."""
    if record:
        of, versions = record["gpu"], record["versions"]
        print(f"{record['command']}, {record['date']};")
        print(f"{of['name']}, {of['memory']}, driver {of['driver']}, CUDA {of['cuda']};")
        print(", ".join(f"{library} {number}" for library, number in versions.items()))


def speed(record, *, dtype="bfloat16", d=128, causal=True):
    """Draw TFLOP/s over n, forward and backward, with the rate of a large product as the roof.

    Parameters
    ----------
    record : dict or None
        As :func:`recorded` gives it.
    dtype, d, causal
        Which cells.

    Returns
    -------
    Figure or None
    """
    roof = (record or {}).get("rates", {}).get("matrix", {}).get(dtype)

    def rate(cell, which, name):
        return cell["flops"][which] / seconds(cell, which)[name] / 1e12

    def finish(axes):
        for ax in axes:
            if roof:
                ax.axhline(roof / 1e12, color=STAND_INS["grey"], lw=1)
            ax.set_ylim(bottom=0)
        axes[0].set_ylabel("TFLOP/s")

    what = "TFLOP/s over n. " + (f"A large matrix product reaches {roof / 1e12:.0f}. " if roof else "")
    return _drawn(record, (dtype, d, causal), rate, finish, what, best=max, unit="TFLOP/s")


def ratio(record, *, dtype="bfloat16", d=128, causal=True):
    """Draw times divided by that of the fastest kernel of torch's SDPA, over n; arguments as for :func:`speed`."""

    def times(cell, which, name):
        of = seconds(cell, which)
        return of[name] / of[PEER] if PEER in of else math.nan

    def finish(axes):
        for ax in axes:
            ax.axhline(1, color=STAND_INS["grey"], lw=1)
            ax.set_yscale("log", base=2)
            ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes[0].set_ylabel("time ÷ fastest SDPA")

    what = "Time divided by that of the fastest kernel of torch's SDPA, over n. "
    return _drawn(record, (dtype, d, causal), times, finish, what, best=min, unit="×")


def memory(record, *, dtype="bfloat16", d=128, causal=True):
    """Draw the most memory held above the inputs, in forward and in both, over n; arguments as for :func:`speed`."""

    def held(cell, which, name):
        return cell["peak_bytes"][which][name] / 2**20

    def finish(axes):
        for ax in axes:
            ax.set_yscale("log", base=10)
            ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes[0].set_ylabel("MiB")

    what = "The most memory held above the inputs, over n, logarithmic. "
    panels = ("forward", "both")
    return _drawn(record, (dtype, d, causal), held, finish, what, best=min, unit="MiB", panels=panels, of="peak_bytes")


def seconds(cell, which):
    """The median of each contender in a pass, and of the fastest kernel of SDPA."""
    found = {name: times["median"] for name, times in cell["seconds"][which].items()}
    if of_torch := [time for name, time in found.items() if name.startswith("SDPA")]:
        found[PEER] = min(of_torch)
    return found


def _drawn(record, kind, value, finish, what, *, best, unit, panels=("forward", "backward"), of="seconds"):
    """A panel a pass, a line a contender."""
    if record is None:
        print("No GPU figures are recorded yet.")
        return None
    dtype, d, causal = kind
    where = f"{dtype}, d = {d}, {'causal' if causal else 'full'}"
    cells = [c for c in record["cells"] if (c["dtype"], c["shape"][3], c["causal"]) == kind]
    cells = sorted(cells, key=lambda cell: cell["shape"][2])
    if not any(cell[of][panels[0]] for cell in cells):
        print(f"No GPU figures are recorded for {where}.")
        return None
    lines = {which: _lines(cells, which, value, of) for which in panels}

    def draw(axes):
        for ax, which in zip(axes, panels, strict=True):
            for name, points in lines[which].items():
                x, y = zip(*points, strict=True)
                ax.plot(x, y, label=name, markersize=5, **_look(name))
            ax.set_xscale("log", base=2)
            lengths = sorted({n for points in lines[which].values() for n, _ in points})
            ax.set_xticks(lengths, [str(n) for n in lengths], fontsize=8)
            ax.set_xlabel(f"n, {'forward + backward' if which == 'both' else which}")
        finish(axes)
        axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))

    alt = f"{where}. {what}"
    for which in panels:
        longest = max(n for points in lines[which].values() for n, _ in points)
        at = {name: dict(points)[longest] for name, points in lines[which].items() if longest in dict(points)}
        order = sorted(at.items(), key=lambda entry: entry[1], reverse=best is max)
        pass_ = "forward and backward" if which == "both" else which
        alt += f"{pass_}, n = {longest}: " + ", ".join(f"{name} {y:.3g} {unit}" for name, y in order) + ". "
    return plot(draw, panels=2, size=(7.8, 3.3), alt=alt.strip())


def _lines(cells, which, value, of):
    """(n, value) of each contender, where it was measured."""
    found = {}
    for cell in cells:
        for name in cell[of][which]:
            y = value(cell, which, name)
            if math.isfinite(y):
                found.setdefault(name, []).append((cell["shape"][2], y))
    return found


def _look(name):
    colour, mark, dash = LOOKS.get(name, ("ink", "x", "-"))
    return {"color": STAND_INS[colour], "marker": mark, "linestyle": dash}
