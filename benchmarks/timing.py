"""How a time is taken, the same for all: each peer is a process of its own, and they take turns, A B C A B C …

Before each turn there is a pause, in which the threads of the one before stop spinning; then one call that is not
timed, then those that are: one, or as many as take 20 ms. Halfway all begin anew, as the same code can be much
slower in one process than in another. After five rounds or more, a peer whose quartiles lie more than a quarter of the
median apart is unsteady: the whole cell is measured again, and once more, and what is still unsteady is refused. A
refused figure is None, with the reason beside it.
"""

import math
import time

import numpy as np

PAUSE = 0.12  # seconds; the threads of OpenBLAS were seen to spin for 100 ms after their work, OpenMP's for less
SHORT = 0.02  # seconds: calls that take less are timed several at once
SPREAD = 0.25  # quartile to quartile, as a part of the median: the most that is believed
TRIES = 3
ROUNDS = (5, 9)
HURRIED = {"rounds": (2, 2), "pause": 0, "tries": 1}  # does it run?
HOW = (
    "each contender in two processes of its own, one after the other, which keep the pages of freed arrays, in turns; "
    f"before each turn a pause of {PAUSE} s and one untimed call; "
    f"calls under {1e3 * SHORT:.0f} ms: mean of several; median, and quartiles as low and high; where they are more "
    f"than {SPREAD:.0%} of the median apart, the cell was measured up to {TRIES} times, and what stayed so is null"
)


def measure(peers, budget=8.0, rounds=ROUNDS, pause=PAUSE, sleep=time.sleep, tries=TRIES, anew=None):
    """The summary of each peer's seconds, None where they were refused; and why, by name.

    A peer has ``seconds(repeats)``: of a call, after one that is not timed. ``budget``: seconds of one try, which are
    not kept to where ``rounds[0]`` rounds take longer. ``anew(peers)`` is called halfway, and before another try: where
    one process takes 30 % longer than the other, that is unsteady.
    """
    estimates = {name: min(peer.seconds(1) for _ in range(2)) for name, peer in peers.items()}
    repeats = {name: max(1, math.ceil(SHORT / max(seconds, 1e-7))) for name, seconds in estimates.items()}
    round_takes = sum(pause + seconds * (1 + repeats[name]) for name, seconds in estimates.items())
    n = max(rounds[0], min(rounds[1], int(budget / max(round_takes, 1e-9))))
    n += anew is not None and n % 2
    for tried in range(tries):
        times = {name: [] for name in peers}
        for i in range(n):
            if anew and (i == n // 2 or (tried and i == 0)):
                anew(peers)
            for name, peer in peers.items():
                sleep(pause)
                times[name].append(peer.seconds(repeats[name]))
        found = {name: summary(seconds) for name, seconds in times.items()}
        refused = {name: f"{spread(one):.0%} from quartile to quartile" for name, one in found.items() if unsteady(one)}
        if not refused:
            break
    return {name: None if name in refused else one for name, one in found.items()}, refused


def summary(seconds):
    low, median, high = (rounded(np.percentile(seconds, p)) for p in (25, 50, 75))
    return {"median": median, "low": low, "high": high, "runs": len(seconds)}


def spread(one):
    """From quartile to quartile, as a part of the median."""
    return (one["high"] - one["low"]) / one["median"]


def unsteady(one):
    return spread(one) > SPREAD


def rounded(x):
    """Five digits: what is measured here is not known better."""
    return float(f"{x:.5g}")
