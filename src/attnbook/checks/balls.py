"""Arrays of balls: an array library whose numbers are intervals that are sure to hold the true ones, at any precision.

Each number is an ``arb`` of python-flint, a midpoint and a radius. What is written for any array library runs on them
as it stands, for it asks an array for its library; so do NumPy's functions. Beside its numbers an array may carry their
tangent, the derivative along a direction. Each function moves both, so a run encloses its derivative too, with no step.

"float64" means balls here. −∞ is exact, and exp(−∞) is 0. A comparison that the balls leave open, or that a small step
along the tangent would change, raises :class:`UndecidedError`. Only ``bounds`` leads from a ball to floats.
Chapter: :doc:`/chapters/08_checking`.
"""

import functools
import math
import operator
import sys
import types

import numpy as np
from flint import arb, ctx

float64, int64, uint8, bool = map(np.dtype, (object, "int64", "uint8", "bool"))
inf, nan, pi, e, newaxis = np.inf, np.nan, np.pi, np.e, None
ALIASES = {"concatenate": "concat", "cumsum": "cumulative_sum", "absolute": "abs", "conjugate": "copy"}

ties = types.SimpleNamespace(met=False, moved=None)
"""What ``maximum`` does where either number may be the larger, and they move apart: it raises ``UndecidedError``. But
where ``moved`` is a number, it takes one of them plus ``moved``, as a constant, and ``met`` says so. That is right
where the maximum is a shift that is undone again, as in a softmax: ``enclosed.run`` asks for it, and where a tie was
met asks again with another ``moved``. The result must be the same."""


class UndecidedError(ArithmeticError):
    """A comparison that the balls leave open, or that a small step would change."""


class Balls:
    """An array of balls ``x`` with their tangent ``t``, None for 0; or an array of integers or Booleans."""

    device = "cpu"

    def __init__(self, x, t=None):
        self.x = np.asarray(x)
        self.t = t if t is None else np.broadcast_to(np.asarray(t), self.x.shape)
        if self.x.dtype.kind not in "Oiub":
            raise TypeError(f"balls: expected balls, integers or Booleans, got {self.x.dtype}")

    dtype = property(lambda self: self.x.dtype)
    shape = property(lambda self: self.x.shape)
    ndim = property(lambda self: self.x.ndim)
    size = property(lambda self: self.x.size)
    T = property(lambda self: transpose(self))
    mT = property(lambda self: matrix_transpose(self))

    def __array_namespace__(self, *, api_version=None):
        return sys.modules[__name__]

    def __dlpack_device__(self):
        return 1, 0  # on the host

    def __array_ufunc__(self, ufunc, method, *args, **options):
        ours = _ours(ufunc.__name__)
        return NotImplemented if ours is None or method != "__call__" else ours(*args, **options)

    def __array_function__(self, function, kinds, args, options):
        ours = _ours(function.__name__)
        return NotImplemented if ours is None else ours(*args, **options)

    def __array__(self, *args, **options):
        raise TypeError("balls: expected functions of their own library or of NumPy's, got a conversion to numbers")

    __float__ = __complex__ = __array__

    def __len__(self):
        return len(self.x) if self.ndim else self.__array__()

    def __getattr__(self, name):
        if name.startswith("_") or not callable(_ours(name)):
            raise AttributeError(f"balls have no {name}")
        return functools.partial(_ours(name), self)

    def __getitem__(self, at):
        at = _raw(at)
        return Balls(self.x[at], None if self.t is None else self.t[at])

    def __setitem__(self, at, value):
        at, value = _raw(at), asarray(value, self.dtype)
        if self.t is not None or value.t is not None:
            self.t = np.array(tangent(self))
            self.t[at] = tangent(value)
        self.x[at] = value.x

    def __index__(self):
        return self.x.item() if self.x.dtype != float64 else self.__array__()

    __int__ = __bool__ = __index__

    def __repr__(self):
        return f"Balls({self.x})"


def bounds(T):
    """Two arrays of floats between which the numbers of T are sure to lie: the ends of its balls, rounded outwards."""
    low, high = (np.array([float(end(a)) for a in T.x.flat]).reshape(T.shape) for end in (arb.lower, arb.upper))
    return np.nextafter(low, -np.inf), np.nextafter(high, np.inf)


def enclose(f, *inputs, digits=50):
    """What f makes of arrays of floats: balls that hold the exact result, with none of its steps rounded."""
    with ctx.workdps(digits):
        return f(*(asarray(T) if isinstance(T, np.ndarray) else T for T in inputs))


def widened(T, relative, least, largest):
    """T off by ``relative`` of each number, or by ``least`` where that is more; by anything beyond the ``largest``."""

    def wide(a):
        size = a.abs_upper()
        return a + arb(0, (size * relative).max(arb(least)).upper() if size <= largest else np.inf)

    return Balls(_map(wide, T.x))


def tangent(T):
    """The tangent's numbers, also where it is 0."""
    return np.full(T.shape, arb()) if T.t is None else T.t


# --- inside -------------------------------------------------------------------------------------------------------


def _ours(name):
    """The function that stands in for one of NumPy's; None where there is none."""
    return globals().get(ALIASES.get(name, name))


def _ball(number):
    return number if isinstance(number, arb) else arb(float(number) if isinstance(number, float) else int(number))


def _map(f, *arrays):
    return np.asarray(np.frompyfunc(f, len(arrays), 1)(*arrays), dtype=object)


def _raw(given):
    """An index, or another argument, without our arrays of integers and Booleans."""
    if isinstance(given, tuple | list):
        return type(given)(map(_raw, given))
    return given.x if isinstance(given, Balls) else given


def _alike(arrays):
    """All as our arrays, and as balls if one is."""
    arrays = [asarray(T) for T in arrays]
    return [astype(T, float64) for T in arrays] if float64 in [T.dtype for T in arrays] else arrays


def _with_balls(x):
    """A sum over nothing, or what is cut off, is NumPy's integer 0."""
    return x + arb() if np.asarray(x).dtype == float64 else x


def _linear(f):
    """f of one array, which moves its numbers or adds them up; and the same of its tangent."""

    def of(T, *args, **options):
        T, args, options = asarray(T), _raw(args), {name: _raw(given) for name, given in options.items()}
        return Balls(f(T.x, *args, **options), None if T.t is None else f(T.t, *args, **options))

    return of


def _jointly(f):
    """f of several arrays, linear in all of them together."""

    def of(*arrays):
        arrays = _alike(arrays)
        moving = False in {T.t is None for T in arrays}
        return Balls(f(*(T.x for T in arrays)), f(*map(tangent, arrays)) if moving else None)

    return of


def _product(f):
    """f of several arrays, linear in each: the product rule."""

    def of(*arrays):
        arrays = _alike(arrays)
        x = [T.x for T in arrays]
        terms = [f(*x[:i], T.t, *x[i + 1 :]) for i, T in enumerate(arrays) if T.t is not None]
        return Balls(f(*x), functools.reduce(operator.add, terms) if terms else None)

    return of


def _analytic(f, slope):
    """f of each number, and its slope at x, where it is y: the chain rule."""

    def of(T):
        T = asarray(T, float64)
        y = _map(f, T.x)
        return Balls(y, None if T.t is None else slope(T.x, y) * T.t)

    return of


def _whole(f):
    """f of integers and Booleans, which have no tangent."""

    def of(*args, **options):
        args = _raw(args)
        if float64 in {getattr(T, "dtype", None) for T in args}:
            raise TypeError(f"balls: expected integers or Booleans for {f.__name__}, got balls")
        return Balls(f(*args, **options))

    return of


def _signs(A, B):
    """−1, 0 or 1, where A is smaller, equal or larger."""
    A, B = _alike((A, B))
    if A.dtype != float64:
        return (A.x > B.x).astype(int) - (A.x < B.x)
    return _map(_sign, A.x, B.x, tangent(A) - tangent(B)).astype(int)


def _sign(a, b, moving):
    if a < b or a > b:
        return 1 if a > b else -1
    if a == b and (moving == 0 or not a.is_finite()):
        return 0
    raise UndecidedError(f"which is larger, {a} or {b}?")


def _larger(a, b, ta, tb):
    if a > b or (a == b and not a.is_finite()):
        return a, ta
    if a < b:
        return b, tb
    if ta == tb:
        return a.max(b), ta
    if ties.moved is None:
        raise UndecidedError(f"which is larger, {a} or {b}? They move apart")
    ties.met = True
    return a.mid() + ties.moved, arb()


def _power(a, p):
    """aᵖ; a product where it can be one, for python-flint has no power of a ball around 0."""
    return math.prod([a] * p, start=arb(1)) if isinstance(p, int) and p >= 0 else a**p


def _compared(f):
    return lambda A, B: Balls(f(_signs(A, B), 0))


# --- the library, with the names of the array API standard, and those of NumPy's that the book uses --------------


def asarray(T, dtype=None, *, device=None, copy=None):
    """T as it is, if it is one of ours; else floats as exact balls, or integers and Booleans."""
    if not isinstance(T, Balls):
        T = np.asarray(T)
        T = Balls(_map(_ball, T.astype(float)) if T.dtype.kind == "f" else T)
    return T if dtype is None else astype(T, dtype)


def astype(T, dtype, *, copy=True, device=None):
    dtype = np.dtype(dtype)
    if dtype in (float64, np.dtype(float)):
        return T if T.dtype == float64 else Balls(_map(_ball, T.x))
    if T.dtype == float64 or dtype.kind not in "iub":
        raise TypeError(f"dtype: expected no rounding of balls, got {dtype}")
    return Balls(T.x.astype(dtype))


def isdtype(dtype, kind):
    return np.isdtype(np.dtype(float) if dtype == float64 else dtype, kind)


def finfo(dtype):
    return types.SimpleNamespace(bits=64)


def full(shape, value, dtype=None, *, device=None):
    return asarray(np.full(shape, value), dtype)


def full_like(T, value, dtype=None, *, device=None):
    return full(T.shape, value, T.dtype if dtype is None else dtype)


zeros, ones = (lambda shape, dtype=float64, *, device=None, n=n: full(shape, n, dtype) for n in (0, 1))
zeros_like, ones_like = (lambda T, dtype=None, *, device=None, n=n: full_like(T, n, dtype) for n in (0, 1))


def arange(start, stop=None, step=1, *, dtype=int64, device=None):
    return asarray(np.arange(start, stop, step) if stop is not None else np.arange(0, start, step), dtype)


def eye(n, m=None, *, dtype=float64, device=None):
    return asarray(np.eye(n, m, dtype=int), dtype)


broadcast_to, diagonal, expand_dims, flip = map(_linear, (np.broadcast_to, np.diagonal, np.expand_dims, np.flip))
mean, moveaxis, ravel, repeat, roll = map(_linear, (np.mean, np.moveaxis, np.ravel, np.repeat, np.roll))
squeeze, swapaxes, take, tile, trace = map(_linear, (np.squeeze, np.swapaxes, np.take, np.tile, np.trace))
copy, negative = map(_linear, (np.array, operator.neg))
matrix_transpose, reshape = _linear(lambda x: x.swapaxes(-1, -2)), _linear(lambda x, *shape: x.reshape(*shape))
transpose = permute_dims = _linear(lambda x, *axes: x.transpose(*axes))
sum = _linear(lambda x, axis=None, keepdims=False: _with_balls(np.sum(x, axis=axis, keepdims=keepdims)))
cumulative_sum = _linear(lambda x, axis=None: np.cumsum(x, axis=axis))
tril = _linear(lambda x, k=0: _with_balls(np.where(np.tri(*x.shape[-2:], k, dtype="bool"), x, 0)))
triu = _linear(lambda x, k=0: _with_balls(np.where(np.tri(*x.shape[-2:], k - 1, dtype="bool"), 0, x)))

add, subtract, multiply = _jointly(operator.add), _jointly(operator.sub), _product(operator.mul)
matmul = _product(lambda a, b: _with_balls(np.matmul(a, b)))


def einsum(subscripts, *arrays):
    return _product(lambda *x: _with_balls(np.einsum(subscripts, *x)))(*arrays)


def concat(arrays, axis=0):
    return _jointly(lambda *x: np.concatenate(x, axis))(*arrays)


def stack(arrays, axis=0):
    return _jointly(lambda *x: np.stack(x, axis))(*arrays)


def where(condition, A, B):
    return _jointly(lambda a, b: np.where(_raw(condition), a, b))(A, B)


def divide(A, B):
    A, B = asarray(A, float64), asarray(B, float64)
    q = A.x / B.x
    return Balls(q, None if A.t is None and B.t is None else (tangent(A) - q * tangent(B)) / B.x)


exp, expm1 = _analytic(arb.exp, lambda x, y: y), _analytic(arb.expm1, lambda x, y: y + 1)
log, log1p = _analytic(arb.log, lambda x, y: 1 / x), _analytic(arb.log1p, lambda x, y: 1 / (1 + x))
sin, cos = _analytic(arb.sin, lambda x, y: _map(arb.cos, x)), _analytic(arb.cos, lambda x, y: -_map(arb.sin, x))
sqrt, tanh = _analytic(arb.sqrt, lambda x, y: 0.5 / y), _analytic(arb.tanh, lambda x, y: _map(arb.sech, x) ** 2)
sinh, cosh = _analytic(arb.sinh, lambda x, y: _map(arb.cosh, x)), _analytic(arb.cosh, lambda x, y: _map(arb.sinh, x))
asinh = _analytic(arb.asinh, lambda x, y: _map(arb.rsqrt, 1 + x * x))
atan = _analytic(arb.atan, lambda x, y: 1 / (1 + x * x))


def power(A, p):
    if not isinstance(p, int | float):
        return exp(multiply(p, log(A)))
    return _analytic(lambda a: _power(a, p), lambda x, y: p * _map(lambda a: _power(a, p - 1), x))(A)


def exp2(T):
    return exp(multiply(T, Balls(arb.const_log2())))


def log2(T):
    return divide(log(T), Balls(arb.const_log2()))


def norm(T, axis=None):
    squares = sum(multiply(T, T), axis)
    return sqrt(Balls(_map(arb.nonnegative_part, squares.x), squares.t))


equal, not_equal, less = map(_compared, (operator.eq, operator.ne, operator.lt))
less_equal, greater, greater_equal = map(_compared, (operator.le, operator.gt, operator.ge))
bitwise_and, bitwise_or, bitwise_xor = map(_whole, (np.bitwise_and, np.bitwise_or, np.bitwise_xor))
invert, left_shift, right_shift, argmax = map(_whole, (np.invert, np.left_shift, np.right_shift, np.argmax))
floor_divide, remainder, all, any = map(_whole, (np.floor_divide, np.mod, np.all, np.any))
logical_and, logical_or, logical_not = bitwise_and, bitwise_or, invert


def isinf(T):
    return logical_or(equal(T, inf), equal(T, -inf))


def sign(T):
    return Balls(_signs(T, 0))


def abs(T):
    return multiply(T, sign(T))


def maximum(A, B):
    A, B = _alike((A, B))
    if A.dtype != float64:
        return Balls(np.maximum(A.x, B.x))
    x, t = np.frompyfunc(_larger, 4, 2)(A.x, B.x, tangent(A), tangent(B))
    return Balls(x, None if A.t is None and B.t is None else t)


def minimum(A, B):
    return negative(maximum(negative(asarray(A)), negative(asarray(B))))


def max(T, axis=None, keepdims=False):
    along = ravel(T) if axis is None else moveaxis(T, axis, 0)
    top = functools.reduce(maximum, [along[i] for i in range(along.shape[0])])
    return expand_dims(top, axis) if keepdims else top


def min(T, axis=None, keepdims=False):
    return negative(max(negative(T), axis, keepdims))


def clip(T, min=None, max=None):
    T = T if min is None else maximum(T, min)
    return T if max is None else minimum(T, max)


for _name, _f in {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": divide,
    "matmul": matmul,
    "pow": power,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": left_shift,
    "rshift": right_shift,
    "floordiv": floor_divide,
    "mod": remainder,
}.items():
    setattr(Balls, f"__{_name}__", _f)
    setattr(Balls, f"__r{_name}__", lambda B, A, f=_f: f(A, B))
Balls.__eq__, Balls.__ne__, Balls.__lt__ = equal, not_equal, less
Balls.__le__, Balls.__gt__, Balls.__ge__ = less_equal, greater, greater_equal
Balls.__neg__, Balls.__abs__, Balls.__invert__ = negative, abs, invert
