"""What each library calls the options of attention. Chapter: :doc:`/chapters/in_the_wild`.

Ours are mask, bias, causal, scale, window, softcap, sink, slopes, dropout; a mask is True where a query may attend, a
window is (left, right), None for no bound, and causal is of the corner at the top left, or "bottom-right".
"""

import numpy as np

SAME = {
    "scale": ("scale", "softmax_scale", "sm_scale", "scaling"),
    "window": ("window", "window_size", "local_window_size"),
    "softcap": ("softcap", "logit_cap", "logits_soft_cap"),
    "sink": ("sink", "sinks", "s_aux", "learnable_sink"),
    "slopes": ("slopes", "alibi_slopes"),
    "dropout": ("dropout", "dropout_p", "p", "dropout_rate"),
    "cos": ("cos",),
    "sin": ("sin",),
}
"""An option that others have under another name, with the same meaning."""

MERGED = ("attn_mask", "attn_bias", "attention_mask")
"""The names under which a mask, a bias and a corner are one array, added to the scores; torch's may be of bools."""

OPTIONS = {
    "mask", "bias", "causal", "is_causal", "enable_gqa", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens",
    "max_seqlen_q", "max_seqlen_k", "max_seqlen", "score_mod", "block_mask", *MERGED,
    *(name for names in SAME.values() for name in names),
}  # fmt: skip
"""All names of options that are known here."""

OURS = frozenset({"mask", "bias", "causal", *SAME})

VOCABULARY = {
    "torch": frozenset({"attn_mask", "is_causal", "scale", "enable_gqa", "dropout_p"}),
    "jax": frozenset({"bias", "mask", "scale", "is_causal", "local_window_size"}),
    "mlx": frozenset({"scale", "mask", "sinks"}),
}
"""The names to try, after ours, with a function whose signature cannot be read."""


def vocabularies(names, library):
    """The sets of names to try, one after another."""
    if names is not None:
        return (names,)
    return tuple(dict.fromkeys((OURS, VOCABULARY.get(library, OURS))))


def bottom_right(names, library):
    """Whether causal may mean the corner at the bottom right, as it does to flash-attn and to MLX."""
    return bool(names) and ({"causal", "softmax_scale"} <= names or (library == "mlx" and "mask" in names))


def undefined_rows(names):
    """Whether a row that allows nothing has no meaning: to JAX's function, and where a mask is added."""
    return {"is_causal", "mask", "bias"} <= names or bool({"attn_bias", "attention_mask"} & names)


class NoWordsError(Exception):
    """Why an option cannot be said to a function."""


def say(names, options, about):
    """The keywords by which a function that knows ``names`` is asked for ``options``, ours, as arrays of its library.

    ``about`` has what else matters: ``n_q``, ``n_k``, ``d_k``, ``grouped``, ``needed`` (names without a default),
    ``on`` (those that are True unless said), ``library``, ``corner``, ``allowed`` (mask and corner together, in NumPy)
    and ``added(allowed, bias)``. NoWordsError where it cannot be said.
    """
    options = dict(options)
    if about.library == "mlx" and "mask" in names and "bias" not in names:
        return _to_mlx(names, options, about)
    said = {}
    for ours, theirs in SAME.items():
        name = next((name for name in theirs if name in names), None)
        if ours in options:
            said[_known(name, ours)] = _value(name, options.pop(ours))
        elif name in about.needed:
            said[name] = {"scale": about.d_k**-0.5, "dropout": 0.0}.get(ours)
    mask, bias, causal = (options.pop(name, None) for name in ("mask", "bias", "causal"))
    _known(not options, ", ".join(options))
    merged = next((name for name in MERGED if name in names), None)
    apart = {"mask", "bias"} <= names or merged is None
    if causal not in (None, False, True, "bottom-right") and "causal" not in names:
        raise NoWordsError(f"it does not take causal={causal!r}")
    if about.allowed is not None and undefined_rows(names) and not about.allowed.any(axis=-1).all():
        raise NoWordsError("a row that allows nothing has no meaning to it")
    if apart:
        said |= {name: T for name, T in (("mask", mask), ("bias", bias)) if T is not None}
        said |= _corner(names, causal, about)
    elif causal and (mask is not None or bias is not None or not _says(names, causal, about)):
        said[merged] = about.added(_whole(merged, about), bias)
    else:
        said |= _corner(names, causal, about)
        if bias is not None or (mask is not None and merged != "attn_mask"):
            said[merged] = about.added(
                _whole(merged, about) if mask is not None or merged != "attn_mask" else None, bias
            )
        elif mask is not None:
            said[merged] = mask
    for name in ("mask", "bias", *MERGED):
        if name in about.needed:
            said.setdefault(name, None)
    for name in about.on & {"causal", "is_causal"}:
        said.setdefault(name, False)
    if about.grouped and "enable_gqa" in names:
        said["enable_gqa"] = True
    for name in said:
        _known(name in names, name)
    return said


def _whole(merged, about):
    """What is allowed, with all axes for xformers, which does not broadcast."""
    allowed = np.True_ if about.allowed is None else about.allowed
    return allowed if merged == "attn_mask" else np.broadcast_to(allowed, about.shape)


def _says(names, causal, about):
    try:
        return bool(_corner(names, causal, about))
    except NoWordsError:
        return False


def _corner(names, causal, about):
    """The corner in its words."""
    name = next((name for name in ("causal", "is_causal") if name in names), None)
    if not causal:
        return {name: False} if name in about.needed else {}
    _known(name, "causal")
    if about.corner == "bottom-right":
        if causal != "bottom-right" and about.n_q != about.n_k:
            raise NoWordsError("its causal is of the corner at the bottom right")
        return {name: True}
    if causal == "bottom-right" and (name == "is_causal" or "sm_scale" in names):
        raise NoWordsError("it does not take causal='bottom-right'")
    return {name: causal}


def _to_mlx(names, options, about):
    """MLX's ``mask`` is a text, an array of booleans, or one that is added; its scale has no default."""
    said = {"scale": options.pop("scale", about.d_k**-0.5)}
    if "sink" in options:
        said["sinks"] = options.pop("sink")
    mask, bias, causal = (options.pop(name, None) for name in ("mask", "bias", "causal"))
    _known(not options, ", ".join(options))
    if about.allowed is not None and not about.allowed.any(axis=-1).all():
        raise NoWordsError("a row that allows nothing has no meaning to it")
    if bias is not None:
        said["mask"] = about.added(about.allowed, bias)
    elif mask is not None and not causal:
        said["mask"] = mask
    elif causal and mask is None and (causal == "bottom-right" or about.n_q == about.n_k):
        said["mask"] = "causal"
    elif causal:
        said["mask"] = about.added(about.allowed, None)
    return said


def _value(name, value):
    """The value as they write it: the bounds of flash-attn are −1 where there are none."""
    if name == "window_size":
        return tuple(-1 if bound is None else bound for bound in value)
    return value


def _known(name, ours):
    if not name:
        raise NoWordsError(f"it does not take {ours}")
    return name
