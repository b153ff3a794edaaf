"""Columns of scores that have no key, and the value 0: what every spine does for the ops on a "column".

They make the sum Z of a row larger, and nothing else: with that Z all formulas stand as they are. What such a column
takes of a row is exp(C − L), and its gradient that times −(D − dL), as its dP is 0.
"""

from attnbook.arrays import array_namespace
from attnbook.ops import Tile, chain

FAR = 20.0
"""Nats above M from where on the score of a column is the shift. Below, M stays, and so does what it holds exactly."""


def add(plan, T, M, Z, unit=1.0):
    """What is left of P, or of O, beside the columns; M and Z with these."""
    xp = array_namespace(Z)
    dead = xp.inf == Z
    M, Z = xp.where(dead, xp.full_like(M, -xp.inf), M), xp.where(dead, xp.zeros_like(Z), Z)
    for step in plan.columns:
        C = _column(step, Z)[0] / unit
        shift = xp.where(C * unit > M * unit + FAR, C, M)
        shift = xp.where(-xp.inf == shift, xp.zeros_like(M), shift)
        own = Z * xp.exp((M - shift) * unit)
        M, Z = shift, own + xp.exp((C - shift) * unit)
        T = T * (own / _no_zeros(xp, Z))  # def-var-sink
    return T, M, _no_zeros(xp, Z)


def vjp(D, res):
    """The gradients of the columns' parameters, by the place of their op, from D − dL."""
    dparams = {}
    for step in res.plan.columns:
        share, saved, table = _share(step, res)
        dparams |= chain.vjp([step], saved, -share * D, table)[1]  # eq-var-sink-vjp
    return dparams


def jvp(tL, tparams, res):
    """The tangent of L, from what the scores of the keys give to it."""
    xp = array_namespace(tL)
    for step in res.plan.columns:
        share, saved, table = _share(step, res)
        tL = tL + share * chain.jvp([step], saved, xp.zeros_like(tL), table, tparams)
    return tL


def vjp_jvp(D, tD, tL, tparams, res):
    """The tangents of what :func:`vjp` gives. The column's tangent is tC, and its share moves by share · (tC − tL)."""
    found = {}
    for step in res.plan.columns:
        share, saved, table = _share(step, res)
        before = chain.tangents([step], saved, array_namespace(tL).zeros_like(tL), table, tparams)
        pair = -share * D, -share * ((before[-1] - tL) * D + tD)
        found |= chain.vjp_jvp([step], saved, pair, before, table, tparams)[1]
    return found


def _column(step, Z):
    """The column's scores, what its op saved, and its table."""
    table = Tile.whole(Z.shape[-2], 1)
    return *chain.forward([step], array_namespace(Z).zeros_like(Z), table), table


def _share(step, res):
    """What the column takes of each row, what its op saved, and its table."""
    unit = getattr(res, "unit", 1.0)
    C, saved, table = _column(step, res.Z)
    return array_namespace(C).exp((C / unit - res.M) * unit) / res.Z, saved, table


def _no_zeros(xp, Z):
    """Z = ∞ where nothing is in the sum."""
    return xp.where(Z == 0, xp.full_like(Z, xp.inf), Z)
