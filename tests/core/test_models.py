"""The attention of released models, as Hugging Face's own modules have it: same output, same gradient of every weight.

Tiny random modules, made from configurations that are written here; nothing is loaded from anywhere.
"""

import importlib
import importlib.util
import math
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from compare import draw

import attnbook as ab
from attnbook import checks
from attnbook.layers import LatentParams, latent_attention, latent_attention_vjp
from attnbook.ops import Sink, Softcap, Window
from attnbook.rotary import Linear, Llama3, YaRN

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed: no model to compare with", allow_module_level=True)

BATCH, N, D, H, H_KV, WIDTH, WINDOW = 2, 7, 18, 6, 2, 8, 3
AT = np.array([[0, 1, 2, 3, 4, 5, 6], [40, 41, 42, 50, 51, 52, 90]])
"""Positions: of a text from its start, and of one with gaps."""

SIZES = {
    "hidden_size": D, "num_attention_heads": H, "num_key_value_heads": H_KV, "head_dim": WIDTH, "num_hidden_layers": 2,
    "vocab_size": 11, "intermediate_size": 13, "max_position_embeddings": 256,
}  # fmt: skip


def rope(kind="default", **rest):
    return {"rope_theta": 100.0, "rope_type": kind, **rest}


@dataclass(frozen=True)
class Model:
    """A model's module, its configuration, and what our layer is told to do the same.

    ``layer`` is the kind of layer of a model that has several; ``one_more`` is added to its gains.
    """

    module: str
    prefix: str
    config: dict
    rotary: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    layer: str | None = None
    one_more: float = 0.0
    config_name: str = "Config"

    def made(self):
        """The module in float64, and its cosines and sines at the positions."""
        package = f"transformers.models.{self.module}"
        modeling = importlib.import_module(f"{package}.modeling_{self.module}")
        configs = importlib.import_module(f"{package}.configuration_{self.module}")
        types = {} if self.layer is None else {"layer_types": 2 * [self.layer]}
        config = getattr(configs, self.prefix + self.config_name)(**(SIZES | types | self.config))
        config._attn_implementation = "eager"
        attention = getattr(modeling, self.prefix + "Attention")(config, layer_idx=0)
        rng = torch.Generator().manual_seed(0)
        for W in attention.parameters():
            W.data = torch.randn(W.shape, generator=rng) / W.shape[-1] ** 0.5
        turns = getattr(modeling, self.prefix + "RotaryEmbedding")(config)
        by_layer = {"layer_type": self.layer} if self.layer in self.config["rope_parameters"] else {}
        return attention, turns(torch.zeros(()), torch.tensor(AT), **by_layer)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 16.0, "beta_fast": 4.0, "beta_slow": 1.0, "original_max_position_embeddings": 64}
MODELS = {
    "Llama": Model("llama", "Llama", {"rope_parameters": rope("llama3", **LLAMA3)}, {"scaling": Llama3(8.0, 64)}),
    "Gemma-2": Model(
        "gemma2", "Gemma2",
        {"rope_parameters": rope(), "query_pre_attn_scalar": 13, "attn_logit_softcapping": 2.0,
         "sliding_window": WINDOW},
        options={"scale": 13**-0.5, "ops": [Softcap(2.0), Window(WINDOW - 1, 0)]}, layer="sliding_attention",
    ),
    "Gemma-3, all tokens": Model(
        "gemma3", "Gemma3",
        {"query_pre_attn_scalar": 13,
         "rope_parameters": {"full_attention": rope("linear", factor=8.0), "sliding_attention": rope()}},
        {"scaling": Linear(8.0)}, {"scale": 13**-0.5}, "full_attention", 1.0, "TextConfig",
    ),
    "GPT-OSS": Model(
        "gpt_oss", "GptOss", {"rope_parameters": rope("yarn", truncate=False, **YARN), "attention_bias": True},
        {"scaling": YaRN(16.0, 64, 4.0, whole=False)}, layer="full_attention",
    ),
    "Qwen3-Next": Model(
        "qwen3_next", "Qwen3Next",
        {"rope_parameters": rope(partial_rotary_factor=0.5), "rms_norm_eps": 0.01}, {"dims": 4},
        layer="full_attention", one_more=1.0,
    ),
}  # fmt: skip


@pytest.fixture
def in_float64(monkeypatch):
    """Makes torch take the float32, which these modules ask for in norms, softmax and angles, for float64."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in {model.module for model in MODELS.values()} | {"deepseek_v3"}:
            importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        torch.set_default_dtype(torch.float64)
        for name in ("float32", "float"):
            monkeypatch.setattr(torch, name, torch.float64)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield
    torch.set_default_dtype(torch.float32)


def of_module(attention, turns, X, dY, window=None):
    """Output, dX, and a gradient for each weight, by name, from the module and autograd."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    allowed = (j <= i) & (j > i - (window or N))
    mask = torch.zeros(N, N).masked_fill(~allowed, -torch.inf).expand(BATCH, 1, N, N)
    X = torch.tensor(X, requires_grad=True)
    Y, _ = attention(X, position_embeddings=turns, attention_mask=mask)
    Y.backward(torch.tensor(dY))
    assert Y.dtype == torch.float64
    return Y.detach().numpy(), X.grad.numpy(), {name: W.grad.numpy() for name, W in attention.named_parameters()}


def weights(attention):
    return {name: W.detach().numpy() for name, W in attention.named_parameters()}


def gradients_by_name(g, names):
    """Our gradients as the module lays its weights out."""
    of = {}
    for letter in "qkvo":
        of[f"{letter}_proj.weight"] = getattr(g.dparams, f"W_{letter.upper()}").T
        of[f"{letter}_proj.bias"] = getattr(g.dparams, f"b_{letter.upper()}")
    if g.dgate is not None:  # a head of q_proj: its queries, then its gate
        both = np.stack([T.reshape(H, WIDTH, D) for T in (of["q_proj.weight"], g.dgate.W.T)], axis=1)
        of["q_proj.weight"] = both.reshape(2 * H * WIDTH, D)
    if g.dqk_norm is not None:
        of |= {"q_norm.weight": g.dqk_norm.g_Q, "k_norm.weight": g.dqk_norm.g_K}
    if "sinks" in names:
        of["sinks"] = next(dop for dop in g.dops if dop is not None)
    return {name: of[name] for name in names}


def ours(model, W, X, dY):
    """The same from our layer, with the module's weights."""
    W_Q, gate = W["q_proj.weight"].T, None
    if W_Q.shape[1] == 2 * H * WIDTH:
        W_Q, W_G = (T.reshape(D, H * WIDTH) for T in np.split(W_Q.reshape(D, H, 2 * WIDTH), 2, axis=-1))
        gate = ab.Gate(W_G)
    biases = (W.get(f"{letter}_proj.bias") for letter in "qkvo")
    p = ab.MultiHeadParams(W_Q, *(W[f"{letter}_proj.weight"].T for letter in "kvo"), *biases)
    norm = None
    if "q_norm.weight" in W:
        gains = (model.one_more + W[f"{letter}_norm.weight"] for letter in "qk")
        norm = ab.QKNorm(*gains, eps=model.config.get("rms_norm_eps", 1e-6))
    options = {"ops": [], **model.options}
    if "sinks" in W:
        options["ops"] = [*options["ops"], Sink(W["sinks"])]
    rotary = ab.Rotary(AT, base=100.0, layout="half", **model.rotary)
    heads = {"num_heads": H, "num_kv_heads": H_KV, "causal": True}
    Y, res = ab.multi_head_attention(X, p, qk_norm=norm, rotary=rotary, gate=gate, **heads, **options)
    g = ab.multi_head_attention_vjp(dY, res)
    return Y, g.dX, gradients_by_name(g, W)


def same(ours, theirs, record):
    """Output and every gradient agree; the worst error is recorded."""
    (Y, dX, dW), (Y2, dX2, dW2) = ours, theirs
    assert dW.keys() == dW2.keys()
    pairs = {"Y": (Y, Y2), "dX": (dX, dX2), **{name: (dW[name], dW2[name]) for name in dW}}
    worst = max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs.values() if np.any(b))
    record("worst relative error", worst)
    for name, (a, b) in pairs.items():
        assert checks.close(a, b), name


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", MODELS)
def test_multi_head_attention(name, record_property):
    model = MODELS[name]
    attention, turns = model.made()
    X, dY = draw((BATCH, N, D), (BATCH, N, D))
    window = WINDOW if model.layer == "sliding_attention" else None
    theirs = of_module(attention, turns, X, dY, window)
    same(ours(model, weights(attention), X, dY), theirs, record_property)


# --- latent attention ---------------------------------------------------------------------------------------------

D_Q, D_C, D_N, D_R, D_V = 11, 9, 6, 4, 5
LATENT = {
    "q_lora_rank": D_Q, "kv_lora_rank": D_C, "qk_nope_head_dim": D_N, "qk_rope_head_dim": D_R, "v_head_dim": D_V,
    "num_key_value_heads": H, "head_dim": D_R,
}  # fmt: skip
SCALED = rope("yarn", mscale=1.0, mscale_all_dim=1.0, **YARN)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("absorbed", [False, True], ids=["plain", "absorbed"])
@pytest.mark.parametrize("config", [{}, {"rope_interleave": False}, {"q_lora_rank": None}, {"rope_parameters": SCALED}],
                         ids=["", "halves", "queries from X", "YaRN"])  # fmt: skip
def test_latent_attention(config, absorbed, record_property):
    """DeepSeek-V3's."""
    model = Model("deepseek_v3", "DeepseekV3", LATENT | {"rope_parameters": rope()} | config)
    attention, turns = model.made()
    X, dY = draw((BATCH, N, D), (BATCH, N, D))
    theirs = of_module(attention, turns, X, dY)
    W = weights(attention)
    up, d_q = ("q_b_proj", D_Q) if "q_b_proj.weight" in W else ("q_proj", D)
    W_UQ, W_QR = _apart(W[f"{up}.weight"], D_N, D_R)
    W_UK, W_UV = _apart(W["kv_b_proj.weight"], D_N, D_V)
    W_DKV, W_KR = np.split(W["kv_a_proj_with_mqa.weight"].T, [D_C], axis=1)
    W_DQ = W["q_a_proj.weight"].T if d_q == D_Q else None
    gains = W.get("q_a_layernorm.weight"), W["kv_a_layernorm.weight"]
    p = LatentParams(W_DQ, W_UQ, W_QR, W_DKV, W_UK, W_UV, W_KR, W["o_proj.weight"].T, *gains)
    layout = "half" if config.get("rope_interleave") is False else "interleaved"
    scaled = "rope_parameters" in config
    rotary = ab.Rotary(AT, base=100.0, layout=layout, scaling=YaRN(16.0, 64, 4.0, temperature=1.0) if scaled else None)
    scale = (D_N + D_R) ** -0.5 * ((0.1 * math.log(16.0) + 1) ** 2 if scaled else 1)
    options = {"num_heads": H, "rotary": rotary, "absorbed": absorbed, "causal": True, "scale": scale}
    Y, res = latent_attention(X, p, **options)
    g = latent_attention_vjp(dY, res)
    d = g.dparams
    dW = {
        f"{up}.weight": _beside(d.W_UQ, d.W_QR), "kv_b_proj.weight": _beside(d.W_UK, d.W_UV),
        "kv_a_proj_with_mqa.weight": np.concatenate((d.W_DKV, d.W_KR), axis=1).T, "o_proj.weight": d.W_O.T,
        "kv_a_layernorm.weight": d.g_KV,
    }  # fmt: skip
    if d_q == D_Q:
        dW |= {"q_a_proj.weight": d.W_DQ.T, "q_a_layernorm.weight": d.g_Q}
    same((Y, g.dX, dW), theirs, record_property)


def _apart(W, first, second):
    """Two weights, ``X @ W``, out of one of torch's, in which each head has the columns of both."""
    heads = W.T.reshape(-1, H, first + second)
    return (T.reshape(len(heads), -1) for T in np.split(heads, [first], axis=-1))


def _beside(A, B):
    """Back again."""
    return np.concatenate([T.reshape(len(T), H, -1) for T in (A, B)], axis=-1).reshape(len(A), -1).T
