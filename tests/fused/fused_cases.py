"""Cases for the fused spine, and what must hold there. Nothing here is a test: three files of tests share it.

The cases cover: each pair of what the kernels are given occurs in one of them, on several tiles. So one table and one
law stand for what else would be a test for each option.
"""

from functools import partial

import torch
from cases import CASES, Case, Slopes
from compare import draw
from kernels import DEVICE
from naive import as_exact_as_plain

import attnbook as ab
from attnbook.diagnose.cases.covering import cover
from attnbook.ops import ALiBi, Sink, Softcap, Window
from attnbook.plan import resolve
from attnbook.spines.fused.capability import kernel_of

FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16


def fits(case):
    """Whether the kernels can do what it asks for, as its ops declare."""
    Q, K, V, *rest = case.draw()
    plan = resolve({"Q": Q, "K": K, "V": V}, case.scores, (Q.shape[-1], V.shape[-1]), **case.options(Q, *rest))
    return kernel_of(plan) is not None


# --- what the kernels are given, every pair of it -----------------------------------------------------------------

LEAD = {  # leading axes of Q, K and V
    "no axes": ((), (), ()),
    "heads": ((2,), (2,), (2,)),
    "grouped": ((4,), (2,), (2,)),
    "batch, grouped apart": ((2, 2), (2, 1), (2, 2)),
    "crossing": ((2, 1), (1, 3), (3,)),
}
FACTORS = {
    "lead": tuple(LEAD),
    "bias": ("", "bias", "bias of the batch", "bias of keys", "−∞", "ALiBi", "slopes ↔"),
    "mask": ("", "mask, dead", "table", "keys", "padding"),
    "sizes": ((21, 53), (35, 33), (32, 32), (5, 7)),
    "widths": ((11, 19), (1, 17), (16, 32), (72, 1)),
    "window": (None, (9, 3, "top-left"), (20, 0, "bottom-right"), (16, None, "top-left"), (1, 2, "top-left")),
    "causal": (False, True, "bottom-right"),
    "layout": ("", "turned", "spread"),
    "dtype": (FLOAT32, FLOAT16, BFLOAT16),
    "scale": (None, -0.7),
    "cap": (False, True),
    "sink": (False, True),
    "dL": (False, True),
}


def impossible(row):
    """What has no axis to be shared, or to be dead in; and, for their time, many heads of many tiles."""
    return (
        (row["mask"] == "mask, dead" and row["bias"] == "bias of keys")
        or (row["lead"] in ("no axes", "heads", "grouped") and row["mask"] == "padding")
        or (row["lead"] == "no axes" and row["bias"] == "bias of the batch")
        or (row["lead"] == "crossing" and row["sizes"] != (5, 7))
    )


def case_of(row):
    """The case that a row stands for, named by what it has."""
    (n_q, n_k), (d_k, d_v) = row["sizes"], row["widths"]
    q, k, v = LEAD[row["lead"]]
    given = {"q": (*q, n_q, d_k), "k": (*k, n_k, d_k), "v": (*v, n_k, d_v)}
    *batch, h = Case("", **given).scores[:-2] or (1,)
    heads, of_heads = ((), ()) if row["lead"] == "no axes" else ((*batch, h), (h,))
    shapes = {
        "bias": (*heads, n_q, n_k), "bias of the batch": (*batch, 1, n_q, n_k),
        "bias of keys": (*of_heads, 1, n_k), "−∞": (n_q, n_k), "mask, dead": (*heads, n_q, n_k),
        "table": (n_q, n_k), "keys": (n_k,), "padding": (*batch, 1, 1, n_k),
    }  # fmt: skip
    ops = [(partial(Softcap, 1.5), None)] * row["cap"]
    if row["bias"] in ("ALiBi", "slopes ↔"):
        corner, axes = ("top-left", of_heads) if row["bias"] == "ALiBi" else ("bottom-right", (*heads, 1, 1))
        ops.append((partial(ALiBi, corner=corner), axes))
    if row["window"]:
        ops.append((partial(Window, *row["window"]), None))
    ops += [(Sink, of_heads)] * row["sink"]
    given |= {"mask": shapes.get(row["mask"]), "bias": shapes.get(row["bias"]), "ops": tuple(ops)}
    given |= {"dead": row["mask"] == "mask, dead", "forbid": 0.3 * ("−∞" in row["bias"])}
    of = Slopes if row["bias"] in ("ALiBi", "slopes ↔") else Case
    words = [str(x) for x in row.values() if not isinstance(x, bool) and x]
    words += [name for name, x in row.items() if x is True]
    return of(", ".join(words), scale=row["scale"], causal=row["causal"], **given)


HOW = "dtype", "layout", "dL"
ROWS = [(case_of(row), {name: row[name] for name in HOW}) for row in cover(FACTORS, forbids=impossible)]

holds = partial(as_exact_as_plain, put=lambda T: T.to(DEVICE), method="fused")


# --- other laws ---------------------------------------------------------------------------------------------------

OF = {case.name: case for case in CASES}
LONG = Case("several tiles", q=(2, 37, 11), k=(2, 53, 11), v=(2, 53, 19))


def attend(case, dtype=FLOAT32, seed=0):
    """O, the residuals, and a cotangent, of the fused spine; and the inputs."""
    inputs = [torch.tensor(T, dtype=dtype, device=DEVICE) for T in case.draw(seed)]
    O, res = ab.attention(*inputs[:3], method="fused", **case.options(inputs[0], *inputs[3:]))
    return O, res, torch.tensor(draw(tuple(O.shape))[0], dtype=dtype, device=DEVICE), inputs
