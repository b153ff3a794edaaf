"""An ONNX model: its output O, and gradients by differences of it. Chapter: :doc:`/chapters/in_the_wild`.

A model has no backward here. What the differences say is whether the forward is that of attention, in every direction.
"""

import numpy as np
import onnx

from attnbook.diagnose.learn.adapters import numpy as of_numpy
from attnbook.diagnose.learn.options import NoWordsError

STEPS = {"float64": 1e-3, "float32": 2.0**-4, "float16": 2.0**-2}
"""The step of a difference, of four values, whose errors are then of the order of the step's fourth power."""

MOST = 2000
"""How many entries may be moved."""

AS_PRECISE = {"float64": "float32", "float32": "float16", "float16": "bfloat16"}
"""The dtype whose rounding is as large as what such a difference misses."""


class Arrays(of_numpy.Arrays):
    """NumPy's arrays, for a model."""

    name = "onnx"
    takes_back = ("autograd",)

    def autograd(self, call, inputs, leaves, dO):
        """(O, the gradients by differences): every entry of every array is moved, four times."""
        wanted = [*inputs, *leaves]
        if sum(T.size for T in wanted) > MOST:
            raise NoWordsError("too many entries for differences")
        O = call(inputs, leaves)
        start, cut = dO(O).astype(np.float64), len(inputs)
        step = STEPS[str(O.dtype)]

        def slope(i, index):
            def at(by):
                Ts = [T.copy() if j == i else T for j, T in enumerate(wanted)]
                Ts[i][index] += by
                return np.vdot(start, call(Ts[:cut], Ts[cut:]).astype(np.float64))

            return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)

        grads = []
        for i, T in enumerate(wanted):
            grads.append(np.zeros(T.shape, T.dtype))
            for index in np.ndindex(T.shape):
                grads[i][index] = slope(i, index)
        return O, grads

    def dtype_of_gradient(self, dtype):
        """The dtype whose precision a gradient by differences has."""
        return AS_PRECISE[dtype]


def runner(model):
    """A function (Q, K, V, attn_mask=None) of NumPy arrays that runs the model, or a session made from it.

    Its first three inputs are Q, K and V, in this order, and the next one, if any, a mask or what is added to the
    scores: where none is asked for, it is given one that allows all.
    """
    if isinstance(model, onnx.ModelProto):
        from onnx.reference import ReferenceEvaluator

        model = ReferenceEvaluator(model)
    theirs = _inputs(model)
    names, quietly = [name for name, _, _ in theirs], _quietly(model)

    def run(Q, K, V, attn_mask=None):
        given = [Q, K, V]
        if len(theirs) > 3:
            given.append(_mask(attn_mask, *theirs[3][1:], Q, K))
        return np.asarray(model.run(None, dict(zip(names, given, strict=False)), *quietly)[0])

    def without(Q, K, V):
        return run(Q, K, V)

    return run if len(theirs) > 3 else without


def _quietly(model):
    """What tells ONNX Runtime not to print what it raises."""
    if not hasattr(model, "get_inputs"):
        return ()
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    return (options,)


def _inputs(model):
    """(name, whether it holds booleans, the number of its axes or 0) of each input of a model ready to run."""
    if hasattr(model, "get_inputs"):  # ONNX Runtime's
        return [(i.name, "bool" in i.type, len(i.shape or ())) for i in model.get_inputs()]
    found = []
    for name, kind in zip(model.input_names, model.input_types, strict=True):
        kind = kind.optional_type.elem_type if kind.HasField("optional_type") else kind
        table = kind.tensor_type
        found.append((name, table.elem_type == onnx.TensorProto.BOOL, len(table.shape.dim)))
    return found


def _mask(T, of_bools, axes, Q, K):
    """The mask as the model has it: of booleans, or 0 and −∞, and in full, as ONNX Runtime does not broadcast rows."""
    rows = (Q.shape[-2], K.shape[-2])
    T = np.ones(rows, dtype=bool) if T is None else np.broadcast_to(T, (*T.shape[:-2], *rows))
    if of_bools and T.dtype != bool:
        if not np.isin(T, (0.0, -np.inf)).all():
            raise NoWordsError("it takes a mask of bools only")
        T = T == 0
    elif not of_bools and T.dtype == bool:
        T = np.where(T, 0.0, -np.inf).astype(Q.dtype)
    return T.reshape((1,) * max(0, axes - T.ndim) + T.shape)
