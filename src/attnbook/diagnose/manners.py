"""What a function takes: the sizes, axes and dtypes in which ``diagnose`` asks it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Manners:
    """What a function takes.

    ``axes`` are the numbers of axes; ``layout`` is "heads first", "heads third" (b, n, h, d) or "packed" (n, h, d, with
    the lengths of the sequences beside it). ``equal_lengths``: n_q = n_k only. A length is a multiple of ``length_of``
    and at least ``length_from``, and so are the widths of keys and values; ``widths`` are the only ones where there
    are few. ``grouped``: whether query heads may share a key head. ``dtypes``: the one that was asked for first.
    """

    axes: tuple = (2, 3, 4)
    layout: str = "heads first"
    equal_lengths: bool = False
    length_of: int = 1
    length_from: int = 1
    equal_widths: bool = False
    width_of: int = 1
    width_from: int = 1
    widths: tuple | None = None
    grouped: bool = True
    dtypes: tuple = ("float64",)

    def sizes(self, n_q, n_k, d_k, d_v):
        """The nearest sizes that it takes; None where n_q and n_k differ and it takes equal ones only."""
        if self.equal_lengths and n_q != n_k:
            return None
        n_q_, n_k_ = (_up(n, self.length_of, self.length_from) for n in (n_q, n_k))
        if n_q_ == n_k_ and n_q != n_k:  # as far apart as they were, in steps
            n_q_, n_k_ = (n_q_ + self.length_of, n_k_) if n_q > n_k else (n_q_, n_k_ + self.length_of)
        d_k_, d_v_ = (self._width(d) for d in (d_k, d_v))
        if self.equal_widths:
            d_k_ = d_v_ = max(d_k_, d_v_)
        return n_q_, n_k_, d_k_, d_v_

    def _width(self, d):
        if self.widths is not None:
            return min((w for w in self.widths if w >= d), default=max(self.widths))
        return _up(d, self.width_of, self.width_from)


def _up(n, of, least):
    return max(-(-n // of), -(-least // of)) * of
