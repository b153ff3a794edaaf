"""Finds out what a function takes, from the simplest call on. Chapter: :doc:`/chapters/in_the_wild`.

First what every function may take: few rows, odd widths, two axes. Where that is refused, what the narrowest kernels
take, and from there each limit by itself. What is taken once and refused later is no limit, but a mistake.
"""

from dataclasses import dataclass, replace

import numpy as np

from attnbook.diagnose.case import Case
from attnbook.diagnose.learn.convention import Convention
from attnbook.diagnose.learn.options import MERGED, bottom_right
from attnbook.diagnose.learn.safely import Clock
from attnbook.diagnose.steps import Steps

SIZES = ((128, 64), (16, 16), (4, 4), (256, 128), (8, 8), (64, 32), (512, 64), (64, 80))
"""The (length, width) at which narrow functions are asked first, what 128 and 64 divide, then less and more."""

LEADS = ((2, 2), (1, 1), (1, 2), (2, 1), (1, 8), (4, 4))
"""The (batch, heads) at which they are asked."""

STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS, WIDTHS = (5, 8, 16, 32, 64, 128, 256, 512), (11, 8, 16, 32, 64, 80, 96, 128, 256)
SECONDS, TRIES = 2.0, 500
"""When to stop looking for anything that it takes."""


@dataclass(frozen=True)
class Ask:
    """One small call."""

    axes: int = 2
    layout: str = "heads first"
    dtype: str = "float64"
    n_q: int = 5
    n_k: int = 7
    d_k: int = 11
    d_v: int = 13
    b: int = 2
    h: int = 3
    h_k: int = 3
    device: str = ""
    causal: bool = False

    def case(self):
        """The same as a case of the battery."""
        rng = np.random.default_rng(0)
        lead = ((), (self.h,), (self.b, self.h))[self.axes - 2]
        lead_k = (*lead[:-1], self.h_k) if lead else ()
        shapes = (*lead, self.n_q, self.d_k), (*lead_k, self.n_k, self.d_k), (*lead_k, self.n_k, self.d_v)
        inputs = tuple(rng.standard_normal(shape) for shape in (*shapes, (*lead, self.n_q, self.d_v)))
        return Case(self.in_words(), inputs, {"causal": True} if self.causal else {}, self.dtype)

    def convention(self):
        """How it is handed over."""
        return Convention(axes=(self.axes,), layout=self.layout, dtypes=(self.dtype,), device=self.device)

    def sized(self, n=None, d=None, n_k=None, d_v=None):
        """The same in other sizes; n_k and d_v are n and d if not said."""
        n, d = n or self.n_q, d or self.d_k
        return replace(self, n_q=n, n_k=n_k or n, d_k=d, d_v=d_v or d)

    def in_words(self):
        """What it is, in short."""
        shape = {2: "n, d", 3: "h, n, d", 4: "b, h, n, d"}[self.axes]
        shape = {"heads third": "b, n, h, d", "packed": "n, h, d"}.get(self.layout, shape)
        lengths = f"n = {self.n_q}" if self.n_q == self.n_k else f"n_q = {self.n_q}, n_k = {self.n_k}"
        widths = f"d = {self.d_k}" if self.d_k == self.d_v else f"d_k = {self.d_k}, d_v = {self.d_v}"
        return f"({shape}) {self.dtype}{' on ' * bool(self.device)}{self.device}, {lengths}, {widths}"


class Learner:
    """Asks ``call(case, convention)``, and remembers the answers.

    ``tries`` are the refusals, {what was asked: what came}; ``crashed`` those (case, came) that were no statement
    of the function's own, and may be its mistake; ``too_long`` whether an answer did not come.
    """

    def __init__(self, call, arrays, signature, dtype):
        self.call, self.arrays, self.signature = call, arrays, signature
        others = [each for each in ("float32", "float16", "bfloat16", "float64") if each != dtype]
        self.dtypes = [dtype, *(each for each in others if each in arrays.dtypes)]
        self.answers, self.tries, self.crashed, self.too_long = {}, {}, [], False
        self.clock = Clock()

    def came(self, ask):
        """What came of it."""
        if ask not in self.answers:
            came = self.answers[ask] = self.call(ask.case(), ask.convention())
            self.too_long |= came.kind == "too long"
            if came.kind in ("raised", "not run"):
                self.tries[ask.in_words()] = came
        return self.answers[ask]

    def whys(self):
        """{what was asked: what was raised}, what came furthest first; the same statement says the same."""
        tries, said = sorted(self.tries.items(), key=lambda each: each[1].reached, reverse=True), {}
        return {
            what: said.setdefault(came.reached or came.text, came.text.removeprefix("it raised "))
            for what, came in tries
        }

    def takes(self, ask):
        """Whether it is taken: anything that comes is an answer, and so is nothing in time."""
        return self.too_long or self.came(ask).kind not in ("raised", "not run")

    def convention(self, quick=False):
        """What it takes; None where nothing is taken, if ``quick`` where it looks to want other arrays."""
        base = simple = self._simple()
        if base is None:
            if quick and all(why.startswith(("TypeError", "AttributeError")) for why in self.whys().values()):
                return None
            base = self._narrow()
        if base is None or (quick and self.came(base).kind == "returned"):
            return None  # the latter as of a function that turns these arrays into those of another library
        if simple is None:
            return self._relaxed(base)
        return replace(self._with_axes(base), corner=self._corner(base))

    # --- what it takes at all

    def _simple(self):
        """The first of the simple calls that it takes."""
        for device in self.arrays.devices:
            for dtype in self.dtypes:
                for axes, layout in ((2, "heads first"), (4, "heads first"), (4, "heads third"), (3, "heads first")):
                    if (axes, layout) != (4, "heads first") and self.signature.packed:
                        continue
                    layout = "packed" if self.signature.packed else layout
                    ask = Ask(axes=axes, layout=layout, dtype=dtype, device=device)
                    if self.takes(ask):
                        return ask
        return None

    def _with_axes(self, base):
        dtypes = tuple(each for each in self.dtypes if base.dtype != self.dtypes[0] and self.takes(_as(base, each)))
        convention = replace(base.convention(), dtypes=dtypes or (base.dtype,))
        return replace(convention, axes=self._axes(base))

    def _axes(self, base):
        """The numbers of axes that it takes; where sizes do not fit, as a wrong transpose has it, it may still run."""
        if base.layout != "heads first":
            return (4,)

        def taken(axes):
            equal = replace(base, axes=axes, b=4, h=4, h_k=4, n_q=4, n_k=4, d_k=4, d_v=4)
            return self.takes(replace(base, axes=axes)) or self.takes(equal)

        return tuple(axes for axes in (2, 3, 4) if axes == base.axes or taken(axes))

    def _narrow(self):
        """The first call that it takes among those for narrow functions; one whose O has the right shape, if any."""
        shapeless = None
        for n, d in SIZES:
            before = len(self.tries)
            for b, h in LEADS:
                for ask in self._at(n, d, b, h):
                    if self.takes(ask) and self._shaped(ask):
                        return self._in_its_layout(ask)
                    shapeless = shapeless or (ask if self.takes(ask) else None)
                    if len(self.tries) > TRIES or self.clock.spent > SECONDS:
                        return shapeless
            if len({came.text for came in list(self.tries.values())[before:]}) == 1 and n != SIZES[0][0]:
                return shapeless  # whatever the sizes are, it says the same
        return shapeless

    def _shaped(self, ask):
        """Whether what came is no table by accident, of a shape that broadcasting made."""
        came = self.came(ask)
        return came.kind != "values" or came.values["O"].shape == came.inputs[3].shape

    def _at(self, n, d, b, h):
        layout = "packed" if self.signature.packed else "heads first"
        for device in self.arrays.devices:
            for dtype in self.dtypes:
                for axes in (4,) if self.signature.packed else (4, 3, 2):
                    if axes > 2 or (b, h) == LEADS[0]:
                        yield Ask(axes, layout, dtype, n, n, d, d, b, h, h, device)
                    if axes == 4 and layout == "heads first":
                        yield Ask(axes, "heads third", dtype, n, n, d, d, b, h, h, device)

    def _in_its_layout(self, ask):
        """Where heads and rows are as many for queries and keys, both layouts run: the one in which O is right."""
        if ask.axes != 4 or ask.layout != "heads first":
            return ask
        third = replace(ask, layout="heads third")
        if not self.takes(third) or self._right(ask):
            return ask
        names = self.signature.names or frozenset()
        by_name = bool({"window_size", "local_window_size", "softmax_scale", "attn_bias"} & names)
        return third if self._right(third) or by_name else ask

    def _right(self, ask, **options):
        came = self.came(ask)
        if came.kind != "values":
            return False
        right = Steps(*came.inputs, **options or came.options).O
        O = came.values["O"]
        return O.shape == right.shape and bool(np.max(np.abs(O - right)) <= 0.02 * np.max(np.abs(right)))

    # --- each limit by itself

    def _relaxed(self, base):
        lengths, n, n_2 = self._few(base, LENGTHS, lambda size: base.sized(n=size), base.n_q)
        widths, d, d_2 = self._few(base, WIDTHS, lambda size: base.sized(d=size), base.d_k)
        small = base.sized(n=n, d=d)
        small = small if self.takes(small) else base
        more_keys = self._takes_too(small.sized(n=n, n_k=n_2))
        more_queries = self._takes_too(small.sized(n=n_2, n_k=n))
        equal_widths = not (self._takes_too(small.sized(d=d, d_v=d_2)) and self._takes_too(small.sized(d=d_2, d_v=d)))
        of, least, few = lengths
        convention = Convention(
            layout=base.layout,
            axes=self._axes(small),
            equal_lengths=not more_keys, more_queries=more_queries, length_of=of, length_from=least, lengths=few,
            equal_widths=equal_widths, width_of=widths[0], width_from=widths[1], widths=widths[2],
            batch=0 if base.axes < 4 or self.takes(replace(small, b=3)) else base.b,
            heads=0 if base.axes < 3 or self.takes(replace(small, h=3, h_k=3)) else base.h,
            grouped=base.axes > 2 and self.takes(replace(small, h=4, h_k=2)),
            dtypes=tuple(each for each in self.dtypes if self.takes(_as(small, each))),
            device=base.device,
        )  # fmt: skip
        return replace(convention, corner=self._corner(small.sized(n=n, n_k=n_2) if more_keys else small))

    def _takes_too(self, ask):
        """Whether it is taken; where it is refused by no statement of the function's own, that is remembered."""
        if self.takes(ask):
            return True
        came = self.came(ask)
        if came.kind == "raised" and not came.refused:
            self.crashed.append((ask.case(), came))
        return False

    def _few(self, base, sizes, at, taken):
        """((multiple of, at least, the only ones), the smallest, the next one)."""
        accepted = [size for size in sizes if size < taken and self.takes(at(size))] + [taken]
        if sizes[0] in accepted:
            return (1, 1, None), sizes[0], sizes[0] + 2
        least = min(accepted)
        step = next((step for step in STEPS if step <= max(8, least) and self.takes(at(least + step))), None)
        if step is not None and (step < 4 or self.takes(at(least + 2 * step))):
            return (step, least, None), least, least + step
        few = tuple(sorted(size for size in {*sizes, taken} if self.takes(at(size))))
        return (1, 1, few), few[0], few[1] if len(few) > 1 else few[0]

    def always(self, convention):
        """The corner from which it is causal in every call, where it has no word for it; or ""."""
        names = self.signature.names
        if names is None or names & {"causal", "is_causal", "mask", "window", *MERGED}:
            return ""
        asks = [
            ask for ask, came in self.answers.items()
            if came.kind == "values" and ask.layout == convention.layout and min(ask.n_q, ask.n_k) > 1
        ]  # fmt: skip
        for corner in ("", "top-left", "bottom-right"):
            if any(self._right(ask, causal=corner or False) for ask in asks):
                return corner
        return ""

    def _corner(self, base):
        """What causal=True means, where the names of the signature leave it open."""
        if not bottom_right(self.signature.names, self.arrays.name):
            return "top-left"
        ask = replace(base, causal=True)
        if base.n_q == base.n_k or not self.takes(ask):
            return "bottom-right"
        return "top-left" if self._right(ask) else "bottom-right"


def _as(ask, dtype):
    return replace(ask, dtype=dtype)
