"""The steps of one run in order, on one tile: what every spine does with its ops.

``on`` picks the steps that act on the "scores", before the softmax, or on the "weights", after it.
"""

from attnbook.arrays import array_namespace, broadcasts_to, device


def forward(steps, T, tile, on):
    """T after every op that acts on ``on``, and the steps, these with what they saved."""
    done = []
    for step in steps:
        if step.on == on:
            T, saved = step.op.forward(T, tile)
            step = step._replace(saved=saved)
        done.append(step)
    return T, tuple(done)


def vjp(steps, dT, tile, on):
    """The gradient before these ops, and that of each step's parameter, by the step's place."""
    dparams = {}
    for place, step in reversed(list(enumerate(steps))):
        if step.on == on:
            dT, dparams[place] = step.op.vjp(dT, step.saved, tile)
    return dT, dparams


def collect(dparams, of_tile, steps, tile, block):
    """Add the parameters' gradients of one tile, by the step's place, to those of the ``block`` that it lies in.

    The gradient of a parameter that lies over the table comes cut to the tile; any other, whole.
    """
    for place, dparam in of_tile.items():
        if dparam is None:
            continue
        shape = tuple(steps[place].op.parameter.shape)
        # A table of distances may have as many entries as there are keys, or as a tile has, by chance.
        over_table = broadcasts_to(shape[-2:], (tile.n_q, tile.n_k)) and tuple(dparam.shape) == tile.shape(shape)
        if place not in dparams:
            whole = block.shape(shape) if over_table else shape
            xp = array_namespace(dparam)
            dparams[place] = xp.zeros(whole, dtype=dparam.dtype, device=device(dparam))
        at = tile.within(block).index(dparams[place].shape) if over_table else ...
        dparams[place][at] += dparam


def jvp(steps, tT, tile, tparams, on):
    """The tangent after these ops."""
    for step, tparam in zip(steps, tparams, strict=True):
        if step.on == on:
            tT = step.op.jvp(tT, step.saved, tile, tparam)
    return tT


def live(steps, tile):
    """The part of the tile that no op forbids as a whole. It may be empty."""
    for step in steps:
        if tile and hasattr(step.op, "live"):
            tile = step.op.live(tile)
    return tile
