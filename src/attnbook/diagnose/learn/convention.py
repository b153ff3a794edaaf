"""What a function takes: the sizes, axes and dtypes in which ``diagnose`` asks it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """What a function takes.

    ``axes`` are the numbers of axes; ``layout`` is "heads first", "heads third" (b, n, h, d) or "packed" (n, h, d, with
    the lengths of the sequences beside it). ``equal_lengths``: n_q = n_k only; ``more_queries``: whether n_q may be
    above n_k. A length is a multiple of ``length_of`` and at least ``length_from``, and so are the widths of keys and
    values; ``lengths`` and ``widths`` are the only ones where there are few. ``batch`` and ``heads`` are their only
    numbers, 0 for any. ``grouped``: whether query heads may share a key head. ``dtypes``: the one that was asked for
    first. ``device`` is where the inputs lie, "" for the library's own choice. ``corner`` is what ``causal=True`` means
    to it, "top-left" or "bottom-right"; ``always`` the corner, if it is causal in every call and has no word for that.
    """

    axes: tuple = (2, 3, 4)
    layout: str = "heads first"
    equal_lengths: bool = False
    more_queries: bool = True
    length_of: int = 1
    length_from: int = 1
    lengths: tuple | None = None
    equal_widths: bool = False
    width_of: int = 1
    width_from: int = 1
    widths: tuple | None = None
    batch: int = 0
    heads: int = 0
    grouped: bool = True
    dtypes: tuple = ("float64",)
    device: str = ""
    corner: str = "top-left"
    always: str = ""

    def sizes(self, n_q, n_k, d_k, d_v):
        """The nearest sizes that it takes; None where n_q and n_k differ as it does not take them."""
        if n_q != n_k and (self.equal_lengths or (n_q > n_k and not self.more_queries)):
            return None
        n_q_, n_k_ = (_fitted(n, self.lengths, self.length_of, self.length_from) for n in (n_q, n_k))
        if n_q_ == n_k_ and n_q != n_k:  # as far apart as they were, in steps
            further = _fitted(n_q_ + 1, self.lengths, self.length_of, self.length_from)
            n_q_, n_k_ = (further, n_k_) if n_q > n_k else (n_q_, further)
            if n_q_ == n_k_:
                return None
        d_k_, d_v_ = (_fitted(d, self.widths, self.width_of, self.width_from) for d in (d_k, d_v))
        if self.equal_widths:
            d_k_ = d_v_ = max(d_k_, d_v_)
        return n_q_, n_k_, d_k_, d_v_

    def in_words(self, dtype="float64"):
        """What it takes and what not, a few words each; nothing where it takes all, in the dtype asked for."""
        lines = []
        if self.axes != (2, 3, 4) and self.layout != "packed":
            lines.append(f"{_or(self.axes)} axes only")
        if self.layout != "heads first":
            lines.append({"heads third": "b, n, h, d", "packed": "n, h, d with cu_seqlens"}[self.layout] + " as axes")
        lines += [f"a {name} of {only} only" for name, only in (("batch", self.batch), ("number of heads", self.heads))
                  if only]  # fmt: skip
        for name, few, of, least in (
            ("lengths", self.lengths, self.length_of, self.length_from),
            ("widths", self.widths, self.width_of, self.width_from),
        ):
            if few is not None:
                lines.append(f"{name[:-1] if len(few) == 1 else name} {_or(few)} only")
            elif of > 1:
                lines.append(f"{name} that {of} divides" + (f", from {least}" if least > of else ""))
            elif least > 1:
                lines.append(f"{name} from {least}")
        if self.equal_lengths:
            lines.append("n_q = n_k only")
        elif not self.more_queries:
            lines.append("n_q ≤ n_k only")
        if self.equal_widths:
            lines.append("d_v = d_k only")
        if not self.grouped:
            lines.append("as many key heads as query heads")
        if self.dtypes[0] != dtype:
            lines.append(f"{_or(self.dtypes)} only")
        if self.always:
            lines.append(f"always causal, from the corner at the {self.always.replace('-', ' ')}")
        if self.device:
            lines.append(f"inputs on {self.device}")
        return tuple(lines)


def _fitted(size, few, of, least):
    """The nearest size that is taken, upwards where there is one."""
    if few is not None:
        return min((each for each in few if each >= size), default=max(few))
    return max(-(-size // of), -(-least // of)) * of


def _or(values):
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last
