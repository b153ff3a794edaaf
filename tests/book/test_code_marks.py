"""What the book says the package runs is what it runs: calls are followed, line by line."""

import ast
import functools
import re
import sys
import threading

import numpy as np
import pytest
import torch
from equations import CHAPTERS, ROOT
from public_calls import CALLS, PASSES
from reading import read
from routes import taking

import attnbook as ab
from attnbook import checks, layers, parallel
from attnbook.checks import check

SOURCE = ROOT / "src" / "attnbook"
ON_TILES = ("plain", "mask with a dead row", "dropout, softcap and bias", "two sinks, dropout, cap and bias", "window")
"""Cases of a head that go through every spine."""


def followed(*calls):
    """Each line of the package that these calls run, also on other threads: its file and its number."""
    ran, inside = set(), f"{SOURCE}/"

    def enter(frame, event, arg):
        return line if frame.f_code.co_filename.startswith(inside) else None

    def line(frame, event, arg):
        if event == "line":
            ran.add((frame.f_code.co_filename.removeprefix(inside), frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    threading.settrace(enter)
    try:
        for call in calls:
            call()
    finally:
        sys.settrace(before)
        threading.settrace(None)
    return ran


def heads(asarray):
    """Forward, both modes and their derivatives of a few heads."""
    for case in (passes for passes in PASSES if str(passes).partition(", ")[2] in ON_TILES):
        arrays = case.draw()
        yield case.ready([asarray(T) for T in arrays])


def layers_and_ranks():
    """What the table of public calls does not have: layers of their own, ranks, and checks."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape)

    Q, K, V, dO = draw(2, 4, 6), draw(2, 5, 6), draw(2, 5, 3), draw(2, 4, 3)
    A, lam, mixes = draw(2, 1), np.array([0.3, 0.6]), (draw(2, 3), draw(3, 2))

    def differential():
        _, res = layers.differential_attention(Q, K, V, lam)
        layers.differential_attention_vjp(dO, res)
        layers.differential_attention_jvp(Q, K, V, lam, res)

    def talking():
        _, res = layers.talking_heads(Q, K, V, *mixes)
        layers.talking_heads_vjp(dO, res)
        layers.talking_heads_jvp(Q, K, V, *mixes, res)

    def latent():
        widths = ((7, 5), (5, 4), (5, 4), (7, 3), (3, 4), (3, 6), (7, 2), (6, 7))
        p = layers.LatentParams(*(draw(*shape) for shape in widths), draw(5), draw(3))
        for absorbed in (False, True):
            Y, res = layers.latent_attention(draw(4, 7), p, num_heads=2, absorbed=absorbed)
            layers.latent_attention_vjp(Y, res)

    def over_ranks():
        for scheme in ("ring", "gather", "tree"):
            parallel.simulate(scheme, Q[:, :4], K[:, :4], V[:, :4], ranks=2, dO=dO)

    def checked():
        checks.central_difference(np.sum, Q, K[:, :4])
        checks.complex_step(np.sum, Q, K[:, :4])
        ab.softmax(Q.astype(np.float16))
        for digits in (None, 20) if check.has_flint() else (None,):
            checks.check_vjp(lambda A, B: A * B, (A * A, None), at=(A, A), cotangent=A, digits=digits)

    return differential, talking, latent, over_ranks, checked


@functools.cache
def ran(library):
    """Each line that runs on NumPy arrays, or on torch tensors, with "dense" and with "tiled"."""
    if library == "torch":
        found = set()
        for route in ("dense", "tiled"):
            with taking(route):
                found |= followed(*heads(torch.from_numpy))
        return found
    found = followed(*(call.ready(call.draw()) for call in (*CALLS, *PASSES)), *layers_and_ranks())
    for route in ("tiled on NumPy", "tiled on NumPy, shifted"):
        with taking(route):
            found |= followed(*heads(np.asarray))
    return found


# --- the lines that chapters show ---------------------------------------------------------------------------------

SHOWN = re.compile(r"\{literalinclude\} \.\./src/attnbook/(\S+)\n((?::.*\n)+)")
NOT_ON_NUMPY = {
    ("11_memory_and_speed", "forward-text"): "torch",
    ("11_memory_and_speed", "backward-loops"): "torch",
    ("12_gpu", "libraries-text"): "torch",
    ("13_every_order", "package-text"): "torch",
    ("12_gpu", "step-7-text"): "a kernel: test_fused",
    ("in_the_wild", "listings"): "a listing of others, mended: test_claims",
}
"""The cells that show other lines, as they say, and the library that runs these."""


def listings():
    """Cell, file and options of each place where a chapter shows the package's lines."""
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for cell in read(path):
            if cell["cell_type"] == "markdown":
                for file, options in SHOWN.findall(cell["source"]):
                    yield pytest.param((path.stem, cell["id"]), file, dict(re.findall(r":([\w-]+):(.*)", options)),
                                       id=f"{cell['id']}-{file}")  # fmt: skip


def lines_of(file, options):
    """The first and the last line that are shown."""
    text, shown = (SOURCE / file).read_text(encoding="utf-8"), {key: value.strip() for key, value in options.items()}
    if name := shown.get("pyobject"):
        node = ast.parse(text)
        for part in name.split("."):
            (node,) = (n for n in node.body if getattr(n, "name", "") == part)
        return node.lineno, node.end_lineno
    lines, first = text.splitlines(), 0
    for option, beyond in (("start-at", 0), ("start-after", 1)):
        if option in shown:
            first = next(n for n, line in enumerate(lines) if shown[option] in line) + beyond
    for option, last in (("end-at", 1), ("end-before", 0)):
        if option in shown:
            return first + 1, first + last + next(n for n, line in enumerate(lines[first:]) if shown[option] in line)
    return first + 1, len(lines)


def statements(file):
    """Each statement within a function that does something: its lines, of a compound one those of its head."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        for node in (n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function):
            words = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            nothing = isinstance(node, ast.Return) and node.value is None  # of a method that others write over
            if not (words or nothing or isinstance(node, ast.FunctionDef | ast.Raise | ast.Continue)):
                body = getattr(node, "body", None)
                yield range(node.lineno, body[0].lineno if body else node.end_lineno + 1)


@pytest.mark.parametrize(("cell", "file", "options"), list(listings()))
def test_the_lines_that_a_chapter_shows_are_those_that_run(cell, file, options):
    library = NOT_ON_NUMPY.get(cell, "NumPy")
    if library not in ("NumPy", "torch"):
        pytest.skip(library)
    if file == "checks/check.py" and not check.has_flint():
        pytest.skip("python-flint is not installed: balls run nowhere")
    first, last = lines_of(file, options)
    shown = [lines for lines in statements(file) if first <= lines.start <= last]
    assert shown
    idle = [lines.start for lines in shown if not any((file, n) in ran(library) for n in lines)]
    assert idle == []
