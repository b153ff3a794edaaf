"""The recurrent room beside a plain loop over tokens: values, derivatives, chunks, states, gates, libraries."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from compare import derivatives_agree, draw, same_everywhere

import attnbook as ab
from attnbook.arrays import array_namespace, narrow, widen
from attnbook.checks import close

FIELDS = ("Q", "K", "V", "beta", "gate", "state")
PHI = {
    "identity": lambda xp, X: X,
    "relu": lambda xp, X: X * xp.astype(X > 0, X.dtype),
    "exp": lambda xp, X: xp.exp(X),
    "elu+1": lambda xp, X: xp.where(X > 0, X + 1, xp.exp(X)),
}
CHUNKS = (1, 2, 4, 11, 64, None)


class Case(NamedTuple):
    """Shapes by name, those of ``FIELDS`` that are given, and options; with a beta it is the delta rule."""

    name: str
    shapes: dict
    options: dict = {}  # noqa: RUF012 - never written to

    def __str__(self):
        return self.name

    @property
    def delta(self):
        return "beta" in self.shapes

    def draw(self, seed=0):
        """Keys of length about 1, beta between 0 and 1, gates below 0."""
        drawn = dict(zip(self.shapes, draw(*self.shapes.values(), seed=seed), strict=True))
        drawn["K"] /= self.shapes["K"][-1] ** 0.5
        for name, T in drawn.items():
            if name in ("beta", "gate"):
                drawn[name] = 1 / (1 + np.exp(-T)) if name == "beta" else -np.abs(T)
        return list(drawn.values())

    def named(self, arrays):
        return dict(zip(self.shapes, arrays, strict=True))

    def run(self, *arrays, **options):
        return (ab.delta_rule if self.delta else ab.linear_attention)(**self.named(arrays), **self.options, **options)

    def pull(self, dO, res, dstate=None):
        grads = (ab.delta_rule_vjp if self.delta else ab.linear_attention_vjp)(dO, res, dstate)
        given = dict(zip(FIELDS, grads, strict=True))
        assert all(given[name] is None for name in set(FIELDS) - set(self.shapes))
        return [given[name] for name in self.shapes]

    def push(self, tangents, res):
        jvp = ab.delta_rule_jvp if self.delta else ab.linear_attention_jvp
        return jvp(**{f"t{name}": T for name, T in self.named(tangents).items()}, res=res, with_state=True)

    def naive(self, *arrays):
        """O and the last state, token by token, on any library."""
        given = self.named(arrays)
        Q, K, V = (given[name] for name in "QKV")
        xp, beta = array_namespace(Q), given.get("beta")
        phi = PHI["identity" if self.delta else self.options.get("feature", "elu+1")]
        normalize = not self.delta and self.options.get("normalize", True)
        Q, K = phi(xp, Q) * self.options.get("scale", Q.shape[-1] ** -0.5), phi(xp, K)
        if normalize:
            V = xp.concat([V, xp.ones_like(V[..., :1])], axis=-1)
        if Q.ndim > 2 and K.ndim > 2 and K.shape[-3] > 1:
            K = xp.repeat(K, Q.shape[-3] // K.shape[-3], axis=-3)
            V = xp.repeat(V, Q.shape[-3] // V.shape[-3], axis=-3)
        lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
        H = 0 * xp.zeros((*lead, Q.shape[-1], V.shape[-1]), dtype=Q.dtype) + given.get("state", 0)
        outputs, n = [H[..., :0, :]], K.shape[-2]
        if not self.options.get("causal", True):
            H = H + xp.matrix_transpose(K) @ V
            outputs = [Q @ H]
        else:
            at = {name: given[name] + xp.zeros((n,), dtype=Q.dtype) for name in ("beta", "gate") if name in given}
            for t in range(n):
                q, k, u = (T[..., t : t + 1, :] for T in (Q, K, V))
                if "gate" in at:
                    H = xp.exp(at["gate"][..., t, None, None]) * H
                if beta is not None:
                    u = at["beta"][..., t, None, None] * (u - k @ H)
                H = H + xp.matrix_transpose(k) @ u
                outputs.append(q @ H)
        O = xp.concat(outputs, axis=-2)
        if normalize:
            Z = O[..., -1:]
            O = O[..., :-1] / xp.where(Z == 0, xp.ones_like(Z), Z)
        return O, H


Q, K, V = (2, 4, 11, 5), (2, 4, 11, 5), (2, 4, 11, 3)
QKV, OF_2_HEADS = {"Q": Q, "K": K, "V": V}, {"Q": Q, "K": (2, 2, 11, 5), "V": (2, 2, 11, 3)}
PLAIN = {"feature": "identity", "normalize": False}
CROSS = {"Q": (2, 4, 7, 5), "K": K, "V": V}
CASES = [
    Case("the defaults", QKV),
    *(Case(f"{feature}, not normalized", QKV, {"feature": feature, "normalize": False}) for feature in PHI),
    *(Case(f"{feature}, normalized", QKV, {"feature": feature}) for feature in ("relu", "exp")),
    Case("scale", QKV, {"scale": 0.3, "normalize": False}),
    Case("retention", {**QKV, "gate": (4, 1)}, PLAIN),
    Case("a gate a token, grouped", {**OF_2_HEADS, "gate": (2, 4, 11)}, PLAIN),
    Case("gate, normalized, state", {**QKV, "gate": (4, 11), "state": (2, 4, 5, 4)}),
    Case("one state for all", {**QKV, "state": (4, 5, 3)}, {"normalize": False}),
    Case("leading axes that broadcast", {"Q": (4, 11, 5), "K": (2, 1, 11, 5), "V": (11, 3), "gate": ()}, PLAIN),
    Case("to all keys", CROSS, {"causal": False}),
    Case("to all keys, state, grouped", {**OF_2_HEADS, "Q": (2, 4, 7, 5), "state": (4, 5, 4)}, {"causal": False}),
    Case("gated delta rule", {**QKV, "beta": (2, 4, 11), "gate": (2, 4, 11)}),
    Case("gated delta rule, state", {**QKV, "beta": (4, 11), "gate": (4, 1), "state": (4, 5, 3)}, {"scale": 1.0}),
    Case("gated delta rule, grouped", {**OF_2_HEADS, "beta": (11,), "gate": (2, 4, 11), "state": (2, 4, 5, 3)}),
    Case("no tokens", {"Q": (2, 0, 5), "K": (2, 0, 5), "V": (2, 0, 3), "gate": (2, 0), "state": (2, 5, 4)}),
    Case("delta rule, no tokens", {"Q": (0, 5), "K": (0, 5), "V": (0, 3), "beta": (0,), "state": (5, 3)}),
    Case("to no keys", {"Q": (2, 7, 5), "K": (2, 0, 5), "V": (2, 0, 3)}, {"causal": False}),
    Case("to all keys, no queries", {**CROSS, "Q": (2, 4, 0, 5), "state": (5, 4)}, {"causal": False}),
    Case("no batches", {"Q": (0, 11, 5), "K": (0, 11, 5), "V": (0, 11, 3), "beta": (0, 11)}),
]  # fmt: skip
CASE = {case.name: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def flat(O, state):
    """Output and state as one array, so that one cotangent reaches both."""
    xp = array_namespace(O)
    return xp.concat([xp.reshape(O, (-1,)), xp.reshape(state, (-1,))], axis=0)


@every_case
def test_it_is_the_loop_and_so_are_its_derivatives(case, chunk=4):
    inputs, tangents = case.draw(), case.draw(seed=1)
    O, res = case.run(*inputs, chunk=chunk)
    wanted = case.naive(*inputs)
    assert close(O, wanted[0])
    assert close(res.state, wanted[1])
    dO, dH = draw(O.shape, res.state.shape, seed=2)
    grads = case.pull(dO, res, dH)
    derivatives_agree(
        lambda *T: flat(*case.naive(*T)), inputs, tangents, flat(dO, dH), grads, flat(*case.push(tangents, res))
    )


@every_case
def test_every_chunk_gives_the_same(case):
    inputs, tangents = case.draw(), case.draw(seed=1)
    O, res = case.run(*inputs)
    dO, dH = draw(O.shape, res.state.shape, seed=2)
    found = {}
    for chunk in CHUNKS:
        O, res = case.run(*inputs, chunk=chunk)
        found[chunk] = [O, res.state, *case.pull(dO, res, dH), *case.push(tangents, res)]
    for chunk in CHUNKS[1:]:
        assert all(map(close, found[chunk], found[1])), chunk


@pytest.mark.parametrize("name", ["gate, normalized, state", "gated delta rule, state"])
@pytest.mark.parametrize("chunk", CHUNKS[1:])
def test_a_gate_of_minus_infinity_begins_anew(name, chunk):
    case = CASE[name]
    given = case.named(case.draw())
    gate = np.broadcast_to(given["gate"], (2, 4, 11)).copy()
    gate[..., 6] = -np.inf
    given["gate"] = gate
    O, res = case.run(*given.values(), chunk=chunk)
    for T, wanted in zip((O, res.state), case.naive(*given.values()), strict=True):
        assert close(T, wanted)
    dO, dH = draw(O.shape, res.state.shape, seed=2)
    dO[..., 6:, :], last = 0, dH
    grads = dict(zip(case.shapes, case.pull(dO, res, 0 * last), strict=True))
    assert all(np.all(np.isfinite(T)) for T in grads.values())
    assert not np.any(grads["V"][..., 6:, :])
    grads = dict(zip(case.shapes, case.pull(0 * dO, res, last), strict=True))
    assert not any(np.any(grads[name][..., :6, :]) for name in "QKV")
    assert np.any(grads["V"][..., 6:, :])
    assert not np.any(grads["gate"][..., 6])
    assert "state" not in grads or not np.any(grads["state"])
    tangents = [np.ones_like(T) for T in given.values()]
    assert all(np.all(np.isfinite(T)) for T in case.push(tangents, res))


@pytest.mark.parametrize("name", ["gate, normalized, state", "to all keys", "gated delta rule, grouped", "no tokens"])
def test_every_library_gives_the_same(xp, name):
    case, inputs = CASE[name], CASE[name].draw()
    O, res = case.run(*inputs)

    def all_passes(*arrays):
        """With states, which are in the accumulation dtype, narrowed at the end."""
        *given, dO, dH = arrays
        given = [widen(T) if field == "state" else T for field, T in zip(case.shapes, given, strict=True)]
        O, res = case.run(*given, chunk=4)
        return [narrow(T, O.dtype) for T in (O, res.state, *case.pull(dO, res, widen(dH)), *case.push(given, res))]

    same_everywhere(xp, all_passes, *inputs, *draw(O.shape, res.state.shape, seed=2))


@pytest.mark.parametrize(("form", "chunk"), [("chunk", 1), ("recurrent", 64)])
def test_it_is_qwen3_next(form, chunk):
    modeling = pytest.importorskip(
        "transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed"
    )
    rule = getattr(modeling, f"torch_{form}_gated_delta_rule")
    case = Case("Qwen3-Next", {**QKV, "beta": (2, 4, 11), "gate": (2, 4, 11), "state": (2, 4, 5, 3)})
    inputs = [torch.tensor(T, dtype=torch.float32, requires_grad=True) for T in case.draw()]
    q, k, v, beta, g, state = inputs
    by_token = [T.transpose(1, 2) for T in (q, k, v, g, beta)]
    O, last = rule(*by_token, initial_state=state, output_final_state=True)
    dO, dH = (torch.tensor(T, dtype=torch.float32) for T in draw((2, 4, 11, 3), (2, 4, 5, 3), seed=2))
    torch.autograd.backward((O, last), (dO.transpose(1, 2), dH))
    ours, res = case.run(*(T.detach() for T in inputs), chunk=chunk)
    grads = case.pull(dO, res, dH)
    pairs = [(ours, O.transpose(1, 2)), (res.state, last), *((a, T.grad) for a, T in zip(grads, inputs, strict=True))]
    for a, b in pairs:
        assert torch.max(torch.abs(a - b)) <= 1e-5 * max(1, torch.max(torch.abs(b)))
