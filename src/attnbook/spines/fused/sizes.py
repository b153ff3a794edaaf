"""The sizes of tiles. ROOMY and FLOAT32, to a width of 128: the fastest of benchmarks/gpu_tiles.py on an H200, or near.
The others, and all for the bias: what others use, and so that the compiler spills few registers."""

from functools import cache
from typing import NamedTuple


class Blocks(NamedTuple):
    """Queries and keys of a tile, and how many warps and loads in flight work on it."""

    rows: int
    cols: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """Those of each kernel."""

    forward: Blocks
    keys: Blocks
    queries: Blocks
    bias: Blocks


ROOM = 166 * 1000
"""The bytes of shared memory that ROOMY needs: A100, H100 and later ones for servers have them, others 100 kB."""

# pairs of the widest head and the size for it
ROOMY = Tiles(
    forward=((128, Blocks(64, 64, 4, 3)), (256, Blocks(64, 32, 4, 2))),
    keys=((64, Blocks(64, 64, 4, 3)), (128, Blocks(32, 64, 4, 3)), (256, Blocks(32, 64, 8, 1))),
    queries=((64, Blocks(64, 64, 4, 3)), (128, Blocks(128, 64, 8, 3)), (256, Blocks(64, 32, 8, 1))),
    bias=((256, Blocks(64, 64, 8, 1)),),
)
NARROW = Tiles(
    forward=((128, Blocks(64, 64, 4, 2)), (256, Blocks(64, 32, 8, 1))),
    keys=((128, Blocks(32, 64, 4, 2)), (256, Blocks(32, 32, 8, 1))),
    queries=((128, Blocks(64, 32, 4, 2)), (256, Blocks(32, 32, 4, 1))),
    bias=((128, Blocks(64, 64, 4, 1)), (256, Blocks(32, 32, 4, 1))),
)
FLOAT32 = Tiles(
    ((64, Blocks(32, 32, 4, 1)), (128, Blocks(32, 64, 8, 1)), (256, Blocks(32, 32, 8, 1))),
    *(((64, Blocks(32, 64, 8, 1)), (128, Blocks(32, 32, 4, 1)), (256, Blocks(16, 16, 4, 1))),) * 2,
    bias=((128, Blocks(32, 32, 8, 1)), (256, Blocks(16, 16, 4, 1))),
)


def tiles(itemsize, widths, biased, room):
    """The tiles for numbers of so many bytes and heads of these widths, with a bias or without, in so much ``room``."""
    sizes = FLOAT32 if itemsize == 4 else ROOMY if room >= ROOM else NARROW
    # Each load in flight brings a tile of the bias along: three of these do not fit, and no two of 128 × 128.
    wide, stages = (max(*widths, 128), 2) if biased else (max(widths), 3)
    found = (next(size for widest, size in pairs if wide <= widest) for pairs in sizes)
    return Tiles(*(size._replace(stages=min(size.stages, stages)) for size in found))


def room(T):
    """Bytes of shared memory that a program may have where the tensor lies; enough where no GPU is."""
    return _of_gpu(T.device.index) if T.is_cuda else ROOM


@cache
def _of_gpu(index):
    import torch

    return torch.cuda.get_device_properties(index).shared_memory_per_block_optin
