"""The findings of a check: the number of wrong outputs, the largest error, and the first wrong output.

Outputs are compared with their expected values (`verify.ops.Graded`) row by row. The `Verification` has the error and
the bound of the output whose error is the largest share of its bound. It names the earliest wrong token. It names a
command only if all tokens are right, since a wrong token is the result of a wrong command.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.arenas import to_host
from launchopt.types import Array
from launchopt.verify.commands import Report, Verification
from launchopt.verify.ops import Graded, allowed


class CheckProgress:
    """The progress of a check of requests, reported as a number of commands. Its `units` of work take equally long."""

    def __init__(self, commands: int, report: Report) -> None:
        self._commands, self._report = commands, report
        self._units, self._done = 1.0, 0.0

    def expect(self, units: int) -> None:
        """Set the units of the whole check."""
        self._units = float(units)

    def add(self, units: float) -> None:
        """Count units of work that are done."""
        self._done += units
        self._report(round(self._commands * min(1.0, self._done / self._units)))


class Findings:
    """The findings of the check of one run, and its progress. tokens: the number of tokens of the run."""

    def __init__(self, xp: ModuleType, tokens: int, progress: CheckProgress) -> None:
        self._xp, self._tokens, self.progress = xp, tokens, progress
        self.compared = 0  # number of commands compared, counted by the caller
        self._wrong, self._share, self._error, self._bound = 0, -1.0, 0.0, 0.0
        # First wrong output: its token (`tokens`: an output of a command; `tokens` + 1: none yet), and its description.
        self._first: tuple[int, str | None] = (tokens + 1, None)

    def judge(
        self,
        got: Array,
        expected: Graded,
        name: Callable[[int], str],
        numbers: NDArray[np.int64] | None = None,
        columns: int = 1,
        factor: float = 1.0,
    ) -> None:
        """Compare rows of `got`, [rows, features], with the expected rows. Each output has `columns` rows.

        name: returns the description of output i. numbers: the token of each output; None: these are outputs of
        commands. factor: multiplies the bounds.
        """
        xp = self._xp
        limits = factor * allowed(xp, expected)
        compared = ~xp.isinf(expected.variance)
        differences = xp.where(compared, xp.abs(got - expected.value), 0.0)
        squares = xp.where(compared, expected.value, 0.0) ** 2
        rms = xp.sqrt(squares.sum(axis=1) / xp.maximum(compared.sum(axis=1), 1))
        rms = xp.where(rms > 0, rms, 1.0)
        # The error as a share of its bound. NaN in either value exceeds every bound; any error exceeds a bound of 0.
        beyond = xp.where(differences == 0, 0.0, xp.inf)
        shares = xp.where(limits > 0, differences / xp.where(limits > 0, limits, 1.0), beyond)
        shares = xp.where(xp.isnan(shares), xp.inf, shares)
        worst = xp.arange(len(shares)), shares.argmax(axis=1)
        found = shares[worst], differences[worst] / rms, limits[worst] / rms
        share, errors, bounds = (to_host(each).reshape(-1, columns) for each in found)
        at = np.arange(len(share)), share.argmax(axis=1)
        errors, bounds, share = errors[at], bounds[at], share[at]
        errors = np.where(np.isnan(errors), np.inf, errors)
        bounds = np.where(np.isnan(bounds), 0.0, bounds)  # a bound is NaN if the inputs were
        what = [f"error {error:.3g}, allowed {bound:.3g}" for error, bound in zip(errors, bounds, strict=True)]
        closest = int(share.argmax())
        self._note(float(share[closest]), float(errors[closest]), float(bounds[closest]))
        self._add(share > 1, name, what, numbers)

    def refuse(
        self,
        wrong: NDArray[np.bool_],
        name: Callable[[int], str],
        what: list[str],
        bounds: NDArray[np.float64],
        numbers: NDArray[np.int64],
    ) -> None:
        """Add outputs that the caller has compared. wrong: which outputs are wrong. name: as for `judge`.

        what: description of each error. bounds: relative to the rms of the exact row. numbers: token of each output.
        """
        self._note(0.0, 0.0, float(bounds[np.isfinite(bounds)].max(initial=0.0)))
        self._add(wrong, name, what, numbers)

    def _note(self, share: float, error: float, bound: float) -> None:
        """Keep error and bound of the output whose error is the largest share of its bound (of equals, the largest)."""
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
        """Return the result for a run of `commands` commands.

        The count of wrong outputs is limited to `commands`, since an output can be wrong as a token and as a command.
        """
        share = min(1.0, self.compared / commands)
        checked, wrong = min(self.compared, commands), min(self._wrong, commands)
        return Verification(commands, checked, wrong, self._error, self._bound, share, self._first[1])
