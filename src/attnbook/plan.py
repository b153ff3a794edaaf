"""A call of attention, resolved once, at the door: what every pass reads, so that none asks again."""

from numbers import Number
from typing import Any, NamedTuple, Self

from attnbook.arguments import check_scale, choose
from attnbook.arrays import array_namespace, expected, is_array, is_numpy, kind
from attnbook.ops import Bias, Causal, Mask, Op
from attnbook.spines import NUMPY_TWIN, SPINES, WAYS, Way, pick
from attnbook.types import AnyArray

CORNERS = {
    False: None,
    True: Causal("top-left"),
    "top-left": Causal("top-left"),
    "bottom-right": Causal("bottom-right"),
}
PLACES = ("scores", "column", "weights")
OF_A_MASK = ("allowed", "allows_all", "pattern")


class Plan(NamedTuple):
    """The options of a call, as its passes need them.

    ``ops`` are all of its ops in the order given, each at its corner, ``asked_by`` the arguments that asked for them;
    ``scores``, ``columns`` and ``weights`` are those before the softmax, beside it and after it, as they run, each with
    its place among all; ``only_forbids``, whether the first do nothing else. ``tiles`` and ``kernel`` are the spine's
    own.

    What forbids runs last: the op after it could make of −∞ a number, and the key would be there again.
    """

    shape: tuple[Any, ...]
    widths: tuple[Any, ...]
    scale: float
    ops: tuple[Any, ...]
    asked_by: tuple[Any, ...]
    scores: tuple[Any, ...]
    columns: tuple[Any, ...]
    weights: tuple[Any, ...]
    only_forbids: bool
    spine: str
    tiles: AnyArray | None = None
    kernel: AnyArray | None = None

    def with_ops(self, ops: Any) -> Self:
        """The plan with other ops in their places, which do the same to other arrays."""
        return self._replace(
            ops=tuple(ops),
            scores=tuple((place, ops[place]) for place, _ in self.scores),
            columns=tuple((place, ops[place]) for place, _ in self.columns),
            weights=tuple((place, ops[place]) for place, _ in self.weights),
        )


def resolve(
    given: dict[str, Any],
    shape: tuple[int, ...],
    widths: tuple[int, int],
    *,
    scale: Any = None,
    method: Any = "auto",
    steps: list[Any] | None = None,
    **asked_for: Any,
) -> Plan:
    """The plan, or an error where an option does not fit.

    ``given`` are the arrays of the call by name; the first speaks for library, dtype and device. The scores have
    ``shape``, ``widths`` are d_k and d_v. The ops are ``steps``, or what :func:`steps_of` makes of ``asked_for``.
    """
    like_name, like = next(iter(given.items()))
    steps = steps_of(**asked_for) if steps is None else steps
    if corner := next((op.corner for asked_by, op in steps if asked_by == "causal"), None):
        steps = [(asked_by, op.at_corner(corner)) for asked_by, op in steps]
    for asked_by, op in steps:
        op.check(name_of(asked_by, op), like, like_name, shape)
    scale = check_scale(scale, widths[0])
    if isinstance(method, Way):
        choose("method, spine", method.spine, dict.fromkeys(SPINES))
        spine, tiles = method
    else:
        spine, tiles = choose("method", method, WAYS) or pick(like, shape)
        spine = NUMPY_TWIN.get(spine, spine) if is_numpy(like) else spine
    asked_by, ops = zip(*steps, strict=True) if steps else ((), ())
    on: dict[str, list[Any]] = {place: [] for place in PLACES}
    masks: list[Any] = []
    for step in enumerate(ops):
        (masks if step[1].forbids else on[step[1].on]).append(step)
    scores, columns, weights = map(tuple, on.values())
    only_forbids = len(scores) == 0  # "not" of a tuple is more than torch's compiler can do
    plan = Plan(shape, widths, scale, ops, asked_by, (*scores, *masks), columns, weights, only_forbids, spine, tiles)
    return SPINES[spine].prepare(plan, given)


def steps_of(mask: Any = None, bias: Any = None, causal: Any = False, ops: Any = ()) -> list[Any]:
    """All ops of a call in order, each after the argument that asked for it."""
    steps, forbidden = _with_masks(_ops(ops)) if not isinstance(ops, tuple) or ops else ([], [])
    if bias is not None:
        steps.append(("bias", Bias(bias)))
    if mask is not None:
        steps.append(("mask", Mask(mask)))
    steps += forbidden
    if causal is not False and (op := choose("causal", causal, CORNERS)) is not None:
        steps.append(("causal", op))
    return steps


def _with_masks(ops: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The ops as steps, and a mask for each bias that may hold −∞ before an op that could make of it a number."""
    steps: list[Any] = []
    masks: list[Any] = []
    moved = False  # whether such an op comes later
    for op in reversed(ops):
        if moved and isinstance(op, Bias) and is_array(op.B):
            allowed = float("-inf") != op.B
            op = op.with_arrays({"B": (xp := array_namespace(op.B)).where(allowed, op.B, xp.zeros_like(op.B))})
            masks.append(("mask", Mask(allowed)))
        moved = moved or (op.on == "scores" and not op.forbids and not op.affine)
        steps.append(("ops", op))
    return steps[::-1], masks


def name_of(asked_by: str, op: Op) -> Any:
    """An op in messages."""
    return f"ops, {type(op).__name__}" if asked_by == "ops" else asked_by


def _ops(ops: Any) -> tuple[Any, ...]:
    try:
        ops = tuple(ops)
    except TypeError:
        raise TypeError(expected("ops", "a sequence of ops", kind(ops))) from None
    for op in ops:
        if not isinstance(op, Op):
            raise TypeError(expected("ops", "objects of classes derived from attnbook.ops.Op", kind(op)))
        name = name_of("ops", op)
        if missing := [m for m in ("forward", "vjp", "jvp") if getattr(type(op), m) is getattr(Op, m)]:
            raise TypeError(expected("ops", f"{type(op).__name__} with forward, vjp and jvp", f"no {missing[0]}"))
        if missing := [name for name in op.arrays if not hasattr(op, name)]:
            raise TypeError(expected(f"{name}.arrays", "names of its fields", repr(missing[0])))
        others = {field: T for field, T in vars(op).items() if field not in op.arrays and not isinstance(T, Number)}
        if more := [field for field, T in others.items() if is_array(T)]:
            raise TypeError(expected(f"{name}.arrays", f"also {more[0]!r}, which is an array", op.arrays))
        if op.learns is not None and op.learns not in op.arrays:
            raise TypeError(expected(f"{name}.learns", f"one of {op.arrays}", repr(op.learns)))
        if op.on not in PLACES:
            raise ValueError(expected(f"{name}.on", f"one of {PLACES}", repr(op.on)))
        if op.own_axes is not None and (type(op.own_axes) is not int or op.own_axes < 0):
            raise ValueError(expected(f"{name}.own_axes", "None or a number of axes", repr(op.own_axes)))
        if op.forbids and not (op.on == "scores" and all(hasattr(op, m) for m in OF_A_MASK)):
            raise TypeError(expected(name, "a Masking on the scores, as it forbids", "another Op"))
        if type(op).live is not Op.live and not op.forbids:
            raise TypeError(expected(name, "no live, as it does not forbid", "one"))
    return ops
