"""The page of symptoms: every line that it calls wrong is planted, and what it says of the line is what comes.

The lines that it calls right stand in :mod:`attentions.of_symptoms`, each once. A section is what one sees, a test,
pairs of a wrong and a right line, and after each pair what ``diagnose`` makes of it.
"""

import ast
import re
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import attnbook as ab
from attnbook.checks import check_vjp
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.links import SYMPTOM

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "symptoms.md").read_text(encoding="utf-8")
LINES = (Path(__file__).parents[1] / "attentions" / "of_symptoms.py").read_text(encoding="utf-8")
CASES = [case.name for case in battery()]

SECTION = re.compile(r"^\(symptom-([\w-]+)\)=\n## (.+)\n([\s\S]*?)(?=^\(symptom-|\Z)", re.MULTILINE)
PAIR = re.compile(r"```python\n# wrong\n([\s\S]+?)\n# right\n([\s\S]+?)\n```\n\n(.*)")
CODE = re.findall(r"^```(?:python)?\n((?:(?!```).*\n)+)```$", PAGE, re.MULTILINE)
CLAIM = re.compile(
    r'\*\*`diagnose`\*\*(?: \(`(library|dtype)="(\w+)"`\))?: '
    r'(?:([\w, ]+) wrong, first in "([^"]+)"'
    r"(?:: (?:\[`([\w-]+)`\]\(#mistake-\5\)|`([\w-]+)`(?: and `([\w-]+)`)?)|; no name)|(right|by chance))(?!\w)"
)


class Pair:
    """A wrong and a right line, and what the page says that ``diagnose`` makes of the wrong one."""

    def __init__(self, wrong, right, claim):
        self.wrong, self.right, self.claim = wrong, right, CLAIM.match(claim)

    def place(self):
        """Where the right lines stand in the module of what is right: one match, with its indentation."""
        pattern = r"^( *)" + r"\n\1".join(map(re.escape, self.right.splitlines())) + "$"
        return list(re.finditer(pattern, LINES, re.MULTILINE))

    def planted(self):
        """The names of that module with the wrong lines in their place."""
        (match,) = self.place()
        text = LINES[: match.start()] + textwrap.indent(self.wrong, match[1]) + LINES[match.end() :]
        return names_of(text)

    def function(self):
        """The name of the attention that the lines belong to."""
        (match,) = self.place()
        line = LINES[: match.start()].count("\n") + 1
        (name,) = (node.name for node in ast.parse(LINES).body if node.lineno <= line <= node.end_lineno)
        return "head" if name in ("mT", "softmax") else name


def names_of(text):
    names = {}
    exec(compile(text, "of_symptoms", "exec"), names)
    return names


def sections(page):
    """{name: (title, body, [pairs])}"""
    return {
        name: (title, body, [Pair(*pair) for pair in PAIR.findall(body)]) for name, title, body in SECTION.findall(page)
    }


OPTIONS = "dropout", "bias", "variants"
"""Sections of what one does not see without an option: diagnose sees it, and finds their right lines right."""

RIGHT = names_of(LINES)
PAIRS = [
    pytest.param(pair, id=f"{name}-{i}", marks=[pytest.mark.thorough] * (i > 0 or section % 3 > 0))
    for section, (name, (*_, pairs)) in enumerate(sections(PAGE).items())
    for i, pair in enumerate(pairs)
]


def test_every_section_has_its_parts():
    found = sections(PAGE)
    assert re.findall(r"\(#symptom-([\w-]+)\)\s*\|", PAGE) == list(found)  # the table at the top
    for name, (_, body, pairs) in found.items():
        order = [body.find(part) for part in ("**You see.**", "**Test.**", "```python", "**`diagnose`**")]
        assert -1 < order[0] < order[1] < order[2] < order[3], name
        assert len(pairs) == body.count("```python") > 0, name
        assert all(pair.claim and len(pair.place()) == 1 for pair in pairs), name
        assert name in (*SEEN, *OPTIONS) or f"seen_{name.replace('-', '_')}" in globals()


def test_the_lines_at_its_top_run():
    lines = CODE[0]
    Q, K, V, dO = draw()
    names = {"fn": RIGHT["head"], "Q": Q, "K": K, "V": V, "dO": dO, "print": lambda report: reports.append(report.ok)}
    reports = []
    exec(lines, names)
    assert reports == [True]
    came = [names["O"], *(names[f"{name}_right"] for name in NAMES[1:])]
    assert not wrong_ones(came, RIGHT["head"](Q, K, V, dO))


def test_what_diagnose_links_to_is_there():
    assert set(SYMPTOM.values()) <= {f"#symptom-{name}" for name in sections(PAGE)}


@pytest.mark.parametrize(
    "name",
    ["head", "blocks", "tiles", "by_rows", "dropped", "biased", "sunk", "capped", "windowed", "by_autograd", "detached",
     "Saved"],
)  # fmt: skip
def test_what_is_mended_is_right(name):
    assert ask(RIGHT, name).ok


def ask(names, name, **options):
    if name in ("by_autograd", "detached", "Saved"):
        options["library"] = "torch"
    fn = names[name]
    return ab.diagnose(ASKED[name](fn) if name in ASKED else getattr(fn, "apply", fn), **options)


def for_dropout(dropped):
    """With weights that it draws itself."""

    def asked(Q, K, V, dO, dropout=0.0):
        keep = np.random.default_rng(3).random((*Q.shape[:-1], K.shape[-2])) >= dropout
        return dropped(Q, K, V, dO, keep, dropout)

    return asked


def for_bias(biased):
    """With the other gradients, which the lines on the page leave out."""

    def asked(Q, K, V, dO, bias=None):
        O, res = ab.attention(Q, K, V, bias=bias)
        return O, *ab.attention_vjp(dO, res)[:3], *([] if bias is None else [biased(Q, K, V, dO, bias)[1]])

    return asked


def for_sink(sunk):
    """A head at a time, each with the sink of its own."""

    def asked(Q, K, V, dO, sink=None):
        if sink is None:
            return RIGHT["head"](Q, K, V, dO)
        heads = [sunk(*(T[..., h, :, :] for T in (Q, K, V, dO)), sink[h]) for h in range(len(sink))]
        *grads, dsink = zip(*heads, strict=True)
        return *(np.stack(T, axis=-3) for T in grads), np.array(dsink)

    return asked


def for_softcap(capped):
    return lambda *inputs, softcap=None: RIGHT["head"](*inputs) if softcap is None else capped(*inputs, softcap)


def for_window(windowed):
    """Where it ends at the query's own key."""

    def asked(*inputs, window=None, causal=False):
        if window is None:
            return RIGHT["head"](*inputs, causal=causal)
        if not causal and window[1] != 0:
            raise NotImplementedError("a window that looks ahead")
        return windowed(*inputs, window[0])

    return asked


ASKED = {
    "dropped": for_dropout, "biased": for_bias, "sunk": for_sink, "capped": for_softcap, "windowed": for_window,
}  # fmt: skip
"""For what diagnose hands over in other words: makes it one that it can ask."""


@pytest.mark.parametrize("pair", PAIRS)
def test_diagnose_says_of_the_wrong_line_what_the_page_says(pair):
    option, value, wrong, since, mistake, fault, second, other = pair.claim.groups()
    slugs, name = tuple(filter(None, (mistake or fault, second))), pair.function()
    if other == "by chance":
        return  # SEEN shows both
    report = ask(pair.planted(), name, **({option: value} if option else {}))
    if other == "right":
        assert report.ok
        return
    found = [finding for finding in report.findings if finding.kind == "wrong"]
    assert ", ".join(finding.about for finding in found) == wrong, report
    assert next(case for case in CASES if any(case in finding.cases for finding in found)) == since
    assert report.mistakes == slugs
    assert mistake is None or mistake in MISTAKE
    assert not {fault, second} & set(MISTAKE)


# --- what one sees ------------------------------------------------------------------------------------------------


def draw(n_q=5, n_k=7, d_k=11, d_v=13, lead=(), key_lead=None):
    rng = np.random.default_rng(0)
    keys = lead if key_lead is None else key_lead
    return [rng.normal(size=s) for s in ((*lead, n_q, d_k), (*keys, n_k, d_k), (*keys, n_k, d_v), (*lead, n_q, d_v))]


def wrong_ones(came, right=None, tolerance=1e-9):
    """Which of O, dQ, dK, dV are off."""
    far = (
        a.shape != b.shape or not np.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(came, right, strict=True)
    )
    return [name for name, off in zip(NAMES, far, strict=True) if off]


ALL, SQUARE, LONG = " ".join(NAMES), {"n_q": 4, "n_k": 4, "d_k": 4, "d_v": 4}, {"n_q": 9, "n_k": 9}
BATCH, CAUSAL, GROUPED = {"lead": (2, 3)}, {"causal": True}, {"lead": (4,), "key_lead": (2,)}

SEEN = {
    "forward": [(0, "head", BATCH, {}, ALL)],
    "dq": [(0, "head", BATCH, {}, "dQ"), (1, "head", BATCH, {}, "dQ"), (2, "blocks", BATCH, {}, "dQ"),
           (2, "blocks", {"n_k": 3}, {}, "")],
    "dk": [(0, "head", SQUARE, {}, "dK"), (0, "head", {}, {}, "dK"), (1, "head", SQUARE, {}, "dK"),
           (1, "head", {}, {}, "raises"), (2, "head", BATCH, {}, "dK"), (3, "head", BATCH, {}, "dK"),
           (4, "tiles", BATCH, {}, "dK"), (4, "tiles", {"n_q": 1}, {}, "")],
    "dv": [(0, "head", SQUARE, {}, "dV"), (0, "head", {}, {}, "raises")],
    "dq-dk": [(0, "head", SQUARE, {}, "dQ dK"), (1, "head", SQUARE, {}, "dQ dK"), (1, "head", {}, {}, "raises")],
    "dk-dv": [(0, "tiles", BATCH, {}, "dK dV"), (0, "tiles", {"n_q": 1}, {}, ""),
              (1, "tiles", BATCH, CAUSAL, "dK dV"), (1, "tiles", BATCH, {}, "")],
    "rows": [(0, "head", BATCH, {}, "dQ dK"), (1, "blocks", BATCH, {}, "dQ dK"), (2, "blocks", BATCH, {}, "dQ dK"),
             (0, "head", {"n_q": 1}, {}, "")],
    "all": [(0, "head", BATCH, {"mask": np.tri(5, 7, dtype=bool)}, "dQ dK dV"), (0, "head", BATCH, {}, ""),
            (1, "tiles", BATCH, {}, "dQ dK dV")],
    "block": [(0, "blocks", LONG, {}, "O dQ dK"), (1, "tiles", {"n_k": 6}, {}, ""), (1, "tiles", {}, {}, ALL),
              (2, "blocks", LONG, {}, "dQ dK dV"), (3, "blocks", BATCH, {}, "dQ dK"), (3, "blocks", {"n_k": 3}, {}, ""),
              (4, "blocks", LONG, {}, ""), (4, "blocks", LONG, CAUSAL, ALL), (4, "blocks", {"n_k": 3}, CAUSAL, "")],
    "groups": [(0, "head", GROUPED, {}, "dK dV"), (1, "head", GROUPED, {}, ALL), (0, "head", BATCH, {}, ""),
               (1, "head", {"lead": (4,), "key_lead": (1,)}, {}, ""), (1, "head", BATCH, {}, "")],
    "lengths": [(0, "head", BATCH, CAUSAL, ALL), (1, "head", BATCH, CAUSAL, "dQ dK dV"),
                (2, "head", BATCH, {"causal": "bottom-right"}, "dQ dK dV"),
                *((i, "head", *how, "") for i in range(3) for how in ((BATCH, {}), ({"n_k": 5}, CAUSAL)))],
    "widths": [(0, "head", BATCH, {}, ALL), (0, "head", {"d_v": 11}, {}, ""), (0, "head", BATCH, {"scale": 0.3}, "")],
    "strides": [(0, "by_rows", {}, {}, "")],
    "batch": [(0, "head", {}, {}, ""), (0, "head", {"lead": (2,)}, {}, "raises"),
              (0, "head", SQUARE | {"lead": (4, 4)}, {}, ALL)],
    "float64": [(0, "by_rows", BATCH, {}, "")],
}  # fmt: skip
"""Of a section: which pair, its function, sizes, options, and which results are wrong then."""


def seen_forward(planted):
    Q, K, V, dO = draw()
    check_vjp(partial(ab.attention, scale=1 / 11), planted[0]["head"](Q, K, V, dO)[1:], at=(Q, K, V), cotangent=dO)


@pytest.mark.parametrize(
    ("name", "pair", "result", "ratio"),
    [
        ("dq", 0, 1, 11**-0.5), ("dq", 1, 1, np.log(2)), ("dk", 2, 2, 11**-0.5), ("dk", 3, 2, 11**0.5),
        ("groups", 0, 2, 2),
    ],
)  # fmt: skip
def test_a_factor_is_the_one_that_the_page_says(name, pair, result, ratio):
    inputs = draw(**GROUPED) if name == "groups" else draw()
    wrong = sections(PAGE)[name][2][pair].planted()["head"](*inputs)
    assert np.allclose(RIGHT["head"](*inputs)[result] / wrong[result], ratio)


def seen_dq(planted):
    inputs = Q, K, _, _ = draw()
    for names in (RIGHT, *planted[:2]):
        _, dQ, dK, _ = names["head"](*inputs)
        assert np.allclose(Q.T @ dQ, (K.T @ dK).T) == (names is RIGHT)


def seen_dv(planted):
    undropped = planted[1]
    Q, K, V, dO = draw()
    dV = RIGHT["head"](Q, K, V, np.ones_like(dO))[3]
    assert np.allclose(dV, ab.attention(Q, K, V, method="dense")[1].P.sum(axis=0)[:, None])
    assert np.allclose(dV.sum(axis=0), 5)
    keep = np.random.default_rng(1).random((5, 7)) > 0.3
    assert wrong_ones(*(names["dropped"](Q, K, V, dO, keep, 0.3) for names in (undropped, RIGHT))) == ["dV"]


def seen_rows(planted):
    """Where the keys' gradients sum to 0, and where they do not."""
    inputs = Q, K, V, dO = draw()
    for names, name in zip(planted, ("head", "blocks", "blocks"), strict=True):
        assert np.allclose(RIGHT[name](*inputs)[2].sum(axis=-2), 0)
        assert not np.allclose(names[name](*inputs)[2].sum(axis=-2), 0)
    O, res = ab.attention(Q, K, V, method="dense")
    P, dP, D = res.P, dO @ V.T, (dO * O).sum(axis=-1, keepdims=True)
    assert np.allclose((P * dP).sum(axis=-1, keepdims=True), D)
    assert not np.allclose(ab.attention_vjp(0 * dO, res, dL=np.ones(5)).dK.sum(axis=0), 0)


def seen_ones(planted):
    Q, K, V, dO = draw()
    right = RIGHT["head"](Q, K, V, dO)
    ones = Q, K, V, np.ones_like(dO)
    assert not wrong_ones(planted[0]["head"](*ones), RIGHT["head"](*ones))
    assert wrong_ones(planted[0]["head"](Q, K, V, dO), right) == ["dQ", "dK"]
    one, two = (planted[0]["head"](Q, K, V, size * dO) for size in (1, 2))  # "a gradient that does not double"
    assert [np.allclose(2 * a, b) for a, b in zip(one[1:], two[1:], strict=True)] == [False, False, True]


def seen_lengths(planted):
    """How many keys the first row of P has, by corner."""
    for n_q, corner, keys in ((5, True, 1), (5, "bottom-right", 3), (9, True, 1), (9, "bottom-right", 0)):
        P = ab.attention(*draw(n_q)[:3], causal=corner, method="dense")[1].P
        assert np.count_nonzero(P[0]) == keys


def seen_nan(planted):
    mask = np.ones((5, 7), bool)
    mask[1] = False
    with np.errstate(invalid="ignore"):
        O = planted[0]["head"](*draw(), mask=mask)[0]
    assert np.isnan(O).any(axis=-1).tolist() == [False, True, False, False, False]
    right = RIGHT["head"](*draw(), mask=mask)
    assert not right[0][1].any()
    assert not right[1][1].any()


def seen_nan_spreads(planted):
    Q, K, V, dO = (torch.tensor(T) for T in draw())
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[1] = False
    dO[1] = 0
    for names, bad in ((planted[0], True), (RIGHT, False)):
        inputs = [T.clone().requires_grad_() for T in (Q, K, V)]
        O = names["by_autograd"](*inputs, mask)
        assert O.isfinite().all()
        dQ, dK, dV = torch.autograd.grad(O, inputs, dO)
        assert bool(dK.isnan().all()) == bool(dV.isnan().all()) == bad
        assert dQ.isnan().any(-1).tolist() == [False, bad, False, False, False]


def seen_strides(planted):
    Q, K, V, dO = draw()
    turned = planted[0]["by_rows"](Q, K, V, np.asfortranarray(dO))
    assert wrong_ones(turned, RIGHT["head"](Q, K, V, dO)) == ["dQ", "dK", "dV"]
    x, strides = torch.zeros(2, 3, requires_grad=True), []
    y = 2 * x
    y.register_hook(lambda g: strides.append(g.stride()))
    y.sum().backward()
    assert strides == [(0, 0)]


def seen_dropout(planted):
    """Where the backward draws anew; and where the keys' gradients still sum to 0."""
    inputs, keep = draw(), np.random.default_rng(1).random((5, 7)) > 0.3
    right = RIGHT["dropped"](*inputs, keep, 0.3)
    assert wrong_ones(RIGHT["dropped"](*inputs, ~keep, 0.3), right)[1:] == ["dQ", "dK", "dV"]
    for names, to_0 in zip(planted, (True, False, False), strict=True):
        wrong = names["dropped"](*inputs, keep, 0.3)
        assert wrong_ones(wrong, right) == ["dQ", "dK"]
        assert np.allclose(wrong[2].sum(axis=0), 0) == to_0


def seen_float64(planted):
    def error(names, n_q):
        inputs = [T.astype(np.float16) for T in draw(n_q=n_q, d_k=4, d_v=3)]
        exact = RIGHT["by_rows"](*(T.astype(np.float64) for T in inputs))[2]
        return np.abs(names["by_rows"](*inputs)[2] - exact).max() / np.abs(exact).max()

    assert error(planted[0], 4096) > 5 * error(RIGHT, 4096)
    assert error(planted[0], 4096) > 1.5 * error(planted[0], 1024)
    assert error(RIGHT, 4096) < 2 * error(RIGHT, 1024)


def seen_zero(planted):
    Q, K, V, dO = draw()
    same_V, same_K = (np.broadcast_to(T[:1], T.shape).copy() for T in (V, K))
    for inputs in (draw(n_k=1), (Q, K, same_V, dO)):
        assert all(np.allclose(T, 0, atol=1e-12) for T in RIGHT["head"](*inputs)[1:3])
    assert not any(T.any() for T in RIGHT["head"](Q, K, V, dO, mask=np.zeros((5, 7), bool)))
    dQ, dK = RIGHT["head"](Q, same_K, V, dO)[1:3]
    assert np.allclose(dQ, 0)
    assert not np.allclose(dK, 0)
    inputs = [torch.tensor(T, requires_grad=True) for T in (Q, K, V)]
    got = torch.autograd.grad(planted[0]["detached"](*inputs), inputs, torch.tensor(dO), allow_unused=True)
    assert got[0] is None
    assert got[1] is None


def seen_runs(planted):
    """The memory that nobody wrote may hold anything: it is set here."""
    inputs = draw()
    right = RIGHT["blocks"](*inputs)
    for left, wrong in ((0.0, []), (1.0, ["dQ"])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np, "empty_like", lambda T, left=left: np.full_like(T, left))
            assert wrong_ones(planted[0]["blocks"](*inputs), right) == wrong
            assert ask(planted[0], "blocks").ok == (not wrong)
    assert np.float32(1e8) + np.float32(1) - np.float32(1e8) != np.float32(1e8) - np.float32(1e8) + np.float32(1)


def seen_second(planted):
    inputs = [torch.tensor(T, requires_grad=True) for T in draw(2, 3, 5, 4)[:3]]
    wrong = planted[0]["Saved"].apply
    assert torch.autograd.gradcheck(wrong, inputs)
    assert not torch.autograd.gradgradcheck(wrong, inputs, raise_exception=False)
    assert torch.autograd.gradgradcheck(RIGHT["Saved"].apply, inputs)


@pytest.mark.parametrize("name", sections(PAGE))
def test_one_sees_what_the_page_says(name):
    planted = [pair.planted() for pair in sections(PAGE)[name][2]]
    for pair, function, sizes, options, wrong in SEEN.get(name, ()):
        inputs = draw(**sizes)
        if wrong == "raises":
            with pytest.raises(ValueError, match="matmul"):
                planted[pair][function](*inputs)
            continue
        came = planted[pair][function](*inputs, **options)
        assert " ".join(wrong_ones(came, RIGHT[function](*inputs, **options))) == wrong, (pair, sizes)
    globals().get(f"seen_{name.replace('-', '_')}", lambda planted: None)(planted)
