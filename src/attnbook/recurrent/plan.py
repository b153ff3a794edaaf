"""A call of the recurrent room, resolved once: its options, and an error where something does not fit."""

from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_broadcasts, check_scale, check_shape, choose, scores_shape
from attnbook.arrays import accumulation_dtype, agree, agree_on_place, array_namespace, expected, whole
from attnbook.recurrent.features import FEATURES
from attnbook.types import AnyArray, Array, described

FLAGS = {False: False, True: True}


class Inputs(NamedTuple):
    """The arrays of a call; its tangents are Inputs too. None where one is not given."""

    Q: Any
    K: Any
    V: Any
    beta: AnyArray | None = None
    gate: AnyArray | None = None
    state: AnyArray | None = None


@described
class RecurrentGrads(NamedTuple, Generic[Array]):
    """Gradients, each with the shape of its variable; None where one was not given."""

    dQ: Array
    """(..., n, d_k), like Q."""
    dK: Array
    """(..., n, d_k), like K."""
    dV: Array
    """(..., n, d_v), like V."""
    dbeta: Array | None
    """The shape of beta; of the delta rule only."""
    dgate: Array | None
    """The shape of gate."""
    dstate: Array | None
    """The shape of the state that was given."""


class Plan(NamedTuple):
    """The options of a call: ``shape`` is (..., n_q, n_k), ``of_state`` that of the state; ``delta``: there is a β."""

    shape: tuple[Any, ...]
    of_state: tuple[Any, ...]
    delta: bool
    scale: float
    feature: str
    normalize: bool
    causal: bool
    chunk: int


def resolve(
    inputs: Inputs, *, scale: Any, chunk: Any, feature: str = "identity", normalize: bool = False, causal: bool = True
) -> Plan:
    """The plan, or an error where an argument does not fit."""
    Q, K, V, beta, gate, state = inputs
    agree({"beta": beta, "gate": gate}, Q=Q, K=K, V=V)
    *lead, n_q, n_k = shape = scores_shape(Q, K, V)
    choose("feature", feature, FEATURES)
    normalize, causal = choose("normalize", normalize, FLAGS), choose("causal", causal, FLAGS)
    if causal and n_q != n_k:
        raise ValueError(expected("K", f"a key for each of the {n_q} queries, as causal", f"shape {tuple(K.shape)}"))
    if gate is not None and not causal:
        raise ValueError(expected("gate", "None without causal: there are no steps to decay over", "an array"))
    for name, T in (("beta", beta), ("gate", gate)):
        if T is not None:
            check_broadcasts(name, tuple(T.shape), (*lead, n_k), "(..., n)")
    of_state = (*lead, Q.shape[-1], V.shape[-1] + normalize)
    check_state("state", state, Q)
    if state is not None:
        check_broadcasts(
            "state", tuple(state.shape), of_state, "(..., d_k, d_v + 1)" if normalize else "(..., d_k, d_v)"
        )
    if chunk is not None:
        chunk = whole("chunk", chunk, 1, "a whole number of tokens, at least 1, or None for all")
    scale, chunk = check_scale(scale, Q.shape[-1]), chunk or max(1, n_k)
    return Plan(shape, of_state, beta is not None, scale, feature, normalize, causal, chunk)


def check_cotangents(dO: Any, dstate: Any, res: Any) -> None:
    """An error, where the gradients that arrive do not fit."""
    agree(Q=res.Q, dO=dO)
    check_shape("dO", dO, (*res.plan.shape[:-1], res.V.shape[-1]))
    check_state("dstate", dstate, res.Q)
    if dstate is not None:
        check_shape("dstate", dstate, res.plan.of_state)


def check_tangents(tangents: Inputs, res: Any) -> None:
    """An error, where a tangent does not fit its variable, or that was not given."""
    tQ, tK, tV, tbeta, tgate, tstate = tangents
    agree({"tbeta": tbeta, "tgate": tgate}, Q=res.Q, tQ=tQ, tK=tK, tV=tV)
    check_state("tstate", tstate, res.Q)
    for name, tangent, T in zip(Inputs._fields, tangents, res[: len(tangents)], strict=True):
        if tangent is not None:
            if T is None:
                raise ValueError(expected(f"t{name}", f"None, as there was no {name}", "an array"))
            check_shape(f"t{name}", tangent, tuple(T.shape))


def check_state(name: str, T: Any, Q: Any) -> None:
    """An error, where a state is no array of the accumulation dtype beside Q."""
    if T is not None:
        agree_on_place(name, T, "Q", Q)
        if T.dtype != accumulation_dtype(array_namespace(Q), Q.dtype):
            raise TypeError(expected(name, "the dtype of Q, or float32 where that has 16 bits", T.dtype))
