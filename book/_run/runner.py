"""Runs a chapter's cells one after the other, and says how their outputs compare with those that the page shows.

The page's worker loads this file into Pyodide, the tests load it into CPython: what is tested is what runs.
Outputs are dicts as notebooks store them (nbformat 4).
"""

import ast
import builtins
import hashlib
import io
import linecache
import logging
import re
import sys
import time
import traceback
import types

ASKED_FOR = {  # what a chapter's cell asks, and what it does without
    "has_torch": "torch",
    "has_triton": "Triton",
    "has_flint": "python-flint",
}
NOT_IN_A_BROWSER = ("torch", "cupy", "triton", "scipy", "jax", "flint")
OF_OURS = ("attnbook", "evidence", "array_api_compat", "threadpoolctl")  # they come with NumPy, which all are for
MOST_TEXT = 100_000  # characters that one cell may print: a loop that prints for ever must not fill the page
MOST_VALUES = 500  # that one cell may display, for the same reason
BY_TORCH = re.compile(" and autograd")  # without torch the checks compare with differences alone, and say so
DRAWN = re.compile("<svg.*?</svg>", re.DOTALL)
FORMS = (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_"), ("text/markdown", "_repr_markdown_"))


class Runner:
    """A fresh ``__main__`` in which cells run. ``tell(text)`` is called with what a cell prints, while it runs;
    ``heed(True)`` and ``heed(False)`` where an interrupt may come: into a cell, and not into the lines here."""

    def __init__(self, tell=lambda text: None, heed=lambda on: None):
        self.module = types.ModuleType("__main__")
        self.tell, self.heed, self.outputs = tell, heed, []
        self.lost = {}  # names that a cell which was passed over would have made, and why it was
        self.of_absent = {}  # names made by a cell that does less without torch or Triton, and which of them
        sys.modules["__main__"] = self.module
        if "IPython" not in sys.modules:
            stand_in_for_ipython(self.display)
        self.module.display = self.display
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells that it looks for fonts

    def run(self, name, source, stored=None):
        """Run a cell; ``stored`` are the outputs that the page shows, None where the reader has changed the cell.

        Returns its outputs, a ``verdict``, and ``why`` in words for a cell that was passed over. The verdicts: "same"
        as stored, "redrawn" where another matplotlib drew the picture, the same but for "autograd", "differs", "ran"
        where nothing is stored, "passed over", "error".
        """
        self.outputs = []
        filename = f"<cell {name}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        streams, verdict, why = (sys.stdout, sys.stderr), "ran", ""
        before = set(vars(self.module))
        sys.stdout, sys.stderr = _Stream(self, "stdout"), _Stream(self, "stderr")
        try:
            try:
                self.heed(True)
                self._execute(source, filename)
            finally:
                self.heed(False)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: the page lives on
            why = self._without(error)
            verdict = "passed over" if why else "error"
            if why:
                self.lost.update(dict.fromkeys(bound(source), why))
            else:
                shown = {"traceback": _traceback(error, filename), "summary": _summary(error)}
                self.outputs.append({"output_type": "error", **shown})
        finally:
            sys.stdout, sys.stderr = streams
        if verdict == "ran" and stored is not None:
            verdict, why = self._compare(source, stored, before)
        return {"verdict": verdict, "why": why, "outputs": self.outputs}

    def wants(self, source, above):
        """Whether a cell uses a name that one of the cells above, which have not run, would make, or make anew."""
        used = {n.id for n in _nodes(source) if isinstance(n, ast.Name)} - bound(source)
        unknown = used - vars(self.module).keys() - vars(builtins).keys()
        return any(unknown & bound(cell) or used & bound(cell, _outermost) for cell in above)

    def _compare(self, source, stored, before):
        calls = {getattr(n.func, "id", "") for n in _nodes(source) if isinstance(n, ast.Call)}
        absent = next((package for name, package in ASKED_FOR.items() if name in calls), "")
        if absent:
            self.of_absent |= dict.fromkeys(vars(self.module).keys() - before, absent)
        came, stored = _plain(self.outputs), _plain(stored)
        if came == stored:
            return "same", ""
        if "matplotlib" in packages(source) and _less(DRAWN, came) == _less(DRAWN, stored):
            return "redrawn", ""
        if came == _less(BY_TORCH, stored):
            return "autograd", ""
        used = (n.id for n in _nodes(source) if isinstance(n, ast.Name))
        absent = absent or next((self.of_absent[name] for name in used if name in self.of_absent), "")
        if absent:
            return "passed over", f"it needs {absent}, which does not run in a browser"
        return "differs", ""

    def _execute(self, source, filename):
        tree = ast.parse(source, filename)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        space = vars(self.module)
        exec(compile(tree, filename, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), filename, "eval"), space)
            if value is not None and not source.rstrip().endswith(";"):
                self.outputs.append({"output_type": "execute_result", "data": _forms(value)})

    def display(self, *values):
        """Show values as IPython's ``display`` does."""
        for value in values:
            if len(self.outputs) < MOST_VALUES:
                self.outputs.append({"output_type": "display_data", "data": _forms(value)})

    def _without(self, error):
        """Why a cell that raised ``error`` could not run here, in words; "" where the error is the cell's own."""
        if isinstance(error, NameError) and error.name in self.lost:
            return self.lost[error.name]
        if isinstance(error, RuntimeError) and str(error) == "can't start new thread":  # as ranks of a function are
            return "it needs more than one thread, which does not run in a browser"
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").partition(".")[0]
            if package in NOT_IN_A_BROWSER:
                return f"it needs {package}, which does not run in a browser"
            if package in ("numpy", "matplotlib", *OF_OURS):
                return f"it needs {package}, which could not be loaded"
        return ""


class _Stream(io.TextIOBase):
    """What a cell prints: kept as one output for each run of text, and told while the cell runs."""

    def __init__(self, runner, name):
        self.runner, self.name, self.left, self.told, self.untold = runner, name, MOST_TEXT, 0.0, ""

    def write(self, text):
        if self.left <= 0:
            return len(text)
        kept = _cut(text, self.left)
        self.left -= len(text)
        outputs = self.runner.outputs
        if not outputs or outputs[-1].get("name") != self.name:
            outputs.append({"output_type": "stream", "name": self.name, "text": ""})
        outputs[-1]["text"] += kept
        self.untold += kept
        if self.left > MOST_TEXT - 2000 or time.monotonic() - self.told > 0.2:  # a message a print drowns the page
            self.runner.tell(self.untold)
            self.told, self.untold = time.monotonic(), ""
        return len(text)


def stand_in_for_ipython(display):
    """``IPython.display`` with the few names that a cell may want. IPython itself would be 1 MB more to load."""

    def shown(name, method):
        members = {"__init__": lambda self, data: setattr(self, "data", data), method: lambda self: self.data}
        return type(name, (), {**members, "__repr__": lambda self: f"<IPython.core.display.{name} object>"})

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    module.HTML, module.SVG = shown("HTML", "_repr_html_"), shown("SVG", "_repr_svg_")
    module.Markdown, module.display = shown("Markdown", "_repr_markdown_"), display
    package.display, package.version_info, package.get_ipython = module, (9, 0), lambda: None  # matplotlib asks
    sys.modules.update({"IPython": package, "IPython.display": module})


def _forms(value):
    forms = {mime: getattr(value, method)() for mime, method in FORMS if hasattr(value, method)}
    return {**{mime: form for mime, form in forms.items() if form is not None}, "text/plain": _cut(repr(value))}


def _cut(text, longest=MOST_TEXT):
    return text if len(text) < longest else f"{text[:longest]}\n… the rest is not shown\n"


def _traceback(error, filename):
    """The traceback from the cell on, without the lines of this file."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != filename:
        tb = tb.tb_next
    return _cut("".join(traceback.format_exception(type(error), error, tb)))


def _summary(error):
    """The line that says what was raised: in a long traceback, or on a phone, it is out of sight."""
    lines = traceback.format_exception_only(type(error), error)
    return _cut(next(line for line in lines if not line.startswith(" ")).partition("\n")[0], 200)


def _plain(outputs):
    """Outputs as pairs that can be compared: what was printed in one piece, each form of a value as one string."""
    pairs = []
    for output in outputs:
        if "data" in output:
            pairs.append(("value", {mime: _text(form) for mime, form in output["data"].items()}))
            continue
        kind, content = output.get("name", output["output_type"]), _text(output.get("text", ""))
        if pairs and pairs[-1][0] == kind:
            content = pairs.pop()[1] + content
        pairs.append((kind, content))
    return pairs


def _less(what, pairs):
    """The outputs without what the pattern matches in them."""

    def cut(content):
        return (
            {mime: cut(form) for mime, form in content.items()} if isinstance(content, dict) else what.sub("", content)
        )

    return [(kind, cut(content)) for kind, content in pairs]


def _text(form):
    return "".join(form) if isinstance(form, list) else form


def sha256(content):
    """For the worker: a page that was not served over https has no digests of its own."""
    return hashlib.sha256(content).hexdigest()


def packages(source):
    """What has to be loaded before a cell can run: NumPy for the book's package, matplotlib for its curves."""
    imported, called = set(), set()
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call):
            called.add(getattr(node.func, "id", getattr(node.func, "attr", "")))
    curves = ["matplotlib"] if "matplotlib" in imported or "plot" in called else []
    return (["numpy"] if curves or imported & {"numpy", *OF_OURS} else []) + curves


def bound(source, nodes=None):
    """The names that a cell gives a value, in functions too."""
    names = set()
    for node in (nodes or _nodes)(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def _outermost(source):
    """The nodes that are not inside a function, a class or a comprehension."""
    todo, inner = [n for n in _nodes(source) if isinstance(n, ast.Module)], (ast.FunctionDef, ast.ClassDef, ast.Lambda)
    for node in todo:
        yield node
        if not isinstance(node, (*inner, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            todo.extend(ast.iter_child_nodes(node))


def _nodes(source):
    try:
        return list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []
