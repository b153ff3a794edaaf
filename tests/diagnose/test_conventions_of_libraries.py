"""diagnose on functions of the libraries themselves: right ones are ok. What is not installed is skipped."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnbook as ab


def right(fn, least=18, **options):
    report = ab.diagnose(fn, **options)
    assert report.ok, str(report)
    assert len(report.compared) >= least
    return report


def wrong(fn, **options):
    report = ab.diagnose(fn, **options)
    assert not report.ok
    return {f.about for f in report.findings}


def test_a_backend_that_runs_nothing_here():
    """It takes empty sequences, and nothing else, which is told; and what comes after it is asked as before."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        report = ab.diagnose(scaled_dot_product_attention)
    assert [(f.about, f.kind) for f in report.findings] == [("the call", "raised")]
    assert "No viable backend" in report.findings[0].text
    right(scaled_dot_product_attention, 40)


EAGER = {
    "llama": ["dropout"],
    "gpt2": ["plain", "dropout"],  # whose code runs on three axes too, and gives O of another shape
    "gemma2": ["softcap", "softcap and mask"],
    "t5": ["bias"],
    "gpt_oss": ["sink", "grouped heads"],  # whose module has the sinks
    "inkling2": ["no keys"],  # whose sinks are of each query
    "modernbert_decoder": ["mask", "causal, more keys"],  # which always adds a mask
}


def eager(name):
    pytest.importorskip("transformers")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}").eager_attention_forward


@pytest.mark.parametrize("name", EAGER)
def test_eager_attentions_of_hugging_face(name):
    report = right(eager(name), 45)
    assert set(EAGER[name]) <= set(report.compared)


def test_an_eager_attention_that_ignores_the_mask():
    ignores = eager("vjepa2")
    report = ab.diagnose(ignores)
    assert {case for f in report.findings if f.about == "O" for case in f.cases} >= {"mask", "bias"}
    assert "plain" not in {case for f in report.findings for case in f.cases}


def test_a_wrong_eager_attention():
    theirs = eager("llama")

    def wrongly(module, query, key, value, attention_mask, scaling, **options):
        return theirs(module, query, key.detach(), value, attention_mask, scaling, **options)

    assert wrong(wrongly) == {"dK"}


def test_flex_attention_has_no_backward_on_the_cpu():
    from torch.nn.attention.flex_attention import flex_attention

    report = ab.diagnose(flex_attention)
    assert "FlexAttention does not support backward on CPU" in " ".join(report.notes)
    assert not report.compared


def flexible(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False):
    """What flex_attention means."""
    assert query.ndim == 4
    if enable_gqa:
        key, value = (T.repeat_interleave(query.shape[1] // T.shape[1], 1) for T in (key, value))
    S = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        S = score_mod(S, *torch.meshgrid(*map(torch.arange, S.shape), indexing="ij"))
    alive = ~torch.isneginf(S).all(-1, keepdim=True)
    return S.masked_fill(~alive, 0.0).softmax(-1) * alive @ value


def test_the_signature_of_flex_attention():
    report = right(flexible, 40)
    assert {"mask", "window", "softcap", "slopes", "causal, more keys"} <= set(report.compared)


def by_jax(Q, K, V):
    import jax
    import jax.numpy as jnp

    return jax.nn.softmax(Q @ jnp.swapaxes(K, -1, -2) * Q.shape[-1] ** -0.5, axis=-1) @ V


def by_hand_in(jax, factor=1, looks=False):
    def attention_and_gradients(Q, K, V, dO):
        assert not looks or float(abs(Q).sum()) >= 0
        O, back = jax.vjp(by_jax, Q, K, V)
        dQ, dK, dV = back(dO)
        return O, factor * dQ, dK, dV

    return attention_and_gradients


def a_wrong_backward_in(jax):
    mine = jax.custom_vjp(by_jax)
    mine.defvjp(
        lambda Q, K, V: (by_jax(Q, K, V), (Q, K, V)),
        lambda res, dO: (2 * jax.vjp(by_jax, *res)[1](dO)[0], *jax.vjp(by_jax, *res)[1](dO)[1:]),
    )
    return mine


def hidden(jax):
    elsewhere = SimpleNamespace(attention=by_jax)
    return lambda Q, K, V: elsewhere.attention(Q, K, V)


OF_JAX = {
    "its own": (lambda jax: jax.nn.dot_product_attention, set()),
    "gradients that are returned": (by_hand_in, set()),
    "gradients that are returned wrong": (lambda jax: by_hand_in(jax, 2), {"dQ"}),
    "where Python looks at values": (lambda jax: by_hand_in(jax, looks=True), set()),
    "that does not show": (hidden, set()),
    "a wrong backward by hand": (a_wrong_backward_in, {"dQ"}),
}
SOON = "gradients that are returned", "a wrong backward by hand"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.thorough] * (n not in SOON)) for n in OF_JAX])
def test_jax(name):
    jax = pytest.importorskip("jax")
    make, off = OF_JAX[name]
    if off:
        assert wrong(make(jax)) == off
    else:
        report = right(make(jax))
        assert name != "its own" or "b, n, h, d as axes" in report.notes[0]
    assert not jax.config.jax_enable_x64


@pytest.mark.thorough
def test_a_pair_of_jax():
    jax = pytest.importorskip("jax")
    right((lambda Q, K, V: jax.vjp(by_jax, Q, K, V), lambda dO, back: back(dO)), library="jax")


@pytest.mark.thorough
def test_pallas_where_it_is_interpreted():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(q, k, v, o):
        S = q[...] @ k[...].T * q.shape[-1] ** -0.5
        o[...] = jax.nn.softmax(S, axis=-1) @ v[...]

    def forward(Q, K, V):
        shape = jax.ShapeDtypeStruct((Q.shape[0], V.shape[1]), Q.dtype)
        return pl.pallas_call(kernel, out_shape=shape, interpret=True)(Q, K, V)

    def backward(res, dO):
        Q, K, V = res
        P = jax.nn.softmax(Q @ K.T * Q.shape[-1] ** -0.5, axis=-1)
        dS = P * (dO @ V.T - jnp.sum(P * (dO @ V.T), axis=-1, keepdims=True)) * Q.shape[-1] ** -0.5
        return dS @ K, dS.T @ Q, P.T @ dO

    mine = jax.custom_vjp(forward)
    mine.defvjp(lambda Q, K, V: (forward(Q, K, V), (Q, K, V)), backward)

    def one_head(Q, K, V):
        assert Q.ndim == 2
        return mine(Q, K, V)

    report = right(one_head, 15)
    assert report.notes[0] == "it takes 2 axes only"


def test_mlx():
    mx = pytest.importorskip("mlx.core")
    right(mx.fast.scaled_dot_product_attention, 45)

    def without_dk(Q, K, V):
        return mx.softmax(Q @ mx.stop_gradient(K).swapaxes(-1, -2) * Q.shape[-1] ** -0.5, -1) @ V

    assert wrong(without_dk) == {"dK"}


def test_tensorflow():
    tf = pytest.importorskip("tensorflow")

    def attention(Q, K, V):
        S = tf.matmul(Q, K, transpose_b=True) * tf.cast(tf.shape(Q)[-1], Q.dtype) ** -0.5
        return tf.matmul(tf.nn.softmax(S, axis=-1), V)

    right(attention)
    assert wrong(lambda Q, K, V: attention(Q, tf.stop_gradient(K), V)) == {"dK"}


def test_keras():
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    layer = tf.keras.layers.Attention(dtype="float64")
    right(lambda Q, K, V: layer([Q * tf.cast(tf.shape(Q)[-1], Q.dtype) ** -0.5, V, K]))
    right(keras.ops.dot_product_attention, 30, library="tensorflow")


def test_tensorflow_that_does_not_show():
    """NumPy's arrays are taken, dO as the bias, and a tensor comes."""
    pytest.importorskip("tensorflow")
    elsewhere = SimpleNamespace(keras=pytest.importorskip("keras"))

    def attention(query, key, value, bias=None, mask=None, is_causal=False):
        attend = elsewhere.keras.ops.dot_product_attention
        return attend(query, key, value, bias=bias, mask=mask, is_causal=is_causal)

    right(attention, 20)


def attention_of_onnx(*, wide=False, masks=None, **attributes):
    """A model of one node, with a mask of that kind; without one if None."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    kind = TensorProto.DOUBLE if wide else TensorProto.FLOAT
    kinds = dict.fromkeys(("Q", "K", "V"), kind) | ({} if masks is None else {"mask": getattr(TensorProto, masks)})
    node = helper.make_node("Attention", list(kinds), ["O"], **attributes)
    inputs = [helper.make_tensor_value_info(name, kind, [None] * 4) for name, kind in kinds.items()]
    graph = helper.make_graph([node], "attention", inputs, [helper.make_tensor_value_info("O", kind, [None] * 4)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def session(model):
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.thorough
@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("masks", [None, "BOOL", "FLOAT"])
def test_an_onnx_node(wide, masks):
    if wide and masks == "FLOAT":
        masks = "DOUBLE"
    report = right(attention_of_onnx(wide=wide, masks=masks), 20)
    assert ("mask" in report.compared) == (masks is not None)
    assert ("bias" in report.compared) == (masks in ("FLOAT", "DOUBLE"))


def test_onnx_runtime(capfd):
    report = right(session(attention_of_onnx(masks="BOOL")), 20)
    assert {"mask", "mask of padding", "mask with a dead row", "causal, more keys"} <= set(report.compared)
    assert any(note.startswith("gradients by differences") for note in report.notes)
    assert report.not_run["bias"] == "it takes a mask of bools only"
    assert capfd.readouterr().err == ""  # what it refuses is told in the report


@pytest.mark.thorough
def test_onnx_runtime_with_another_mask_or_scale():
    report = right(session(attention_of_onnx(masks="FLOAT")), 20)
    assert {"mask", "mask of padding", "bias", "bias, broadcast"} <= set(report.compared)
    report = ab.diagnose(session(attention_of_onnx(scale=1.0)))
    assert report.mistakes == ("no-scale",)


@pytest.mark.parametrize("flash", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_x_transformers(flash):
    attend = pytest.importorskip("x_transformers.attend")
    module = attend.Attend(flash=flash)

    def attention(Q, K, V, mask=None, bias=None):
        assert Q.shape[-3] == K.shape[-3]  # it shares heads in another order
        return module(Q, K, V, mask=mask, attn_bias=bias)[0]

    right(attention, 35, dtype="float32")


@pytest.mark.thorough
def test_x_transformers_shares_heads_in_another_order():
    attend = pytest.importorskip("x_transformers.attend")
    module = attend.Attend()
    report = ab.diagnose(lambda Q, K, V: module(Q, K, V)[0], dtype="float32")
    assert report.mistakes == ("group-tiled",)


def test_numpy_and_torch_are_told_apart():
    report = ab.diagnose(lambda Q, K, V: torch.from_numpy(np.ones(3)))
    assert not report.ok
