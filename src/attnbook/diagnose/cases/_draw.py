"""Draws the cases of the battery, at sizes and with axes that a function takes."""

from dataclasses import replace

import numpy as np


class Draw:
    """Draws cases that a function takes; ``make(name, inputs, options, dtype, optional, memory, why_not)`` makes each.

    ``b`` and ``h`` are the batch and the heads of most cases, ``sizes`` their (n_q, n_k, d_k, d_v). The array of an
    option is drawn when its case is, and has its sizes: :meth:`mask` and the like return what draws it.
    """

    def __init__(self, make, seed, dtype, convention):
        self.make, self.dtype, self.convention = make, dtype, convention
        self.rng = np.random.default_rng(seed)
        n_q, n_k, d_k, d_v = 5, 7, 11, 13
        if seed:
            n_q, n_k = np.sort(self.rng.choice([3, 5, 7, 11], size=2, replace=False)).tolist()
            d_k, d_v = self.rng.choice([2, 13, 17, 19], size=2, replace=False).tolist()
        self.b, self.h, self.sizes = 2, 3, (n_q, n_k, d_k, d_v)
        self._taken = {}

    def case(
        self, name, lead=None, *, of=None, lead_k=None, optional=False, dtype=None, memory=None, apart=False,
        exactly=None, sized=False, **options,
    ):  # fmt: skip
        """A case with leading axes ``lead``, (b, h) if not said, and sizes ``of``, as near as the function takes them.

        It cannot be asked where n_q and n_k must differ (``apart``) and they may not; where one length, "n_q" or
        "n_k", must be as it is (``exactly``) and is not taken; where a head axis is needed and there is none; nor where
        its sizes are its point (``sized``), and come out as those of another case.
        """
        lead, of = (self.b, self.h) if lead is None else lead, of or self.sizes
        shares, lead_k = lead_k is not None, lead if lead_k is None else lead_k
        fitted, why_not = self._fitted(of, apart)
        if exactly and fitted[exactly == "n_k"] != of[exactly == "n_k"]:
            why_not = f"it does not take a length of {of[exactly == 'n_k']}"
        if shares and (self.convention.heads or not self.convention.grouped):
            why_not = "it does not take key heads that are shared"
        lead, lead_k = self._led(lead), self._led(lead_k)
        if not lead and (shares or "sink" in options or "slopes" in options):
            why_not = "it takes no axis of heads"
            options = {key: value for key, value in options.items() if key not in ("sink", "slopes")}
        if sized and not why_not:
            first = self._taken.setdefault((fitted, lead, *options), name)
            why_not = "" if first == name else f'at the sizes that it takes, it is "{first}"'
        n_q, n_k, d_k, d_v = fitted
        options = {key: T(lead, n_q, n_k) if callable(T) else T for key, T in options.items()}
        Q, K, V = (self.rng.standard_normal(s) for s in ((*lead, n_q, d_k), (*lead_k, n_k, d_k), (*lead_k, n_k, d_v)))
        inputs = (Q, K, V, self.rng.standard_normal((*lead, n_q, d_v)))
        return self.make(name, inputs, options, dtype or self.dtype, optional, memory or {}, why_not)

    # --- arrays of options: what draws them, once the sizes are known

    def table(self, *letters):
        """A normal one that broadcasts to the scores; each letter is "b", "h", "q", "k", or a number."""
        return lambda *sizes: self.rng.standard_normal(self._shape(letters, *sizes))

    def mask(self, *letters, dead=False):
        """A mask, where by chance no row is dead, also under causal, and none allows all; or one row is, on purpose."""

        def draw(*sizes):
            M = self.rng.random(self._shape(letters, *sizes)) < 0.5
            M[..., 0], M[..., 1] = True, False
            if dead:
                M[..., 1, :] = False
            return M

        return draw

    def of_heads(self):
        """A number for each head."""
        return lambda lead, n_q, n_k: self.rng.standard_normal(lead[-1:])

    def of_rows(self):
        """A number for each query."""
        return lambda lead, n_q, n_k: self.rng.standard_normal((*lead, n_q))

    def _shape(self, letters, lead, n_q, n_k):
        sizes = dict(zip("bh", (1, 1, *lead)[-2:], strict=True)) | {"q": n_q, "k": n_k}
        shape = tuple(sizes.get(letter, letter) for letter in letters)[-len(lead) - 2 :]
        return shape if len(shape) in self.convention.axes else (1,) * (len(lead) + 2 - len(shape)) + shape

    # --- whole cases

    def angles(self, of):
        """cos and sin of what the positions turn each pair of columns by, at the sizes nearest to these."""
        n, _, d_k, _ = self._fitted(of, apart=False)[0]
        angles = np.arange(n)[:, None] * 100.0 ** (-2 * np.arange(d_k // 2) / d_k)
        return {"cos": np.cos(angles), "sin": np.sin(angles)}

    def turning(self, name, n):
        """A case that turns queries and keys by their positions."""
        _, _, d_k, d_v = self.sizes
        of = (n, n, d_k + d_k % 2, d_v)
        return self.case(name, of=of, optional=True, **self.angles(of))

    def telling(self, name, n, p):
        """A case of dropout."""
        (_, wide, *_), _ = self._fitted((n, n, n, n), apart=False)
        return self.told(self.case(name, of=(n, n, self.sizes[2], wide), optional=True, dropout=p))

    def told(self, case):
        """The case with values whose O and dV tell which weights were kept: V and dO are 1 on the diagonal, else 0."""
        Q, K, V, dO = case.inputs
        n_k, d_v = V.shape[-2:]
        why_not = case.why_not or ("" if n_k <= d_v else f"its values are no wider than {d_v}, so its O does not tell")
        inputs = (Q, K, *(np.broadcast_to(np.eye(*T.shape[-2:]), T.shape).copy() for T in (V, dO)))
        return replace(case, inputs=inputs, why_not=why_not)

    # --- what the function takes

    def _fitted(self, of, apart):
        """(the sizes nearest to ``of`` that it takes, why there are none as they are needed, or "")."""
        empty = [n == 0 for n in of]
        of = tuple(max(n, 1) for n in of)
        fitted, why_not = self.convention.sizes(*of), ""
        if fitted is None:
            longest = max(of[:2])
            fitted = self.convention.sizes(longest, longest, *of[2:])
            only = "as many queries as keys only" if self.convention.equal_lengths else "no more queries than keys"
            why_not = f"it takes {only}" if apart else ""
        return tuple(0 if none else size for size, none in zip(fitted, empty, strict=True)), why_not

    def _led(self, lead):
        """The leading axes in a number that it takes, with axes of length 1 in front or without the first ones, and as
        long as it takes them.
        """
        ranks = [axes - 2 for axes in self.convention.axes]
        more = [rank for rank in ranks if rank >= len(lead)]
        lead = (1,) * (min(more) - len(lead)) + lead if more else lead[len(lead) - max(ranks) :]
        only = (self.convention.batch, self.convention.heads)[2 - min(2, len(lead)) :]
        return lead[: -len(only)] + tuple(count or n for count, n in zip(only, lead[-len(only) :], strict=True))
