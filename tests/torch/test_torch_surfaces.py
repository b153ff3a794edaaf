"""attnbook.torch where torch's own function is called with what is no plain tensor, or is listened to: as that does."""

import math

import pytest
import torch
from test_torch_orders import agree, draw
from torch import func
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.utils._pytree import tree_map_only

from attnbook.checks import close
from attnbook.ops import Softcap
from attnbook.torch import attention, scaled_dot_product_attention

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")

SHAPES = (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)
Q, K, V = draw(*SHAPES)
BOTH = scaled_dot_product_attention, F.scaled_dot_product_attention


def alike(f, *inputs):
    """f of our function and of torch's."""
    agree(*(f(attend, *inputs) for attend in BOTH))


class Sub(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """Holds a tensor, and passes every operation on to it."""

    @staticmethod
    def __new__(cls, inner):
        like = {"strides": inner.stride(), "dtype": inner.dtype, "device": inner.device}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **like)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), options=None):
        args, options = tree_map_only(Wrapper, lambda T: T.inner, (args, options or {}))
        return tree_map_only(torch.Tensor, Wrapper, function(*args, **options))


def test_a_subclass_comes_back():
    assert type(scaled_dot_product_attention(Q.as_subclass(Sub), K, V)) is Sub
    assert type(attention(Q, K, V.as_subclass(Sub), ops=[Softcap(2.0)])) is Sub


def test_a_wrapper_subclass_with_its_gradient():
    def run(attend, Q):
        T = Wrapper(Q).requires_grad_()
        O = attend(T, Wrapper(K), Wrapper(V), is_causal=True)
        O.sum().backward()
        assert type(O) is type(T.grad) is Wrapper
        return O.inner.detach(), T.grad.inner

    alike(run, Q)


def test_fake_tensors():
    with FakeTensorMode() as mode:
        inputs = [mode.from_tensor(T).requires_grad_() for T in (Q, K, V)]
        O, L = attention(*inputs, causal=True, ops=[Softcap(2.0)], with_L=True)
        grads = torch.autograd.grad(O.sum() + L.sum(), inputs)
    assert (tuple(O.shape), tuple(L.shape)) == ((2, 4, 5, 8), (2, 4, 5))
    assert [T.shape for T in grads] == [T.shape for T in inputs]
    assert type(scaled_dot_product_attention(*(mode.from_tensor(T) for T in (Q, K, V)), is_causal=True)) is type(O)


def gradient(attend):
    return lambda *x: func.grad(lambda *x: attend(*x).sin().sum(), (0, 1, 2))(*x)


def backward(attend):
    def run(Q, K, V):
        Q = Q.detach().requires_grad_()
        return torch.autograd.grad(attend(Q, K, V).sin().sum(), Q)

    return run


@pytest.mark.parametrize(
    ("of", "mode"),
    [(lambda f: f, "real"), (gradient, "fake"), (backward, "symbolic")],
    ids=["values", "grad", "backward"],
)
def test_make_fx_traces_what_runs(of, mode):
    """With other numbers than those that it has seen."""

    def run(attend, *inputs):
        traced = make_fx(of(lambda Q, K, V: attend(Q, K, V, is_causal=True)), tracing_mode=mode)(Q, K, V)
        return traced(*inputs)

    alike(run, 2 * Q, K + 1, V.cos())


def test_functionalize():
    alike(lambda attend, T: func.functionalize(attend)(T, K, V), Q)


@pytest.mark.parametrize("corner", [causal_upper_left, causal_lower_right])
def test_causal_bias(corner):
    alike(lambda attend, Q: attend(Q, K, V, attn_mask=corner(5, 7)), Q)
    for attend in BOTH:
        with pytest.raises(ValueError, match=r"(?i)causal"):
            attend(Q, K, V, attn_mask=corner(5, 7), is_causal=True)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_many_gradients_at_once(strategy):
    def jacobian(attend, Q):
        options = {"vectorize": True, "strategy": strategy}
        return torch.autograd.functional.jacobian(lambda Q: attend(Q, K[0, 0], V[0, 0]), Q, **options)

    alike(jacobian, Q[0, 0])


@pytest.fixture
def mesh():
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "heads"])
def test_distributed_tensors(mesh, axis):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    here = [T.chunk(2, axis)[0] for T in (Q, K, V)]
    inputs = [DTensor.from_local(T, mesh, [Shard(axis)]).requires_grad_() for T in here]
    mask = draw((5, 7), seed=3)[0] > -0.5
    O = scaled_dot_product_attention(*inputs, DTensor.from_local(mask, mesh, [Replicate()]))
    (dQ,) = torch.autograd.grad(O.sum(), inputs[:1])
    assert O.placements == dQ.placements == (Shard(axis),)
    assert close(O.to_local().detach(), F.scaled_dot_product_attention(*here, mask))


MASK = draw((5, 7), seed=3)[0] > -0.5
VARIANTS = {
    "p = 1": ({"dropout_p": 1.0}, None), "p is a bool": ({"dropout_p": True}, None),
    "p is a tensor": ({"dropout_p": torch.tensor(0.0)}, None),
    "p with an axis": ({"dropout_p": torch.tensor([0.0])}, TypeError),
    "p is no number": ({"dropout_p": math.nan}, RuntimeError), "p is None": ({"dropout_p": None}, TypeError),
    "scale is a tensor": ({"scale": torch.tensor(0.3)}, None), "scale is a bool": ({"scale": True}, None),
    "scale with an axis": ({"scale": torch.tensor([0.3])}, TypeError), "scale is complex": ({"scale": 1j}, TypeError),
    "a mask and causal": ({"attn_mask": MASK, "is_causal": True}, None),
    "a float32 mask": ({"attn_mask": draw((5, 7))[0].float()}, None),
    "a mask of bytes": ({"attn_mask": MASK.byte()}, RuntimeError),
    "a list": ({"attn_mask": [[1.0]]}, TypeError), "enable_gqa is None": ({"enable_gqa": None}, TypeError),
    "an unknown name": ({"foo": 1}, TypeError), "no key": ({"key": None}, TypeError),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "error"), VARIANTS.values(), ids=VARIANTS)
def test_arguments_end_as_with_torch(changed, error):
    arguments = {"query": Q, "key": K, "value": V} | changed
    if error is None:
        return alike(lambda attend, _: attend(**arguments), Q)
    for attend in BOTH:
        with pytest.raises(error):
            attend(**arguments)
    return None
