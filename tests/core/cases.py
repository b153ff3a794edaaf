"""The table of cases of attention, a line each. Every test of attention runs all of them: a new variant adds a line.

All sizes are distinct primes wherever a case does not need them equal, so that a wrong transpose cannot hide.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from array_api_compat import array_namespace, device

import attnbook as ab
from attnbook.diagnose.cases.covering import cover
from attnbook.ops import (
    ALiBi,
    Bias,
    BlockMask,
    Dropout,
    LogitScale,
    Op,
    RelativeBias,
    Scale,
    Segments,
    Sink,
    Softcap,
    T5Buckets,
    Window,
)
from attnbook.rotary import Linear


@dataclass(frozen=True)
class Gate(Op):
    """An op as a user would write it, which must save something for its derivatives: S ↦ S σ(S)."""

    def forward(self, S, tile):
        y = 1 / (1 + array_namespace(S).exp(-S))
        return S * y, (S, y)

    def vjp(self, dS, saved, tile):
        return dS * self._slope(*saved), None

    def jvp(self, tS, saved, tile, tparam=None):
        return tS * self._slope(*saved)

    def vjp_jvp(self, tdS, dS, tS, saved, tile, tparam=None):
        S, y = saved
        return tdS * self._slope(S, y) + dS * tS * y * (1 - y) * (2 + S * (1 - 2 * y)), None

    def _slope(self, S, y):
        return y * (1 + S * (1 - y))


@dataclass(frozen=True)
class Squash(Op):
    """An op that saves the very array that it returns: S ↦ tanh S."""

    def forward(self, S, tile):
        y = array_namespace(S).tanh(S)
        return y, y

    def vjp(self, dS, saved, tile):
        return dS * (1 - saved * saved), None

    def jvp(self, tS, saved, tile, tparam=None):
        return tS * (1 - saved * saved)

    def vjp_jvp(self, tdS, dS, tS, saved, tile, tparam=None):
        return (1 - saved * saved) * (tdS - 2 * saved * tS * dS), None


@dataclass(frozen=True, eq=False)
class Distances(Op):
    """An op whose parameter does not lie over the table: S_ij + T[i − j + n_k − 1], a number for each distance.

    Of a shorter table the numbers recur."""

    T: object
    arrays, learns, own_axes, affine = ("T",), "T", 1, True

    def forward(self, S, tile):
        return S + self._spread(self.T, tile), None

    def vjp(self, dS, saved, tile):
        xp = array_namespace(dS)
        of_pairs = xp.reshape(xp.sum(dS, axis=tuple(range(dS.ndim - 2))) if dS.ndim > 2 else dS, (-1,))
        distances = xp.arange(self.T.shape[0], device=device(dS))
        hits = xp.astype(distances[:, None] == self._places(dS, tile)[None, :], dS.dtype)
        return dS, hits @ of_pairs

    def jvp(self, tS, saved, tile, tparam=None):
        return tS if tparam is None else tS + self._spread(tparam, tile)

    def _places(self, like, tile):
        xp = array_namespace(like)
        i = xp.arange(tile.rows.start, tile.rows.stop, device=device(like))
        j = xp.arange(tile.cols.start, tile.cols.stop, device=device(like))
        return xp.reshape(i[:, None] - j[None, :] + (tile.n_k - 1), (-1,)) % self.T.shape[0]

    def _spread(self, T, tile):
        xp = array_namespace(T)
        picked = xp.take(self.here(tile, T), self._places(T, tile), axis=0)
        return xp.reshape(picked, (len(tile.rows), len(tile.cols)))


def in_the_library_of(like, op):
    """The op, with those of its arrays that NumPy drew in the library of ``like``."""
    arrays = {name: T for name in op.arrays if isinstance(T := getattr(op, name), np.ndarray)}
    move = partial(array_namespace(like).asarray, device=device(like))
    return op.with_arrays({name: move(T) for name, T in arrays.items()}) if arrays else op


DOCUMENTS = partial(Segments, np.array([0, 0, 1, 2, 2]), np.array([0, 0, 0, 2, 2, 2, 3]))  # query 2 has no key
OF_A_BATCH = partial(Segments, np.array([[[0, 0, 1, 1, 1]], [[0, 0, 0, 0, 1]]]), np.array([1, 1, 0, 0, 1, 0, 1]))
PREFIX_LM = partial(Segments, np.zeros(5, int), np.zeros(7, int), np.arange(5), np.array([0, 0, 0, 3, 4, 5, 6]))
PACKED, PACKED_CAUSAL = (
    partial(Segments.packed, np.array([0, 2, 2, 5]), np.array([0, 1, 3, 7]), causal)
    for causal in ("bottom-right", True)
)
BLOCKS = partial(BlockMask, np.array([[True, False, True], [False, False, False], [False, True, True]]), (2, 3))
BLOCKS_OF_HEADS = partial(BlockMask, np.random.default_rng(3).random((3, 3, 4)) < 0.5, 2)


@dataclass(frozen=True)
class Case:
    """A way to call attention. ``mask`` and ``bias`` are shapes; what stands in them is drawn, the same each time.

    ``dead`` forbids every key to query 1, and ``forbid`` is the share of −∞ in the bias.
    ``ops`` are pairs of a class and the shape of its parameter, None where it has none.
    """

    name: str
    q: tuple = (2, 3, 5, 11)
    k: tuple = (2, 3, 7, 11)
    v: tuple = (2, 3, 7, 13)
    mask: tuple | None = None
    bias: tuple | None = None
    dead: bool = False
    forbid: float = 0.0
    causal: bool | str = False
    scale: float | None = None
    ops: tuple = ()

    def __str__(self):
        return self.name

    @property
    def scores(self):
        """The shape of the score table."""
        h = self.q[-3] if len(self.q) > 2 else 1
        heads = [(*T[:-3], h) if len(T) > 2 and T[-3] != 1 and h > 1 else T[:-2] for T in (self.k, self.v)]
        return (*np.broadcast_shapes(self.q[:-2], *heads), self.q[-2], self.k[-2])

    @property
    def corner(self):
        """Which corner causal counts from, or None."""
        return {False: None, True: "top-left"}.get(self.causal, self.causal)

    def draw(self, seed=0):
        """Q, K, V and, where the case has them, the bias and the ops' parameters: float64 NumPy."""
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(shape) for shape in (self.q, self.k, self.v)]
        if self.bias is not None:
            inputs.append(np.where(self._pattern(self.bias, self.forbid), rng.standard_normal(self.bias), -np.inf))
        return inputs + [rng.standard_normal(shape) for _, shape in self.ops if shape is not None]

    def tangents(self, seed=1):
        """A tangent for each array of ``draw``."""
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(T.shape) for T in self.draw()]

    def attend(self, Q, K, V, *parameters):
        """``attention`` with this case's options, in the library of Q."""
        return ab.attention(Q, K, V, **self.options(Q, *parameters))

    def options(self, like, *parameters):
        """The options of a call, in the library of ``like``."""
        rest = iter(parameters)
        options = {"causal": self.causal, "scale": self.scale}
        if self.bias is not None:
            options["bias"] = next(rest)
        if self.mask is not None:
            options["mask"] = array_namespace(like).asarray(self._pattern(self.mask), device=device(like))
        options["ops"] = [in_the_library_of(like, op) for op in self.made(*rest)]
        return options

    def pull(self, dO, res, dL=None):
        """``attention_vjp``: a gradient for each array of ``draw``."""
        return self._flat(ab.attention_vjp(dO, res, dL))

    def push(self, tangents, res, **options):
        """``attention_jvp`` along a tangent for each array of ``draw``."""
        return ab.attention_jvp(*tangents[:3], res, **self._of_parameters(tangents), **options)

    def push_pull(self, tangents, dO, res, **options):
        """``attention_hvp`` along these: the tangent of each gradient of ``pull``, and those of O and L."""
        options |= self._of_parameters(tangents)
        grads, tO, tL = ab.attention_hvp(*tangents[:3], dO, res, with_O=True, **options)
        return [*self._flat(grads), tO, tL]

    def _of_parameters(self, tangents):
        rest = list(tangents[3:])
        tbias = None if self.bias is None else rest.pop(0)
        return {"tbias": tbias, "tops": [None if shape is None else rest.pop(0) for _, shape in self.ops]}

    def _flat(self, grads):
        of_bias = [] if self.bias is None else [grads.dbias]
        return [grads.dQ, grads.dK, grads.dV, *of_bias, *(dop for dop in grads.dops if dop is not None)]

    def made(self, *parameters):
        """The ops; ``parameters`` begin with those of the ops."""
        rest = iter(parameters)
        return [op() if shape is None else op(next(rest)) for op, shape in self.ops]

    def allowed(self):
        """Which query may attend to which key, for the whole score table, worked out without the package."""
        n_q, n_k = self.scores[-2:]
        shift = n_k - n_q if self.corner == "bottom-right" else 0
        allowed = np.tri(n_q, n_k, shift, dtype=bool) if self.causal else np.ones((n_q, n_k), dtype=bool)
        for op in (op() for op, shape in self.ops if shape is None):
            if isinstance(op, Window):
                shift = n_k - n_q if (op.corner or self.corner) == "bottom-right" else 0
                left, right = (n_q + n_k if side is None else side for side in (op.left, op.right))
                i, j = np.arange(n_q)[:, None] + shift, np.arange(n_k)  # places
                first = range(op.global_tokens)
                allowed = allowed & ((-left <= j - i) & (j - i <= right) | np.isin(i, first) | np.isin(j, first))
            if isinstance(op, Segments):
                allowed = allowed & (op.q_ids[..., None] == op.k_ids[..., None, :])
                if op.q_places is not None:
                    allowed = allowed & (op.q_places[..., None] >= op.k_places[..., None, :])
            if isinstance(op, BlockMask):
                rows, cols = op.size if isinstance(op.size, tuple) else (op.size, op.size)
                allowed = allowed & op.blocks.repeat(rows, axis=-2).repeat(cols, axis=-1)[..., :n_q, :n_k]
        if self.mask is not None:
            allowed = allowed & self._pattern(self.mask)
        if self.bias is not None:
            allowed = allowed & self._pattern(self.bias, self.forbid)
        return np.broadcast_to(allowed, self.scores)

    def _pattern(self, shape, forbid=0.3):
        allowed = np.random.default_rng(7).random(shape) >= forbid
        if self.dead:
            allowed[..., 1, :] = False
        return allowed


class Slopes(Case):
    """With slopes as models have them: −2 times a distance of 50 would be a score of 100. More heads than elsewhere, as
    the gradients that are compared are only one number each.
    """

    def draw(self, seed=0):
        Q, K, V, slopes, *rest = super().draw(seed)
        return [Q, K, V, 0.3 * abs(slopes), *rest]


def _crossed():
    """Rows in which the kinds of leading axes, sizes, masks, biases, corners, scales and sets of ops meet in pairs."""
    factors = {
        "lead": [
            ((), (), ()), 3 * ((2, 1, 3),), ((2, 1), (1, 3), (3,)), ((3,), (3,), (2, 3)), ((2, 6), (2, 1), (2, 3)),
        ],
        "ops": [
            ((Gate, None), (Distances, (3,)), (partial(Dropout, 0.1, -1), None)),
            ((ALiBi, ()), (RelativeBias, (9,)), (partial(Window, 1, None), None)),
            ((LogitScale, ()), (partial(RelativeBias, buckets=T5Buckets(4, 3, False)), (4,)), (Sink, ())),
            ((partial(Window, None, 1, "top-left"), None), (Bias, (1,)), (partial(Softcap, 1.5), None)),
            ((partial(Window, 0, 1, "bottom-right", global_tokens=1), None), (Sink, ()), (Gate, None)),
        ],
        "n": [(5, 7), (7, 5), (7, 2), (1, 1)],
        "mask": [None, "every score", "keys", "queries"],
        "bias": [None, "every score", "queries", "keys"],
        "causal": [True, "bottom-right", False],
        "scale": [None, -0.7],
    }  # fmt: skip

    def nothing_tells_a_corner(row):
        return row["causal"] is False and row["n"][0] != row["n"][1] and row["ops"] in factors["ops"][1:3]

    rows = cover(factors, forbids=nothing_tells_a_corner)
    return tuple(_of_row(f"crossed {i}", **row) for i, row in enumerate(rows))


def _of_row(name, lead, n, mask, bias, **rest):
    (n_q, n_k), (d_k, d_v) = n, ((1, 1) if n == (1, 1) else (11, 13))
    q, k, v = ((*axes, *own) for axes, own in zip(lead, ((n_q, d_k), (n_k, d_k), (n_k, d_v)), strict=True))
    scores = Case("", q, k, v).scores
    shapes = {None: None, "every score": scores, "queries": (n_q, 1), "keys": (n_k,)}
    dead = n_q > 1 and mask in ("every score", "queries") and bias != "keys"
    return Case(name, q, k, v, shapes[mask], shapes[bias], dead, 0.3, **rest)


CASES = (
    Case("plain"),
    Case("one query, one key", q=(3, 1, 11), k=(3, 1, 11), v=(3, 1, 13)),
    Case("one tile, cut down", q=(2, 3, 2, 11), k=(2, 3, 3, 11), v=(2, 3, 3, 13), causal=True),
    Case("no query", q=(3, 0, 11), k=(3, 7, 11), v=(3, 7, 13)),
    Case("no key", q=(3, 5, 11), k=(3, 0, 11), v=(3, 0, 13)),
    Case("empty batch", q=(0, 5, 11), k=(0, 7, 11), v=(0, 7, 13)),
    Case("grouped queries", q=(2, 6, 5, 11)),
    Case("keys and values grouped apart", q=(2, 6, 5, 11), k=(2, 3, 7, 11), v=(2, 2, 7, 13)),
    Case("grouped, masked and biased", q=(2, 6, 5, 11), mask=(6, 5, 7), bias=(6, 1, 7), causal="bottom-right"),
    Case("mask", mask=(2, 3, 5, 7)),
    Case("mask with a dead row", mask=(3, 5, 7), dead=True),
    Case("bias", bias=(2, 3, 5, 7)),
    Case("bias for all heads", bias=(2, 1, 5, 7)),
    Case("bias for all queries", bias=(3, 1, 7)),
    Case("bias for all keys", bias=(5, 1)),
    Case("bias of no axis", bias=()),
    Case("mask and bias of every score", mask=(2, 3, 5, 7), bias=(2, 3, 5, 7), causal=True),
    Case("causal, more keys", causal=True),
    Case("bottom-right, more keys", causal="bottom-right"),
    Case("scale", scale=0.7),
    Case("scale of zero", scale=0),
    Case("op that saves its result", ops=((Squash, None),)),
    Case("op with a parameter", ops=((Bias, (3, 1, 7)),)),
    Case("distances, grouped and causal", q=(2, 6, 5, 11), causal="bottom-right", ops=((Distances, (11,)),)),
    Case("window", ops=((partial(Window, 2, 1, "top-left"), None),)),
    Case("window and causal", q=(2, 3, 7, 11), causal=True, ops=((partial(Window, 1, None), None),)),
    Case("window with global tokens", ops=((partial(Window, 1, 0, "top-left", 2), None),)),
    Case("ALiBi", ops=((partial(ALiBi, corner="bottom-right"), (3,)),)),
    Slopes("ALiBi of many heads", q=(8, 5, 11), k=(8, 7, 11), v=(8, 7, 13),
           ops=((partial(ALiBi, corner="top-left"), (8,)),)),
    Case("relative bias", ops=((partial(RelativeBias, corner="bottom-right"), (3, 5)),)),
    Case("relative bias of T5", ops=((partial(RelativeBias, buckets=T5Buckets(8, 5), corner="top-left"), (2, 3, 8)),)),
    Case("scale that is learned", ops=((Scale, ()),)),
    Case("logit scale", ops=((LogitScale, (3,)),)),
    Case("logit scale, grouped", q=(2, 6, 5, 11), ops=((LogitScale, (6, 1, 1)),), causal=True),
    Case("softcap", ops=((partial(Softcap, 1.5), None),)),
    Case("window before softcap",
         ops=((partial(Window, 1, 0, "top-left"), None), (Bias, (7,)), (partial(Softcap, 1.5), None))),
    Case("dropout", ops=((partial(Dropout, 0.3, 5), None),)),
    Case("two dropouts", causal=True, ops=((partial(Dropout, 0.3, 5), None), (partial(Dropout, 0.4, 7), None))),
    Case("dropout, softcap and bias", bias=(3, 1, 7), causal=True,
         ops=((partial(Dropout, 0.3, 5), None), (partial(Softcap, 1.5), None), (Bias, (5, 1)))),
    Case("sink", ops=((Sink, (3,)),)),
    Case("sink, grouped, bottom-right, with a dead row", q=(2, 6, 5, 11), mask=(2, 1, 5, 7), dead=True,
         causal="bottom-right", ops=((Sink, (6,)),)),
    Case("sink and no key", q=(3, 5, 11), k=(3, 0, 11), v=(3, 0, 13), ops=((Sink, (3,)),)),
    Case("two sinks, dropout, cap and bias", mask=(2, 3, 5, 7), bias=(3, 1, 7), scale=0.7, ops=(
        (Sink, (3, 1, 1)), (partial(Dropout, 0.3, 5), None), (partial(Softcap, 1.5), None), (Sink, (1,)),
        (Bias, (5, 1)))),
    Case("documents", ops=((DOCUMENTS, None),)),
    Case("documents, causal, grouped, biased", q=(2, 6, 5, 11), bias=(5, 7), causal=True, ops=((DOCUMENTS, None),)),
    Case("packed, causal, with a sink", q=(2, 6, 5, 11), ops=((PACKED_CAUSAL, None), (Sink, (6,)))),
    Case("prefix", ops=((PREFIX_LM, None),)),
    Case("blocks", ops=((BLOCKS, None),)),
    Case("blocks of each head, bottom-right, cap", causal="bottom-right",
         ops=((BLOCKS_OF_HEADS, None), (partial(Softcap, 1.5), None))),
    Case("all at once", mask=(1, 5, 7), bias=(5, 7), causal=True, scale=0.7, ops=((Gate, None), (Bias, (7,)))),
    Case("no key, places", q=(3, 5, 11), k=(3, 0, 11), v=(3, 0, 13), mask=(5, 0), bias=(3, 5, 0), causal="bottom-right",
         ops=((ALiBi, (3,)), (partial(Dropout, 0.3, 5), None), (RelativeBias, (3, 5)))),
    *_crossed(),
)  # fmt: skip

CASE = {case.name: case for case in CASES}
"""The same by name."""


# --- multi-head attention -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MultiHead:
    """A way to call multi-head attention: ``heads`` is the case that attention sees, once the heads are split.

    Without a ``d_mem`` it is self-attention. ``biases`` says which projections have one, "G" the gate. ``gains`` says
    which of the norms have one, and ``gate`` whether it has a number a "head" or a "column".
    """

    name: str
    heads: Case = Case("three heads")
    d_model: int = 17
    d_mem: int | None = 19
    d_out: int = 23
    biases: str = "QKVO"
    norm: str | None = None
    gains: str = "QK"
    rotary: ab.Rotary | None = None
    gate: str | None = None

    def __str__(self):
        return self.name

    @property
    def h(self):
        return self.heads.q[-3]

    @property
    def h_kv(self):
        return self.heads.k[-3]

    def draw(self, seed=0):
        """X, memory, weights, biases, and what ``heads`` has besides Q, K, V: float64 NumPy."""
        rng = np.random.default_rng(seed)
        lead, d_mem = self.heads.q[:-3], self.d_mem or self.d_model
        inputs = [(*lead, self.heads.q[-2], self.d_model), (*lead, self.heads.k[-2], d_mem)]
        columns = [self.h * self.heads.q[-1], self.h_kv * self.heads.k[-1], self.h_kv * self.heads.v[-1], self.d_out]
        rows = [self.d_model, d_mem, d_mem, self.h * self.heads.v[-1]]
        drawn = [rng.standard_normal(shape) for shape in inputs[: 2 if self.d_mem else 1]]
        drawn += [rng.standard_normal(shape) / shape[0] ** 0.5 for shape in zip(rows, columns, strict=True)]
        drawn += [rng.standard_normal(n) for name, n in zip("QKVO", columns, strict=True) if name in self.biases]
        return drawn + self.heads.draw(seed)[3:] + [rng.standard_normal(shape) for shape in self._extras().values()]

    def _extras(self):
        """The shapes of the gains and of the gate's arrays, by name: the last that ``draw`` gives."""
        shapes = {f"g_{name}": (self.heads.q[-1],) for name in self.gains if self.norm}
        if self.gate:
            width = self.h if self.gate == "head" else self.h * self.heads.v[-1]
            shapes |= {"W": (self.d_model, width)} | ({"b": (width,)} if "G" in self.biases else {})
        return shapes

    def options(self, X, *rest):
        """The options of a call, in the library of X."""
        options = self.heads.options(X, *rest)
        names = list(self._extras())
        extras = dict(zip(names, rest[len(rest) - len(names) :], strict=True))
        if self.norm:
            options["qk_norm"] = ab.QKNorm(extras.get("g_Q"), extras.get("g_K"), self.norm, 0.01)
        if self.rotary:
            beside = partial(array_namespace(X).asarray, device=device(X))
            both = (at if at is None else beside(at) for at in self.rotary[:2])
            options["rotary"] = ab.Rotary(*both, *self.rotary[2:])
        if self.gate:
            options["gate"] = ab.Gate(extras["W"], extras.get("b"))
        return options

    def sort(self, arrays):
        """The arrays of ``draw``, or their gradients, as (X, memory, MultiHeadParams, the rest)."""
        X, *rest = arrays
        memory = rest.pop(0) if self.d_mem else None
        W, rest = rest[:4], iter(rest[4:])
        p = ab.MultiHeadParams(*W, *(next(rest) if name in self.biases else None for name in "QKVO"))
        return X, memory, p, list(rest)

    def attend(self, *inputs):
        """``multi_head_attention`` with this case's options, in the library of X."""
        X, memory, p, rest = self.sort(inputs)
        h_kv = None if self.h_kv == self.h else self.h_kv
        options = self.options(X, *rest)
        return ab.multi_head_attention(X, p, num_heads=self.h, num_kv_heads=h_kv, memory=memory, **options)

    def pull(self, dY, res):
        """``multi_head_attention_vjp``: a gradient for each array of ``draw``."""
        grads = ab.multi_head_attention_vjp(dY, res)
        given = (grads.dX, grads.dmemory, *grads.dparams, grads.dbias, *grads.dops)
        extras = (*(grads.dqk_norm or ())[:2], *(grads.dgate or ()))
        return [T for T in (*given, *extras) if T is not None]


def _self(name, heads=None, **options):
    """A case of self-attention: seven tokens."""
    return MultiHead(name, heads or Case("", q=(2, 3, 7, 11)), d_mem=None, **options)


AT = np.random.default_rng(1).integers(0, 99, (2, 9))
"""Positions in no order."""

MULTI_HEAD = (
    MultiHead("cross"),
    _self("self"),
    MultiHead("biases of queries and output, scaled, masked", Case("", scale=0.7, mask=(3, 5, 7)), biases="QO"),
    _self("biases of keys and values, biased, causal", Case("", q=(2, 3, 7, 11), bias=(7, 7), forbid=0.3, causal=True),
          biases="KV"),
    _self("two leading axes, heads of width one", Case("", q=(2, 1, 3, 7, 1), k=(2, 1, 3, 7, 1), v=(2, 1, 3, 7, 1))),
    MultiHead("all widths equal", Case("", v=(2, 3, 7, 11)), d_model=33, d_mem=33, d_out=33),
    MultiHead("grouped", Case("", q=(2, 6, 5, 11))),
    _self("grouped, self", Case("", q=(2, 6, 7, 11), k=(2, 2, 7, 11), v=(2, 2, 7, 13))),
    MultiHead("mask with a dead row", Case("", mask=(5, 7), dead=True)),
    MultiHead("documents of a batch", Case("", ops=((OF_A_BATCH, None), (Gate, None), (Bias, (3, 1, 7))))),
    MultiHead("sink", Case("", mask=(5, 7), dead=True, causal="bottom-right", ops=((Sink, (3,)),))),
    MultiHead("places and scales", Case("", q=(2, 6, 5, 11), causal="bottom-right", ops=(
        (LogitScale, (6, 1, 1)), (ALiBi, (6,)), (RelativeBias, (6, 5)), (partial(Window, 2, 1), None)))),
    MultiHead("all other ops", Case("", mask=(5, 1), dead=True, ops=(
        (Scale, ()), (partial(RelativeBias, buckets=T5Buckets(8, 5), corner="top-left"), (8,)),
        (partial(Softcap, 1.5), None), (partial(Window, 2, 0, "top-left", 1), None), (BLOCKS_OF_HEADS, None),
        (partial(Dropout, 0.3, 5), None)))),
    MultiHead("no query", Case("", q=(2, 3, 0, 11)), norm="rms", rotary=ab.Rotary(AT[0, :0], dims=2), gate="head"),
    MultiHead("no key", Case("", k=(2, 3, 0, 11), v=(2, 3, 0, 13))),
    _self("empty batch", Case("", q=(0, 3, 7, 11), k=(0, 3, 7, 11), v=(0, 3, 7, 13))),
    _self("rotary, self, positions of each batch", rotary=ab.Rotary(AT[:, :7], dims=6, layout="half")),
    MultiHead("rotary", rotary=ab.Rotary(dims=8, base=50.0)),
    MultiHead("rotary, positions go on", Case("", causal="bottom-right"), rotary=ab.Rotary(AT[0, 2:7], dims=10)),
    MultiHead("rotary, positions of both", rotary=ab.Rotary(AT[0, 2:7], AT[:, :7] / 2, dims=4, scaling=Linear(4.0))),
    MultiHead("norm", norm="rms"),
    _self("norm, self, lengths", norm="l2", gains="", rotary=ab.Rotary(dims=10, base=100.0)),
    MultiHead("norm with one gain", Case("", q=(2, 6, 5, 11)), norm="l2", gains="K"),
    MultiHead("gate a head", gate="head", biases="QKVOG"),
    _self("gate a column, self", gate="column"),
    _self("norm, rotary and gate, grouped", biases="VG", norm="rms", gate="column",
          heads=Case("", q=(2, 6, 7, 11), k=(2, 2, 7, 11), v=(2, 2, 7, 13), causal=True, bias=(6, 1, 7)),
          rotary=ab.Rotary(dims=10, layout="half")),
    MultiHead("all at once", biases="QVO", heads=Case(
        "", q=(2, 6, 5, 11), mask=(6, 5, 7), bias=(2, 1, 1, 7), causal=True, scale=0.7, ops=((Bias, (5, 1)),))),
)  # fmt: skip

MULTI_HEAD_CASE = {case.name: case for case in MULTI_HEAD}
"""The same by name."""
