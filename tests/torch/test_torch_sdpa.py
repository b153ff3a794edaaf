"""attnbook.torch.scaled_dot_product_attention beside torch's own: values, and derivatives of every kind and order."""

import gc
import math
import weakref

import pytest
import torch
from test_torch_compile import compiled
from test_torch_orders import agree, draw
from torch import func
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from attnbook import spines
from attnbook.checks import close
from attnbook.ops import Softcap
from attnbook.torch import _passes as passes
from attnbook.torch import attention, scaled_dot_product_attention

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch CUDA: no GPU here")
ON_EACH_DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])


def torchs(*inputs, **options):
    """torch's function by its own plain lines, which have derivatives of all orders."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*inputs, **options)


BOTH = scaled_dot_product_attention, torchs


def some(*shape, dead=1):
    """A bool mask, with a row in which no key is allowed."""
    mask = draw(shape, seed=9)[0] > -0.4
    mask[..., dead, :] = False
    return mask


def minus_infinity(*shape):
    return draw(shape, seed=8)[0].masked_fill(~some(*shape), -torch.inf)


THREE = (2, 3, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)
SHARED = (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)
LENGTHS = 401, 370  # so large that "auto" takes tiles
LARGE = (1, 2, 401, 11), (1, 2, 370, 11), (1, 2, 370, 13)
CASES = {
    "plain": (THREE, {}),
    "without heads": (((5, 11), (7, 11), (7, 13)), {"is_causal": True}),
    "leading axes that broadcast": (((2, 3, 5, 11), (1, 7, 11), (2, 1, 7, 13)), {}),
    "one query head, three of keys": (((2, 1, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)), {}),
    "causal": (THREE, {"is_causal": True}),
    "causal, more queries": (((3, 7, 11), (3, 5, 11), (3, 5, 13)), {"is_causal": True}),
    "a scale": (THREE, {"scale": -0.7}),
    "bool mask with a dead row": (THREE, {"attn_mask": some(3, 5, 7)}),
    "float mask": (THREE, {"attn_mask": draw((2, 1, 5, 7))[0]}),
    "one number as mask": (THREE, {"attn_mask": torch.tensor(0.3, dtype=torch.float64)}),
    "float mask with a dead row": (THREE, {"attn_mask": minus_infinity(3, 5, 7)}),
    "float32 mask": (THREE, {"attn_mask": draw((5, 7))[0].float()}),
    "shared heads": (SHARED, {"enable_gqa": True}),
    "shared heads, causal": (SHARED, {"enable_gqa": True, "is_causal": True}),
    "shared heads, float mask": (SHARED, {"enable_gqa": True, "attn_mask": draw((6, 1, 7))[0]}),
    "one key head, two of values": (((2, 4, 5, 11), (2, 1, 7, 11), (2, 2, 7, 13)), {"enable_gqa": True}),
    "large": (LARGE, {}),
    "large, bool mask": (LARGE, {"attn_mask": some(401, 370)}),
    "large, float mask": (LARGE, {"attn_mask": minus_infinity(2, 401, 370)}),
    "large, shared heads": (((4, 401, 11), (2, 370, 11), (1, 370, 13)), {"enable_gqa": True, "is_causal": True}),
    "no query": (((2, 0, 11), (2, 7, 11), (2, 7, 13)), {}),
    "no key": (((2, 5, 11), (2, 0, 11), (2, 0, 13)), {}),
    "no batch entry": (((0, 3, 5, 11), (0, 3, 7, 11), (0, 3, 7, 13)), {"is_causal": True}),
    "keys without width": (((2, 5, 0), (2, 7, 0), (2, 7, 13)), {"scale": 1.0}),
    "values without width": (((2, 5, 11), (2, 7, 11), (2, 7, 0)), {}),
}


def on(device, inputs, options):
    move = {name: T.to(device) if isinstance(T, torch.Tensor) else T for name, T in options.items()}
    return [T.to(device) for T in inputs], move


def gradients(attend, inputs, options, dO):
    """O and the gradients of all inputs, that of a float mask included."""
    inputs = [T.detach().requires_grad_() for T in inputs]
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        options = options | {"attn_mask": mask.detach().requires_grad_()}
        inputs.append(options["attn_mask"])
    O = attend(*inputs[:3], **options)
    return O.detach(), *torch.autograd.grad(O, inputs, dO.to(O.dtype))


def agrees_with_torch(inputs, options):
    O = torchs(*inputs, **options)
    (dO,) = draw(tuple(O.shape), seed=2, device=O.device)
    ours = gradients(scaled_dot_product_attention, inputs, options, dO)
    agree(ours, gradients(torchs, inputs, options, dO))
    assert ours[0].is_contiguous()


@ON_EACH_DEVICE
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients(case, device):
    shapes, options = case
    agrees_with_torch(*on(device, draw(*shapes), options))


WALKED = [name for name in CASES if name.startswith(("large", "no ", "plain", "shared", "float mask", "bool", "one"))]


@pytest.mark.parametrize("case", [CASES[name] for name in WALKED], ids=WALKED)
def test_the_way_of_a_gpu_walked_here(case, monkeypatch):
    """On a GPU the spines are those of torch tensors: the same tests with NumPy's left out, tiles for large tables."""
    monkeypatch.setattr(passes, "homes", lambda Q, method: ("torch",))
    monkeypatch.setitem(spines.DENSE_UP_TO, False, 2**16)
    shapes, options = case
    agrees_with_torch(draw(*shapes), options)
    if case is not CASES["one number as mask"]:  # its gradient is 0: what comes is rounding, and how much is luck
        as_exact_as_torch(draw(*shapes), options, torch.bfloat16)
    drops_out_as_defined(draw(*shapes), options | {"dropout_p": 0.3})
    tangents = draw(*shapes, seed=4)
    agree(*(func.jvp(lambda *x, f=f: f(*x, **options), tuple(draw(*shapes)), tuple(tangents)) for f in BOTH))


@pytest.mark.parametrize(("n_q", "n_k"), [(5, 7), LENGTHS], ids=["small", "large"])
def test_tensors_that_do_not_lie_in_order(n_q, n_k):
    """Heads split off by a view, stretched keys, every other value, and a negative that torch has not yet computed."""
    Q, K, V = draw((2, n_q, 3, 11), (1, 3, 11, n_k), (2, 3, 2 * n_k, 13))
    Q, K, V = Q.transpose(1, 2), K.mT.expand(2, 3, n_k, 11), V[:, :, ::2]
    agrees_with_torch([Q, K, V], {})
    negative = torch.view_as_complex(torch.stack([Q, -Q], dim=-1)).conj().imag
    assert negative.is_neg()
    assert close(scaled_dot_product_attention(negative, K, V), torchs(Q, K, V))


@pytest.mark.parametrize("needed", [(), (0,), (1,), (2,), (3,), (0, 3), (1, 2), (0, 1, 2, 3)])
def test_only_what_needs_a_gradient_gets_one(needed):
    inputs = draw(*THREE, (3, 1, 7))
    for i in needed:
        inputs[i].requires_grad_()
    O = scaled_dot_product_attention(*inputs)
    assert O.requires_grad == bool(needed)
    if needed:
        O.sum().backward()
        wanted = torch.autograd.grad(torchs(*inputs).sum(), [inputs[i] for i in needed])
        agree([inputs[i].grad for i in needed], wanted)
    assert [T.grad is not None for T in inputs] == [i in needed for i in range(4)]


# --- low precision ------------------------------------------------------------------------------------------------


def as_exact_as_torch(inputs, options, dtype):
    """No result is off by more than twice what torch's own lines in that dtype are off, and its last bit."""
    low, mask = [T.to(dtype) for T in inputs], options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        options, mask = options | {"attn_mask": mask.to(dtype)}, mask.to(dtype).double()
    exact = options if mask is None else options | {"attn_mask": mask}
    O = torchs(*low, **options)
    dO = draw(tuple(O.shape), seed=2)[0].to(O)
    ours, theirs = (gradients(f, low, options, dO) for f in BOTH)
    true = gradients(torchs, [T.double() for T in low], exact, dO.double())
    for T, other, right in zip(ours, theirs, true, strict=True):
        assert T.dtype == other.dtype
        if right.numel():
            off, allowed, size = (T.abs().max().item() for T in (T.double() - right, other.double() - right, right))
            assert off <= 2 * allowed + torch.finfo(dtype).eps * size, f"off by {off:.1e}, torch by {allowed:.1e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["float mask with a dead row", "shared heads, causal"])
def test_low_precision(name, dtype):
    shapes, options = CASES[name]
    as_exact_as_torch(draw(*shapes), options, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_float32_mask_for_16_bits(dtype):
    """As torch allows it: it is added in float32, and its gradient is not rounded to 16 bits."""
    inputs, mask = [T.to(dtype) for T in draw(*THREE)], draw((5, 7))[0].float()
    dO = draw((2, 3, 5, 13))[0].to(dtype)
    *_, dmask = gradients(scaled_dot_product_attention, inputs, {"attn_mask": mask}, dO)
    wide = gradients(torchs, [T.float() for T in inputs], {"attn_mask": mask}, dO.float())
    assert dmask.dtype == torch.float32
    assert torch.allclose(dmask, wide[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_it_casts_as_torch_does(dtype):
    inputs = [T.to(dtype) for T in draw(*THREE)]
    mask = draw((5, 7))[0].float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = (f(*inputs, attn_mask=mask) for f in BOTH)
        mixed = scaled_dot_product_attention(inputs[0], inputs[1].bfloat16(), inputs[2], attn_mask=mask)
        (dmask,) = torch.autograd.grad(ours.sum(), mask, create_graph=True)
        dmask.square().sum().backward()
    assert (ours.dtype, dmask.dtype) == (theirs.dtype, torch.float32)
    assert torch.allclose(ours, theirs, rtol=2e-2, atol=2e-2)
    assert torch.equal(mixed, ours)


# --- dropout ------------------------------------------------------------------------------------------------------


def kept(inputs, options, seed):
    """R, read off our own output: with V = 1 it is R ∘ P / (1 − p)."""
    Q, K, V = inputs
    torch.manual_seed(seed)
    ones = torch.eye(K.shape[-2], dtype=V.dtype, device=V.device).expand(*V.shape[:-1], -1)
    return scaled_dot_product_attention(Q, K, ones, **options) != 0


def naive(Q, K, V, R, dropout_p, **options):
    """The definition with a given R, for autograd; P is torch's."""
    P = torchs(Q, K, torch.eye(K.shape[-2], dtype=V.dtype).expand(*V.shape[:-1], -1), **options)
    V = V.repeat_interleave(Q.shape[-3] // V.shape[-3], -3) if options.get("enable_gqa") else V
    return (R * P / (1 - dropout_p)) @ V


def drops_out_as_defined(inputs, options, seed=3):
    """Values and gradients of the definition with the R that is read off; as many kept as p says."""
    R = kept(inputs, options, seed)
    shape = torchs(*inputs, **options | {"dropout_p": 0.0}).shape
    (dO,) = draw(tuple(shape), seed=2, device=R.device)
    torch.manual_seed(seed)
    ours = gradients(scaled_dot_product_attention, inputs, options, dO)
    agree(ours, gradients(lambda *T, **rest: naive(*T, R, **rest), inputs, options, dO))
    return R


def test_how_many_are_kept():
    for p in (0.1, 0.5, 0.9):
        R = drops_out_as_defined(draw(*LARGE), {"dropout_p": p})
        spread = math.sqrt(p * (1 - p) / R.numel())
        assert abs(R.double().mean() - (1 - p)) < 5 * spread


def test_dropout_repeats_with_the_seed_of_torch_alone():
    first, second = (torch.stack([kept(draw(*THREE), {"dropout_p": 0.5}, seed) for seed in (0, 1)]) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(*first)


# --- derivatives of every order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [True, False])
def test_exponentials_of_the_faster_library(bits):
    """Those of torch where NumPy has no vector code for its own, in parts that no thread of torch's helps with; the
    values and derivatives are the same: of plain scores, of masked ones, and of some so large that they need a shift.
    """
    sizes, exp2_ = [], torch.Tensor.exp2_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spines.numpy_work, "BITS", bits)
        patch.setattr(torch.Tensor, "exp2_", lambda T: (sizes.append(T.numel()), exp2_(T))[1])
        for options in ({"is_causal": True}, {"attn_mask": some(401, 370)}, {"scale": 30.0}):
            agrees_with_torch(draw(*LARGE), options)
            agree(*(func.jvp(lambda *x: f(*x, **options), *map(tuple, (draw(*LARGE), draw(*LARGE)))) for f in BOTH))  # noqa: B023
    assert bool(sizes) is not bits
    assert max(sizes, default=0) <= 2**15  # at::internal::GRAIN_SIZE


def sin_sum(attend):
    return lambda *inputs: attend(*inputs).sin().sum()


ALL = (0, 1, 2, 3)
ONE = (3, 2), (4, 2), (4, 3), (3, 4)
MANY = tuple((5, *shape) for shape in ONE)


def vmap_of_grad(f):
    return func.vmap(func.grad(sin_sum(f), ALL), (0, None, 0, None))


def vmap_of_vmap(f):
    return func.vmap(func.vmap(f), (0, None, 1, None))


TRANSFORMS = {
    "jacrev": (lambda f: func.jacrev(f, ALL), ONE),
    "jacfwd": (lambda f: func.jacfwd(f, ALL), ONE),
    "vmap, other axes": (lambda f: func.vmap(f, (0, None, 2, 1), 1), ((5, 3, 2), (4, 2), (4, 3, 5), (3, 5, 4))),
    "vmap of the mask alone": (lambda f: func.vmap(f, (None, None, None, 0)), (*ONE[:3], MANY[3])),
    "vmap of vmap": (vmap_of_vmap, ((2, *MANY[0]), MANY[1], (5, 2, 4, 3), MANY[3])),
    "vmap of grad": (vmap_of_grad, (MANY[0], ONE[1], MANY[2], ONE[3])),
    "vmap of jvp": (lambda f: func.vmap(lambda *x: func.jvp(f, x, tuple(T.cos() for T in x))), MANY),
    "vmap of hessian": (lambda f: func.vmap(func.hessian(sin_sum(f), ALL)), MANY),
    "grad of vmap": (lambda f: func.grad(sin_sum(func.vmap(f, (0, None, 0, 0))), ALL), (MANY[0], ONE[1], *MANY[2:])),
}  # fmt: skip


@pytest.mark.parametrize(("transform", "shapes"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_function_transforms(transform, shapes):
    inputs = draw(*shapes)
    agree(*(transform(lambda Q, K, V, mask, f=f: f(Q, K, V, attn_mask=mask))(*inputs) for f in BOTH))


def test_many_gradients_of_one_forward():
    """On tiles, where one head has large scores, and the heads of its task are others once there is one more axis."""
    Q, K, V, dO = draw(*[(11, 48, 32, 4)] * 3, (2, 11, 48, 32, 4))
    Q[1, 0] *= 200
    agree(*(func.vmap(func.vjp(lambda Q, f=f: f(Q, K, V), Q)[1])(dO)[0] for f in BOTH))


def test_vmap_over_inputs_with_axes_of_their_own():
    """Heads, a batch and shared heads inside; a rank for each input; in second derivatives."""
    Q, K, V, mask = draw((5, 2, 6, 3, 2), (2, 4, 2), (5, 2, 3, 4, 3), (6, 1, 4))

    def each(attend):
        return lambda Q, K, V, mask: attend(Q, K.expand(2, 2, 4, 2), V[:, :2], attn_mask=mask, enable_gqa=True)

    agree(*(func.vmap(func.hessian(sin_sum(each(f)), ALL), (0, None, 0, None))(Q, K, V, mask) for f in BOTH))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_under_vmap_is_that_of_each_call(randomness):
    """ "same": all calls drop the same weights; "different": each its own. Second derivatives keep to them."""
    Q, K, V = draw(*ONE[:3])
    ones = torch.eye(4, dtype=torch.float64)

    def run(f, *inputs, dims=(0, 0, 0)):
        torch.manual_seed(0)
        return func.vmap(f, dims, randomness=randomness)(*inputs)

    def drop(Q, K, V):
        return scaled_dot_product_attention(Q, K, V, dropout_p=0.5)

    stacked = [torch.stack([T] * 5) for T in (Q, K, V)]
    R = run(drop, *stacked[:2], ones.expand(5, 4, 4)) != 0
    assert (R[:1] == R).all() == (randomness == "same")

    def with_R(Q, K, V, R):
        return naive(Q, K, V, R, 0.5)

    for transform in (
        lambda f: f,
        lambda f: func.grad(sin_sum(f), (0, 1, 2)),
        lambda f: func.jacfwd(func.grad(sin_sum(f), (0, 1, 2)), (0, 1, 2), randomness="same"),
    ):
        agree(run(transform(drop), *stacked), func.vmap(transform(with_R))(*stacked, R))


def test_dropout_under_vmap_asks_how_as_torch_does():
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(lambda *x: scaled_dot_product_attention(*x, dropout_p=0.5))(*draw(*THREE))


# --- what torch does around a function ----------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [THREE, LARGE], ids=["small", "large"])
def test_a_checkpoint_drops_the_same_weights_again(shapes):
    inputs = [T.requires_grad_() for T in draw(*shapes)]
    torch.manual_seed(0)
    wanted = torch.autograd.grad(scaled_dot_product_attention(*inputs, None, 0.5).sum(), inputs)
    torch.manual_seed(0)
    O = checkpoint(lambda *x: scaled_dot_product_attention(*x, None, 0.5), *inputs, use_reentrant=False)
    agree(torch.autograd.grad(O.sum(), inputs), wanted)


@pytest.mark.parametrize("shapes", [THREE, LARGE], ids=["small", "large"])
def test_what_is_changed_before_the_backward_is_noticed(shapes):
    """Each input, and the output."""
    for changed in range(5):
        inputs = [T.requires_grad_() for T in draw(*shapes, (shapes[0][-2], shapes[1][-2]))]
        O = scaled_dot_product_attention(*inputs)
        with torch.no_grad():
            [*inputs, O][changed].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            O.sum().backward()


def test_what_is_kept_is_saved_by_torch_and_no_table_where_it_is_large():
    for shapes, kept in ((THREE, 6 * 5 * (7 + 13)), (LARGE, 2 * 401 * (13 + 2))):  # P and O; O, M and Z
        inputs, sizes = [T.requires_grad_() for T in draw(*shapes)], []
        with torch.autograd.graph.saved_tensors_hooks(lambda T: (sizes.append(T.numel()), T)[1], lambda T: T):  # noqa: B023
            scaled_dot_product_attention(*inputs)
        assert sum(sizes) == sum(T.numel() for T in inputs) + kept
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert scaled_dot_product_attention(*inputs).grad_fn is None


@pytest.mark.parametrize("method", ["dense", "tiled"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_graph_holds_no_mask_after_its_backward(method, keep):
    """A mask, and what an op has saved, live after a backward only as long as the graph is kept."""
    Q, K, V = (T.requires_grad_() for T in draw(*THREE))
    held, forward = [], Softcap.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Softcap, "forward", lambda *args: (held.append(forward(*args)), held[-1])[1])
        mask = some(5, 7)
        O = attention(Q, K, V, mask=mask, ops=[Softcap(2.0)], method=method)
    kept = [weakref.ref(mask), *(weakref.ref(saved) for _, saved in held if method == "dense")]
    del mask
    held.clear()
    first = torch.autograd.grad(O.sum(), (Q, K, V), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(O.sum(), (Q, K, V), retain_graph=keep)))
    gc.collect()
    assert [ref() is not None for ref in kept] == [keep] * len(kept)
    if not keep:
        with pytest.raises(RuntimeError, match="second time"):
            O.sum().backward()


# --- the compiler -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of_a_gpu"), [("bool mask with a dead row", False), ("large", False), ("large", True)]
)
def test_compiled(name, of_a_gpu, monkeypatch):
    if of_a_gpu:
        monkeypatch.setattr(passes, "homes", lambda Q, method: ("torch",))
    shapes, options = CASES[name]
    inputs, (dO,) = draw(*shapes), draw((*shapes[0][:-1], 13), seed=2)
    ours = gradients(compiled(scaled_dot_product_attention), inputs, options, dO)
    agree(ours, gradients(torchs, inputs, options, dO))


def test_exported():
    class Model(torch.nn.Module):
        def forward(self, Q, K, V):
            return scaled_dot_product_attention(Q, K, V, is_causal=True)

    inputs = draw(*THREE)
    assert close(torch.export.export(Model(), tuple(inputs)).module()(*inputs), torchs(*inputs, is_causal=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float64, marks=pytest.mark.thorough)], ids=str)
def test_the_operator_is_one_that_torch_can_rely_on(dtype):
    Q, K, V, mask = (T.to(dtype).requires_grad_() for T in draw(*THREE, (3, 1, 7)))
    op = torch.ops.attnbook.attention
    torch.library.opcheck(op, (Q, K, V, mask, None, None, 0.3, "auto"))
    torch.library.opcheck(op, (Q, K, V, None, mask > 0, "bottom-right", None, "tiled"))


# --- bad input ----------------------------------------------------------------------------------------------------

Q, K, V = draw(*THREE)
MASK = torch.ones(5, 7, dtype=torch.bool)
REFUSED = [
    ((Q, K, V), {"scale": torch.tensor(0.5, requires_grad=True)}, TypeError, "scale: expected a real number, got .*"),
    ((Q.numpy(), K, V), {}, TypeError, "query: expected a tensor, got ndarray"),
    ((Q.int(), K.int(), V.int()), {}, TypeError, "query: expected torch.float64 or .*, got torch.int32"),
    ((Q, K.float(), V), {}, TypeError, "key: expected torch.float64, got torch.float32"),
    ((Q, K.to("meta"), V), {}, ValueError, "key: expected device cpu like query, got meta"),
    ((Q, K, V, MASK.int()), {}, TypeError, "attn_mask: expected torch.bool or torch.float64, got .*int32"),
    ((Q.float(), K.float(), V.float(), MASK.double()), {}, TypeError, "attn_mask: expected .*, got torch.float64"),
    ((Q, K, V, MASK[:, :6]), {}, ValueError, r"attn_mask: expected .* scores, \(2, 3, 5, 7\), got shape \(5, 6\)"),
    ((Q[:1], K[:1], V[:1], MASK.expand(2, 1, 5, 7)), {}, ValueError, "attn_mask: expected a shape that broadcasts"),
    ((Q, K, V), {"is_causal": 1}, TypeError, "is_causal: expected a bool, got 1"),
    ((Q, K, V), {"dropout_p": 1.1}, ValueError, r"dropout_p: expected a probability in \[0, 1\], got 1.1"),
    ((Q, K, V), {"scale": "1"}, TypeError, "scale: expected a real number, got '1'"),
    ((Q, K, V), {"scale": math.inf}, ValueError, "scale: expected a finite number, got inf"),
    ((Q[0, 0, 0], K, V), {}, ValueError, r"query: expected at least two axes .*, got shape \(11,\)"),
    ((Q[0, 0], K[0, 0], V[0, 0]), {"enable_gqa": True}, ValueError, "key: expected heads whose number"),
    ((Q[..., :9], K, V), {}, ValueError, r"key: expected the head width of query, 9, got shape \(2, 3, 7, 11\)"),
    ((Q, K, V[:, :, :6]), {}, ValueError, r"value: expected one row for each of the 7 keys, got shape \(2, 3, 6, 13\)"),
    ((Q, K[:, :2], V), {}, ValueError, r"key: expected leading axes that broadcast against .*enable_gqa"),
    ((Q[:, :2], K[:, :1], V), {}, ValueError, "value: expected leading axes that broadcast"),
    ((Q, K[:, :2], V[:, :2]), {"enable_gqa": True}, ValueError, "key: expected heads whose number divides"),
    ((Q.to_sparse(), K, V), {}, TypeError, "query: expected a dense tensor"),
]


@pytest.mark.parametrize(("inputs", "options", "error", "message"), REFUSED, ids=[row[3] for row in REFUSED])
def test_it_is_refused(inputs, options, error, message):
    with pytest.raises(error, match=message) as caught:
        scaled_dot_product_attention(*inputs, **options)
    assert isinstance(caught.value, RuntimeError)  # as torch raises it


@pytest.mark.parametrize("name", ["scale", "dropout_p"])
def test_a_number_whose_derivative_would_be_lost_is_refused(name):
    number = torch.tensor(0.5)
    assert scaled_dot_product_attention(Q, K, V, **{name: number}).shape == (2, 3, 5, 13)
    with pytest.raises(TypeError, match=f"{name}: expected a real number"):
        func.jvp(lambda x: scaled_dot_product_attention(Q, K, V, **{name: x}), (number,), (number,))
