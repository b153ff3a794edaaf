"""diagnose on functions of the libraries themselves: right ones are ok. What is not installed is skipped."""

import importlib

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


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **options):
    """As models of Hugging Face have it."""
    key, value = (T.repeat_interleave(module.num_key_value_groups, 1) for T in (key, value))
    S = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        S = S + attention_mask
    P = torch.nn.functional.dropout(S.softmax(-1), p=dropout, training=module.training)
    return (P @ value).transpose(1, 2).contiguous(), P


def test_the_signature_of_eager_attentions():
    assert {"dropout", "grouped heads", "mask"} <= set(right(eager_attention_forward, 45).compared)


EAGER = {
    "gemma2": ["softcap", "softcap and mask"],
    "gpt_oss": ["sink", "grouped heads"],  # whose module has the sinks
    "modernbert_decoder": ["mask", "causal, more keys"],  # which always adds a mask
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", EAGER)
def test_eager_attentions_of_hugging_face(name):
    pytest.importorskip("transformers")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    assert set(EAGER[name]) <= set(right(module.eager_attention_forward, 45).compared)


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


def test_jax():
    jax = pytest.importorskip("jax")

    def attention(Q, K, V):
        return jax.nn.softmax(Q @ jax.numpy.swapaxes(K, -1, -2) * Q.shape[-1] ** -0.5, axis=-1) @ V

    def by_hand(Q, K, V, dO):
        O, back = jax.vjp(attention, Q, K, V)
        return O, *back(dO)

    def backward(res, dO):
        dQ, dK, dV = jax.vjp(attention, *res)[1](dO)
        return 2 * dQ, dK, dV

    mine = jax.custom_vjp(attention)
    mine.defvjp(lambda *inputs: (attention(*inputs), inputs), backward)
    assert wrong(mine) == {"dQ"}
    right(by_hand)
    assert "b, n, h, d as axes" in right(jax.nn.dot_product_attention).notes[0]
    assert not jax.config.jax_enable_x64


def test_mlx():
    mx = pytest.importorskip("mlx.core")
    right(mx.fast.scaled_dot_product_attention, 45)


def test_tensorflow():
    tf = pytest.importorskip("tensorflow")

    def attention(Q, K, V):
        S = tf.matmul(Q, K, transpose_b=True) * tf.cast(tf.shape(Q)[-1], Q.dtype) ** -0.5
        return tf.matmul(tf.nn.softmax(S, axis=-1), V)

    right(attention)
    assert wrong(lambda Q, K, V: attention(Q, tf.stop_gradient(K), V)) == {"dK"}


def attention_of_onnx():
    """A model of one node, with a mask of bools."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    kinds = dict.fromkeys(("Q", "K", "V"), TensorProto.FLOAT) | {"mask": TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(name, kind, [None] * 4) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info("O", TensorProto.FLOAT, [None] * 4)]
    graph = helper.make_graph([helper.make_node("Attention", list(kinds), ["O"])], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def test_onnx(capfd):
    """The node by onnx's own reference, and by the runtime."""
    model = attention_of_onnx()
    assert "mask" in right(model, 20).compared
    runtime = pytest.importorskip("onnxruntime")
    report = right(runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]), 20)
    assert {"mask", "mask of padding", "mask with a dead row", "causal, more keys"} <= set(report.compared)
    assert any(note.startswith("gradients by differences") for note in report.notes)
    assert report.not_run["bias"] == "it takes a mask of bools only"
    assert capfd.readouterr().err == ""  # what it refuses is told in the report
