"""What a round of trials costs, from the seconds of the phases of one: to start it, for each arm, for each repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from launchopt.recording.results import Row

SLOW_START_S = 12.0  # a start takes 2 to 3 s on two cores, and longer to fill the operands of a large vocabulary
FILLED, FIRST_CHECK = "operands filled", "first check of operands"  # phases of a start, however long
OF_ARM = 4.0  # wall times of a repeat that the warm-up run and the audit run of an arm take, beside the checks


class Cost(NamedTuple):
    """Estimated seconds of a round. wall_s: the part of a repeat that grows with the trial."""

    start_s: float
    arm_s: float
    repeat_s: float
    wall_s: float = 0.0

    def of(self, arms: int, repeats: int) -> float:
        """Return the seconds that a round takes."""
        return self.start_s + arms * (self.arm_s + repeats * self.repeat_s)

    def scaled(self, factor: float) -> Cost:
        """Return the cost of trials that run some times as long. Set-up and checks take no longer."""
        more_s = (factor - 1) * self.wall_s
        arm_s, repeat_s = max(0.0, self.arm_s + OF_ARM * more_s), max(0.0, self.repeat_s + more_s)
        return Cost(self.start_s, arm_s, repeat_s, factor * self.wall_s)

    def arms_in(self, seconds: float, repeats: int) -> int:
        """Return the number of arms that can run in some seconds."""
        return max(0, int((seconds - self.start_s) / max(1e-6, self.arm_s + repeats * self.repeat_s)))

    def repeats_in(self, seconds: float, arms: int) -> int:
        """Return the number of repeats of some arms that can run in some seconds."""
        return max(0, int((seconds - self.of(arms, 0)) / (arms * self.repeat_s)))


class Phases(NamedTuple):
    """The seconds of each phase of a round, and the number of repeats whose outputs were compared."""

    seconds: Mapping[str, float] = {}
    compared: int = 0

    def sum(self, *names: str) -> float:
        """Return the seconds of some phases."""
        return sum(self.seconds.get(name, 0.0) for name in names)


UNKNOWN = Cost(2.5, 0.0, 0.0)  # before the first round: a start without compiling, on two cores


def cost_of(rows: Sequence[Row], phases: Phases, arms: int, took_s: float, earlier: Cost = UNKNOWN) -> Cost:
    """Return the cost that a round shows. What its phases and the set-up of its arms do not explain is its start.

    rows: of its repeats, one or more. earlier: of the rounds before. A start that compiles takes long once, so the
    shortest start of all rounds is that of the next one. Beside the operands it is at most SLOW_START_S. Operands are
    compared with what the seed gives once, and by hashes later, which takes far less. The first comparison of an arm's
    outputs belongs to the arm, since repeats with the same outputs are not compared again.
    """
    wall_s = fmean(row["wall_ms"] for row in rows) / 1e3
    arm_s = fmean(row["setup_ms"] or 0.0 for row in rows) / 1e3
    arm_s += phases.sum("warm-up runs", "audit runs") / arms
    repeat_s = phases.sum("timed runs", "saving") / len(rows)
    check_s = max(0.0, phases.sum("checks of outputs") - phases.sum(FIRST_CHECK)) / max(1, phases.compared)
    arm_s += check_s * min(phases.compared, arms) / arms
    repeat_s += check_s * max(0, phases.compared - arms) / len(rows)
    operands_s = phases.sum(FILLED, FIRST_CHECK)
    start_s = operands_s + max(0.0, min(SLOW_START_S, took_s - arms * arm_s - len(rows) * repeat_s - operands_s))
    if earlier != UNKNOWN:
        start_s = min(start_s, earlier.start_s)
    return Cost(start_s, arm_s, repeat_s, wall_s)
