"""What the cases have in common in which a result is wrong. Chapter: :doc:`/chapters/08_checking`."""

from itertools import product

from attnbook.diagnose._match import right_in


def _size(run, i, axis):
    """A size of Q (0), K (1) or V (2); 1 for an axis that is not there."""
    T = run.came.inputs[i]
    return T.shape[axis] if T.ndim >= -axis else 1


FEATURES = {
    "with a batch above 1": lambda run: _size(run, 0, -4) > 1,
    "with several heads": lambda run: _size(run, 0, -3) > 1,
    "where query heads share a key head": lambda run: _size(run, 0, -3) != _size(run, 1, -3),
    "where an input lies otherwise in memory": lambda run: bool(run.case.memory),
    "where dO lies otherwise in memory": lambda run: "dO" in run.case.memory,
    "where Q, K or V lies otherwise in memory": lambda run: bool({"Q", "K", "V"} & run.case.memory.keys()),
    "where n_q and n_k differ": lambda run: _size(run, 0, -2) != _size(run, 1, -2),
    "with more queries than keys": lambda run: _size(run, 0, -2) > _size(run, 1, -2),
    "with more keys than queries": lambda run: _size(run, 0, -2) < _size(run, 1, -2),
    "where d_k and d_v differ": lambda run: _size(run, 0, -1) != _size(run, 2, -1),
    "with a length of 0": lambda run: 0 in (_size(run, 0, -2), _size(run, 1, -2)),
    "in 16 bits": lambda run: "16" in run.case.dtype,
} | {
    f"with {name}": lambda run, name=name: not (run.came.options.get(name) is None or run.came.options[name] is False)
    for name in ("mask", "bias", "causal", "scale", "window", "softcap", "sink", "slopes", "dropout", "dL")
} | {
    f"with {things} {size}{tail}": lambda run, i=i, axis=axis, size=size, tail=tail: (
        _size(run, i, axis) > size and not (tail and _size(run, i, axis) % size == 0)
    )
    for (i, axis, things), size, tail in product(
        ((0, -2, "more queries than"), (1, -2, "more keys than"), (0, -1, "a width d above")),
        (16, 32, 64, 128),
        ("", ", no multiple of it"),
    )
}  # fmt: skip
"""What cases may have in common, in words, and whether one has it."""


def in_common(name, runs, features=FEATURES):
    """What all cases have, and no other has, in which this result is wrong; or what all have, and few others; or ""."""
    runs = [run for run in runs if name in run.came.values]
    wrong = {run for run in runs if not right_in(run, name)}
    if len(wrong) < 2 or len(wrong) == len(runs):
        return ""
    having = {words: {run for run in runs if has(run)} for words, has in features.items()}
    having = {words: which for words, which in having.items() if wrong <= which and len(which) < len(runs)}
    if not having:
        return ""
    words = min(having, key=lambda each: len(having[each]))
    if having[words] == wrong:
        return f"wrong in all cases {words}, and in no other that was asked"
    return f"wrong only {words}" if 2 * len(having[words]) <= len(runs) else ""
