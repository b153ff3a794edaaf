"""The answer on one page: its formulas are run, as they are printed, in every notation, and so is its short program."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from answer import BACKWARD, IN_ONE, INTO_X, NOTATIONS, UNITS, formula, torch_lines, torch_shape
from array_api_compat import array_namespace
from compare import draw
from equations import equations

import attnbook as ab
from attnbook.arrays import mT, unbroadcast
from attnbook.checks import check_vjp, close
from attnbook.heads import merge_heads

PAGE = Path(__file__).parents[2] / "book" / "answer.md"
BATCH, H = 2, 3
SIZES = {"n_q": 5, "n_k": 7, "d_model": 11, "d_mem": 13, "d_k": 17, "d_v": 19, "h d_v": 19 * H, "d_out": 23}
SELF = {"n_q": 7, "d_mem": 11}  # one length and one width where the input is its own memory
each_unit = pytest.mark.parametrize("unit", UNITS)


class Example:
    """A unit with numbers in it: batch 2, 3 heads, every size a prime of its own."""

    def __init__(self, unit, biases=True, padded=False):
        self.unit, self.sizes = UNITS[unit], SIZES if unit == "cross" else SIZES | SELF
        n_q, n_k, d_model, d_mem, d_k, d_v, hd_v, d_out = self.sizes.values()
        X, memory, W_O, b_O, self.dY = draw(
            (BATCH, 1, n_q, d_model), (BATCH, 1, n_k, d_mem), (hd_v, d_out), (d_out,), (BATCH, 1, n_q, d_out)
        )
        memory = memory if unit == "cross" else None
        self.values = {"X": X, "memory": memory, "W_O": W_O, "b_O": b_O * biases, "scale": d_k**-0.5}
        for seed, (name, rows, columns) in enumerate((("Q", d_model, d_k), ("K", d_mem, d_k), ("V", d_mem, d_v)), 1):
            W, b = draw((H, rows, columns), (H, 1, columns), seed=seed)
            self.values |= {f"W_{name}": W, f"b_{name}": b * biases}
        self.allowed = np.ones((BATCH, 1, n_q, n_k), dtype=bool)
        if unit == "masked":
            self.allowed &= np.tri(n_q, n_k, dtype=bool)
        if padded:  # the second sequence is three tokens shorter
            self.allowed[1, :, :, -3:] = False
        self.masks_unasked = padded and unit != "masked"

    def environment(self, values):
        """What the expressions may name."""
        xp = array_namespace(values["X"])
        memory = values["X"] if values["memory"] is None else values["memory"]
        allowed = xp.asarray(self.allowed)
        functions = {
            "T": mT,
            "softmax": ab.softmax,
            "rowsum": lambda A: xp.sum(A, axis=-1, keepdims=True),
            "tokens": lambda A: xp.sum(A, axis=-2, keepdims=True),
            "heads": lambda A: xp.sum(A, axis=-3, keepdims=True),
            "mask": lambda S: xp.where(allowed, S, xp.asarray(-xp.inf, dtype=S.dtype)),
            "concat": lambda O: merge_heads(O)[:, None],
            "block": lambda W: xp.reshape(W, (H, W.shape[0] // H, W.shape[1])),
        }
        return {**functions, "X_q": values["X"], "X_k": memory, "X_v": memory, **values}

    def forward(self, **given):
        """Run the forward lines, with some values given in place of ours: all names, and what they stand for."""
        like = next(iter(given.values()), self.dY)
        xp = array_namespace(like)
        known = {k: v if v is None or k == "scale" else xp.asarray(v) for k, v in self.values.items()} | given
        env = self.environment(known)
        for row in self.unit.forward:
            if row.name not in given:
                expression = f"mask({row.expression})" if row.name == "S" and self.masks_unasked else row.expression
                env[row.name] = eval(expression, env)
        return env

    def output_of(self, name):
        """The unit's output as a function of one of its quantities."""
        return lambda T: self.forward(**{name: T})["Y"]

    def backward(self, rows):
        """Run the backward lines, each on the results of those before it. Sequences add up in what they share."""
        env = self.forward() | {"dY": self.dY}
        for row in rows:
            variable = env[row.name[1:]] if row.name != "D" else env["S"][..., :1]
            env[row.name] = unbroadcast(eval(row.expression, env), variable.shape)
            yield row, env[row.name]

    def params(self):
        """Its parameters as the package has them, all heads side by side."""
        flat = {name: merge_heads(self.values[name]) for name in ("W_Q", "W_K", "W_V")}
        flat |= {f"b_{name}": self.values[f"b_{name}"].reshape(-1) for name in "QKV"}
        return ab.MultiHeadParams(**flat, W_O=self.values["W_O"], b_O=self.values["b_O"])

    def package(self):
        """The output of the same unit, as the package runs it."""
        X, memory = (None if T is None else T[:, 0] for T in (self.values["X"], self.values["memory"]))
        return ab.multi_head_attention(X, self.params(), num_heads=H, memory=memory, mask=self.allowed)[0]


def shape_of(T, row):
    """The shape without batch and heads, and without the axis of 1 that keeps a sum in place."""
    shape = T.shape[-2:]
    return shape if len(row.shape) == 2 else tuple(n for n in shape if n != 1)


# --- the formulas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("notation", "padded"), [("ours", True), *((name, False) for name in NOTATIONS)])
@each_unit
def test_every_formula_by_differences_and_autograd(unit, notation, padded):
    example = Example(unit, biases=notation != "answer", padded=padded)
    for row, dT in example.backward(NOTATIONS[notation].backward(unit)):
        assert shape_of(dT, row) == tuple(example.sizes[size] for size in row.shape), row.name
        if row.name != "D":
            name = row.name[1:]
            found = check_vjp(example.output_of(name), dT, at=example.forward()[name], cotangent=example.dY)
            assert set(found.errors) == {"differences", "autograd"}, row.name


@each_unit
def test_they_are_of_what_the_package_computes(unit):
    example = Example(unit, padded=True)
    ours = {row.name: dT for row, dT in example.backward(UNITS[unit].backward)}
    assert close(example.forward()["Y"][:, 0], example.package())
    assert ("dmemory" in ours) == (unit == "cross")
    assert close(ours["db_K"], 0 * ours["db_K"])
    assert np.all(ours["dS"][~np.broadcast_to(example.allowed, ours["dS"].shape)] == 0)


@each_unit
def test_the_answer_s_own_four_formulas(unit):
    """With the scores of all heads side by side in one matrix, and the matrix that selects a head's columns."""
    example = Example(unit, biases=False)
    right = {row.name: dT for row, dT in example.backward(UNITS[unit].backward)}
    n_k = example.sizes["n_k"]
    select = np.stack([np.eye(H * n_k)[r * n_k : (r + 1) * n_k] for r in range(H)])
    dA = merge_heads(right["dS"])[:, None]
    env = example.forward() | {"dY": example.dY, "dA": dA, "select": select}
    assert [row.name for row in IN_ONE] == ["dW_K", "dW_Q", "dW_V", "dW_O"]
    for row in IN_ONE:
        assert close(unbroadcast(eval(row.expression, env), right[row.name].shape), right[row.name])


@each_unit
def test_the_lines_of_torch_give_torch_s_gradients(unit):
    """Executed as they are printed, against MultiheadAttention's own backward."""
    rng = np.random.default_rng(0)
    h, d, lengths = 3, 5, (7, 7) if unit != "cross" else (7, 11)
    E = h * d
    mha = torch.nn.MultiheadAttention(E, h, dtype=torch.float64)
    torch.nn.init.normal_(mha.in_proj_bias, generator=torch.manual_seed(0))
    query = torch.tensor(rng.standard_normal((lengths[0], E)), requires_grad=True)
    memory = torch.tensor(rng.standard_normal((lengths[1], E)), requires_grad=True) if unit == "cross" else query
    attn_mask = torch.ones(7, 7, dtype=torch.bool).triu(1) if unit == "masked" else None
    output, _ = mha(query, memory, memory, attn_mask=attn_mask)
    d_output = torch.tensor(rng.standard_normal(output.shape))
    output.backward(d_output)

    def new(T):
        """What stands behind a name of torch's: its values, and a place to add a gradient."""
        copy = T.detach().clone()
        copy.grad = torch.zeros_like(copy)
        return copy

    query_, params = new(query), {name: new(p) for name, p in mha.named_parameters()}
    memory_ = query_ if memory is query else new(memory)
    env = {
        "torch": torch, "inf": torch.inf, "scale": d**-0.5, "attn_mask": attn_mask, "d_output": d_output,
        "query": query_, "key": memory_, "value": memory_, "memory": memory_,
        "in_proj_weight": params["in_proj_weight"], "in_proj_bias": params["in_proj_bias"],
        "out_proj": type("", (), {"weight": params["out_proj.weight"], "bias": params["out_proj.bias"]}),
    }  # fmt: skip
    forward = {row.name: "".join(torch_lines(row)) for row in UNITS[unit].forward if row.name != "C"}
    backward = [(row, line) for row in UNITS[unit].backward for line in torch_lines(row)]
    of_a_head = [{"q_r": slice(r * d, (r + 1) * d), "k_r": slice(E + r * d, E + (r + 1) * d),
                  "v_r": slice(2 * E + r * d, 2 * E + (r + 1) * d), "o_r": slice(r * d, (r + 1) * d)}
                 for r in range(h)]  # fmt: skip
    for slices in of_a_head:
        env |= slices
        for name in "QKVSPO":
            exec(forward[name], env)
        slices |= {name: env[name] for name in ("q", "k", "v", "scores", "weights", "head")}
    env["heads"] = torch.cat([slices["head"] for slices in of_a_head], -1)
    exec(forward["Y"], env)
    assert close(env["output"], output.detach())
    sizes = {"L": lengths[0], "S": lengths[1], "E": E, "d": d}
    for r, slices in enumerate(of_a_head):
        env |= slices
        for row, line in backward:
            if r == 0 or row.name not in ("dW_O", "db_O"):  # of all heads together: once
                exec(line, env)
                assert tuple(eval(re.split(r" \+?= ", line)[0], env).shape) == tuple(
                    sizes[size] for size in re.findall(r"\w+", torch_shape(row, unit))
                )
    for name, p in mha.named_parameters():
        assert close(params[name].grad, p.grad), name
    assert close(query_.grad, query.grad)
    assert close(memory_.grad, memory.grad)


# --- what the page shows of them ----------------------------------------------------------------------------------


def test_formulas_are_printed_as_they_are_computed():
    ours, answer = (NOTATIONS[name] for name in ("ours", "answer"))
    rows = {row.name: row for row in BACKWARD + INTO_X}
    assert formula(rows["dX"], ours, "self") == (
        r"dX = \sum_r \bigl(dQ_r\,(W^Q_r)^\top + dK_r\,(W^K_r)^\top + dV_r\,(W^V_r)^\top\bigr)"
    )
    assert formula(IN_ONE[1], answer, "self") == (
        r"\frac{\partial f}{\partial W^Q_h} = \gamma\,Q^\top\,\frac{\partial f}{\partial A}\,\mathbb P_h^\top\,K\,W^K_h"
    )
    assert list(torch_lines(rows["dX"])) == [f"query.grad += d_{n} @ in_proj_weight[{n}_r]" for n in "qkv"]


def test_every_unit_is_on_the_page_and_every_formula_leads_to_a_derivation():
    assert re.findall(r"^```\{answer\} (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(UNITS)
    known = {e.label for e in equations()}
    for unit, notation in itertools.product(UNITS, NOTATIONS.values()):
        assert {label for row in notation.backward(unit) for label in row.labels} <= known


# --- its short program --------------------------------------------------------------------------------------------


@each_unit
def test_the_short_program(unit):
    """One sequence, h heads: the lines as they stand on the page."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(code, "answer.md", "exec"), names)
    example = Example(unit)
    env, p, allowed = example.forward(), example.params(), example.allowed[0, 0]
    X, mem, C, dY = (T[0, 0] for T in (env["X_q"], env["X_k"], env["C"], example.dY))
    heads = (env[name][0] for name in "QKVP")
    dX, dmem, dW, db = names["backward"](dY, X, mem, C, *heads, *p[:4], env["scale"])

    def layer(X, mem, *p):
        mask = array_namespace(X).asarray(allowed)
        return ab.multi_head_attention(X, ab.MultiHeadParams(*p), num_heads=H, memory=mem, mask=mask)

    check_vjp(layer, (dX, dmem, *dW, *db), at=(X, mem, *p[:8]), cotangent=dY)
    if unit != "cross":
        check_vjp(lambda X, *p: layer(X, X, *p), (dX + dmem, *dW, *db), at=(X, *p[:8]), cotangent=dY)
