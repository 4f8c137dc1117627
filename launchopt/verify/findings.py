"""What a check has found: how many outputs are wrong, the largest error, and which is the first to be wrong.

In: outputs and what they should be, as `verify_ops.Graded`, row by row. Out: a `Verification`, with the error and the
bound of that output which comes closest to its bound, or goes furthest beyond it. The earliest wrong token is named; a
command only where every token is right, since what is wrong with a token is wrong with a command of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.verify.commands import Verification
from launchopt.verify.ops import Graded, allowed


class Findings:
    """Of one run; `tokens`: how many it has."""

    def __init__(self, xp: Any, tokens: int) -> None:
        self._xp, self._tokens = xp, tokens
        self.compared = 0  # commands
        self._wrong, self._share, self._error, self._bound = 0, -1.0, 0.0, 0.0
        self._first: tuple[int, str | None] = (tokens + 1, None)  # its token (`tokens` for a command), what it is

    def judge(
        self,
        got: Any,
        expected: Graded,
        name: Callable[[int], str],
        numbers: NDArray[np.int64] | None = None,
        columns: int = 1,
        factor: float = 1.0,
    ) -> None:
        """Compare rows of `got` [rows, features], so many `columns` of each output.

        name(i) says what output i is, numbers[i] which token (None: these are commands). `factor` widens the bound.
        """
        xp = self._xp
        limits = factor * allowed(xp, expected)
        compared = ~xp.isinf(expected.variance)
        differences = xp.where(compared, xp.abs(got - expected.value), 0.0)
        squares = xp.where(compared, expected.value, 0.0) ** 2
        rms = xp.sqrt(squares.sum(axis=1) / xp.maximum(compared.sum(axis=1), 1))
        rms = xp.where(rms > 0, rms, 1.0)
        # How close each comes to its bound: NaN, on either side, and what must be exact and is not are beyond it.
        beyond = xp.where(differences == 0, 0.0, xp.inf)
        shares = xp.where(limits > 0, differences / xp.where(limits > 0, limits, 1.0), beyond)
        shares = xp.where(xp.isnan(shares), xp.inf, shares)
        worst = xp.arange(len(shares)), shares.argmax(axis=1)
        found = shares[worst], differences[worst] / rms, limits[worst] / rms
        share, errors, bounds = (to_host(each).reshape(-1, columns) for each in found)
        at = np.arange(len(share)), share.argmax(axis=1)
        errors, bounds, share = errors[at], bounds[at], share[at]
        errors = np.where(np.isnan(errors), np.inf, errors)
        bounds = np.where(np.isnan(bounds), 0.0, bounds)  # of what follows from no number
        what = [f"error {error:.3g}, allowed {bound:.3g}" for error, bound in zip(errors, bounds, strict=True)]
        closest = int(share.argmax())
        self._note(float(share[closest]), float(errors[closest]), float(bounds[closest]))
        self._add(share > 1, name, what, numbers)

    def refuse(
        self, wrong: NDArray[np.bool_], name: Callable[[int], str], what: list[str], bounds: Any, numbers: Any
    ) -> None:
        """Outputs that were judged elsewhere, by bounds relative to the rms."""
        self._note(0.0, 0.0, float(bounds[np.isfinite(bounds)].max(initial=0.0)))
        self._add(wrong, name, what, numbers)

    def _note(self, share: float, error: float, bound: float) -> None:
        """Error and bound of the output that comes closest to its bound."""
        if (share, bound) > (self._share, self._bound):
            self._share, self._error, self._bound = share, error, bound

    def _add(
        self, wrong: NDArray[np.bool_], name: Callable[[int], str], what: list[str], numbers: NDArray[np.int64] | None
    ) -> None:
        self._wrong += int(wrong.sum())
        if wrong.any():
            order = np.flatnonzero(wrong)
            at = int(order[0] if numbers is None else order[np.argmin(numbers[order])])
            number = self._tokens if numbers is None else int(numbers[at])
            if number < self._first[0]:
                self._first = number, f"{name(at)}: {what[at]}"

    def verdict(self, commands: int) -> Verification:
        """Over a run of so many commands; an output may be wrong as a token and as a command."""
        share = min(1.0, self.compared / commands)
        return Verification(commands, min(self._wrong, commands), self._error, self._bound, share, self._first[1])


def to_host(values: Any) -> Any:
    """As NumPy's."""
    return values if isinstance(values, np.ndarray) else values.get()
