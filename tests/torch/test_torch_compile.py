"""attnbook.torch under torch.compile: what is one operator, and what is the dense lines."""

import pytest
import torch
from test_torch_orders import MASK, QKV, WORDS, agree, agrees, draw, ours, plain
from torch import func

from attnbook.ops import ALiBi, Softcap, Window
from attnbook.torch import attention, scaled_dot_product_attention

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]


def compiled(f, backend="aot_eager"):
    if backend == "inductor" and not torch._inductor.cpp_builder.get_cpp_compiler():
        pytest.skip("inductor: no C++ compiler here")
    torch._dynamo.reset()
    g = torch.compile(f, fullgraph=True, backend=backend)

    # torch's cache of fake tensors keeps wrong strides where forward mode nests, without us too
    def run(*inputs, **options):
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
            return g(*inputs, **options)

    return run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("word", [w if w == "FF" else pytest.param(w, marks=pytest.mark.thorough) for w in WORDS])
def test_every_order_inside_of_the_compiled_function(word, backend):
    """Without a batch: with one, torch 2.13 refuses RFR and others loudly (a view on meta), FRR in our lines only."""
    agrees(word, "without a batch", lambda f: compiled(f, backend))


def sin_sum(f):
    return lambda *x: f(*x)[0].sin().sum()


ALL = (0, 1, 2, 3)
TRANSFORMS = {
    "grad": lambda f: func.grad(sin_sum(f), ALL),
    "jvp": lambda f: lambda *x: func.jvp(lambda *x: f(*x)[0], x, tuple(T.cos() for T in x)),
    "vmap of grad": lambda f: lambda *x: func.vmap(func.grad(sin_sum(f), ALL), (0, 0, 0, None))(*x),
    "hessian": lambda f: func.hessian(sin_sum(f)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_inside_of_the_compiled_function(transform, backend):
    inputs = draw(*QKV, (3, 4))
    agree(compiled(transform(ours), backend)(*inputs), transform(plain)(*inputs))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_outside_of_the_compiled_function_are_right_or_refused(transform):
    inputs = draw(*QKV, (3, 4))
    attend = compiled(lambda *x: (scaled_dot_product_attention(*x),))
    try:
        came = transform(attend)(*inputs)
    except (RuntimeError, NotImplementedError, torch._dynamo.exc.Unsupported):
        return
    agree(came, transform(plain)(*inputs))


def test_two_derivatives_of_compiled_code_are_refused():
    """As torch refuses them."""
    Q, K, V = (T.requires_grad_() for T in draw(*QKV))
    (dQ,) = torch.autograd.grad(compiled(scaled_dot_product_attention)(Q, K, V).sum(), Q, create_graph=True)
    with pytest.raises(RuntimeError):
        dQ.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ops_and_L_are_compiled_whole(backend):
    """The arrays of ops among them, that of an op of a user's too."""
    inputs = [T.requires_grad_() for T in draw(*QKV, (2, 1, 4), (2,), (2,))]
    attend = lambda f: lambda *x: f(*x[:5], mask=MASK, cap=2.0, sigma=x[5])  # noqa: E731

    def run(f):
        O, L = f(*inputs)
        return O, L, torch.autograd.grad((O.sin() + L[..., None]).sum(), inputs)

    agree(run(compiled(attend(ours), backend)), run(attend(plain)))


def test_compiled_ops_count_from_the_corner_of_causal(causal="bottom-right"):
    Q, K, V, m = draw(*QKV, (2,))
    f = lambda Q, *told: attention(Q, K, V, ops=[ALiBi(m, *told), Window(1, None, *told)], causal=causal)  # noqa: E731
    agree(compiled(f)(Q), f(Q, causal))


def test_sizes_that_change():
    torch._dynamo.reset()
    f = torch.compile(
        lambda *x: attention(*x, ops=[Softcap(2.0)], causal=True), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for n in (5, 9):
        inputs = draw((2, n, 2), (2, n + 2, 2), (2, n + 2, 3))
        agree(f(*inputs), attention(*inputs, ops=[Softcap(2.0)], causal=True))
