"""What goes wrong with a window, a cap, a sink, slopes, rotary, dropout, and the gradients of bias and L.

Chapter: :doc:`/chapters/09_variants`.
"""

from itertools import chain

import numpy as np

from attnbook.diagnose.causes._fault import dsink_of, faults, in_backward, in_forward, throughout, weights, without
from attnbook.diagnose.steps import L_of, Steps, mT, rowsum, softmax

IGNORING = {
    "window": {"window_allows": lambda a: np.full((a.n_q, a.n_k), True)},
    "softcap": {"capped": lambda a: a.products, "dproducts": lambda a: a.dS},
    "sink": {"P": lambda a: softmax(a.S), "dsink": lambda a: 0 * a.sink},
    "slopes": {"scores": lambda a: Steps.scores.func(without(a, "slopes"))},
    "rotary": {"turned": lambda a, T, back=False: T},
    "dL": {"D_less_dL": lambda a: a.D},
    "dropout": {"dropped": lambda a, T, kept: T},
}
"""The steps of who does nothing with an option."""


def window_of(left, right):
    """The window made wider on either side by so much; None: without an end."""

    def allows(a):
        if a.window is None:
            return Steps.window_allows.func(a)
        ends = (
            a.n_q + a.n_k if more is None else end + more for end, more in zip(a.window, (left, right), strict=True)
        )
        before, after = ends
        return (-before <= a.later) & (a.later <= after)

    return {"window_allows": allows}


def capped_late(a):
    """The cap, put on all that makes the scores: −∞ becomes −softcap."""
    S = np.where(a.allowed, a.scores, -np.inf)
    return S if a.softcap is None else a.softcap * np.tanh(S / a.softcap)


def back_through_late_cap(a):
    return a.dS if a.softcap is None else a.dS * (1 - (a.S / a.softcap) ** 2)


def late_cap(a):
    """The cap, put on products and bias."""
    uncapped = Steps.scores.func(without(a, "softcap"))
    return uncapped if a.softcap is None else a.softcap * np.tanh(uncapped / a.softcap)


def in_pairs(a, T, back=False):
    """Rotary with neighboring columns as pairs."""
    if a.cos is None:
        return T
    x, y, sin = T[..., ::2], T[..., 1::2], -a.sin if back else a.sin
    return np.stack([x * a.cos - y * sin, x * sin + y * a.cos], axis=-1).reshape(T.shape)


def weight_of(factor):
    """Dropout where what is left is multiplied with this in place of 1/(1 − p)."""
    return lambda a, T, kept: T if kept is None else factor(a) * kept * T


def backward_with(dropped):
    """The backward drops so."""
    return {
        "dV_heads": lambda a: mT(dropped(a, a.P_backward, a.kept_backward)) @ a.dO_read,
        "dP": lambda a: dropped(a, a.dO_read @ mT(a.v), a.kept_backward),
    }


def L_of_keys(a):
    """L without the sink."""
    return L_of(without(a, "sink"))


def dsink_of_rows(a):
    """The sink's gradient before it is summed, (b, h, n_q)."""
    return (-softmax(a.column)[..., -1:] * a.D_less_dL).reshape(-1, a.h, a.n_q)


def slopes_added(a):
    """The scores with slopes · distance added."""
    scores = Steps.scores.func(a)
    return scores if a.slopes is None else scores + 2 * a.of_heads(a.slopes) * np.abs(a.later)


def of_key_head(a, T):
    """T, numbers or a table of heads, where query head i reads what is that of its key head."""
    if T is None or a.h == a.h_kv or T.ndim < 1:
        return T
    axis = -3 if T.ndim > 2 else 0
    return T if T.shape[axis] != a.h else np.take(T, np.arange(a.h) // (a.h // a.h_kv), axis=axis)


def by_key_head(name):
    """The steps of who reads an option by the number of the key head."""

    def reads(a, step):
        b = without(a)
        vars(b)[name] = of_key_head(a, getattr(a, name))
        return getattr(Steps, step).func(b)

    return {step: lambda a, step=step: reads(a, step) for step in (("P",) if name == "sink" else ("scores",))}


FAULTS = (
    *chain.from_iterable(
        throughout(f"{name}-by-key-head", f"where heads are shared, {name} is read by the number of the key head",
                   by_key_head(name)) for name in ("bias", "slopes", "sink")),
    *chain.from_iterable(
        chain(in_backward(f"{name}-forgotten", f"{name} is forgotten", IGNORING[name]),
              in_forward(f"{name}-forgotten", f"{name} is forgotten", IGNORING[name]))
        for name in ("window", "softcap", "sink", "slopes")),
    *throughout("window-one-sided", "the window has one end only", window_of(0, None), window_of(None, 0)),
    *throughout("window-off-by-one", "the window is one key too wide or too narrow",
                *(window_of(*ends) for ends in ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1)))),
    *faults("softcap-derivative-missing", "the way back through the soft cap is missing",
            {"dproducts": lambda a: a.dS}),
    *faults("softcap-derivative-of-scores", "the cap's derivative is taken at the capped scores",
            {"dproducts": lambda a: a.dS if a.softcap is None else a.dS * (1 - np.tanh(a.capped / a.softcap) ** 2)}),
    *faults("softcap-after-mask", "the cap comes after the mask: −∞ becomes a finite score",
            {"capped": lambda a: a.products, "S": capped_late, "dproducts": back_through_late_cap}),
    *faults("softcap-factor-after-mask", "the cap's derivative is taken at the masked scores: 0 · ∞ is NaN",
            {"dproducts": lambda a: a.dS if a.softcap is None else a.dS * (1 - (a.S / a.softcap) ** 2)},
            {"dproducts": lambda a: a.dS if a.softcap is None else a.dS - a.dS * (a.S / a.softcap) ** 2}),
    *throughout("softcap-after-bias", "the cap comes after the bias",
                {"capped": lambda a: a.products, "scores": late_cap,
                 "dproducts": lambda a: a.dS if a.softcap is None else a.dS * (1 - (a.scores / a.softcap) ** 2)}),
    *faults("sink-not-in-l", "the backward makes its weights from an L without the sink",
            *({**way, "dsink": dsink} for way in weights(lambda a: softmax(a.S))
              for dsink in (Steps.dsink.func, lambda a: dsink_of(a, -a.D_less_dL * np.exp(L_of(a) - L_of_keys(a))))),
              ),
    *faults("dsink-zero", "the sink's gradient is dropped", {"dsink": lambda a: 0 * a.sink}),
    *faults("dsink-without-weight", "the sink's gradient is −Σ D, without the weight of the sink",
            {"dsink": lambda a: dsink_of(a, -a.D_less_dL, 1.0)}),
    *faults("dsink-of-one-batch", "the sink's gradient is that of one batch entry, not the sum over the batch",
            *({"dsink": lambda a, b=b: dsink_of_rows(a)[b].sum(axis=-1)} for b in (-1, 0))),
    *faults("dsink-of-one-row", "the sink's gradient is that of one row, not the sum over the rows",
            *({"dsink": lambda a, i=i: dsink_of_rows(a)[..., i].sum(axis=0)} for i in (-1, 0))),
    *faults("dsink-not-summed", "the sink's gradient is not summed over the batch",
            {"dsink": lambda a: dsink_of_rows(a).sum(axis=-1)}),
    *faults("dsink-sign", "the sink's gradient has the other sign", {"dsink": lambda a: dsink_of(a, a.D_less_dL)}),
    *throughout("slopes-sign", "the slopes are added, not subtracted",
                {"scores": slopes_added}),
    *faults("rotary-not-undone", "dQ and dK are not turned back",
            {"dQ": lambda a: a.dQ_scale * a.dQ_unscaled, "dK": lambda a: a.gather(a.dK_scale * a.dK_unscaled)}),
    *faults("rotary-turned-on", "dQ and dK are turned further, not back",
            {"dQ": lambda a: a.turned(a.dQ_scale * a.dQ_unscaled),
             "dK": lambda a: a.turned(a.gather(a.dK_scale * a.dK_unscaled))}),
    *faults("rotary-neighbors", "rotary pairs neighboring columns, not halves", {"turned": in_pairs}),
    *faults("dl-sign", "dL, the gradient of the log-sum-exp L, is added to D, not subtracted",
            {"D_less_dL": lambda a: a.D if a.dL is None else a.D + a.dL[..., None]}),
    *faults("dropout-drawn-anew", "the backward draws its own dropout", {"kept_backward": lambda a: a.kept_of_dV}),
    *faults("dropout-forgotten-in-backward", "the backward knows nothing of dropout",
            {"kept_backward": lambda a: None}),
    *faults("dropout-factor-missing", "what dropout leaves is not divided by 1 − p",
            {"dropped": weight_of(lambda a: np.nan if a.kept is not None and np.all(a.kept) else 1.0)}),
    *faults("dropout-factor-missing-in-backward", "the backward does not divide by 1 − p what dropout leaves",
            backward_with(weight_of(lambda a: 1.0))),
    *faults("dropout-factor-wrong-in-backward", "the backward divides by p, not by 1 − p, what dropout leaves",
            backward_with(weight_of(lambda a: 1 / a.dropout))),
    *faults("dropout-not-in-dp", "dP is not dropped as the weights were", {"dP": lambda a: a.dO_read @ mT(a.v)},
            {"dP": lambda a: a.dO_read @ mT(a.v), "D": lambda a: rowsum(a.dO * a.O)}),
    *faults("dropout-not-in-dv", "dV is made from the weights before dropout",
            {"dV_heads": lambda a: mT(a.P_backward) @ a.dO_read}),
    *faults("dropout-in-ds", "before the bracket of dS stand the dropped weights, not P",
            {"dS": lambda a: a.dropped(a.P_backward, a.kept_backward) * (a.dP - a.D_less_dL)}),
    *faults("d-undropped", "D is made from a dP that was not dropped",
            {"D": lambda a: rowsum(a.P_backward * (a.dO_read @ mT(a.v)))}),
    *faults("dbias-zero", "no gradient of the bias comes", {"dbias": lambda a: np.zeros_like(a.bias)}),
    *faults("dbias-mean", "the mean, not the sum, over what the bias was repeated along",
            {"dbias": lambda a: Steps.dbias.func(a) * (a.bias.size / a.dS.size)}),
    *faults("dbias-scaled", "the scale is in the gradient of the bias, where it has no place",
            {"dbias": lambda a: a.scale * Steps.dbias.func(a)}),
    *faults("dbias-not-summed", "the gradient of the bias is not summed over what the bias was repeated along",
            {"dbias": lambda a: a.dS}),
)  # fmt: skip
"""Every way of every fault of an option."""
