"""The noise between processes: how much wall time differs between runs of the same work in new processes.

A comparison of two runs of one process each needs it (docs/compare.md). The doctor runs a small workload with
`processes=N` in a program of its own, and keeps the result as a floor of the calibration.
"""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.tables.rows import by_process
from launchopt.analysis.verdict.calibration import PERCENT
from launchopt.devices.launch_breakdown import Floor
from launchopt.errors import RunError
from launchopt.recording.results import Row, read_summaries
from launchopt.scratch import scratch
from launchopt.statistics.processes import process_noise
from runner.worker.lifeline import run_bound

COMMANDS = {"cpu": 2_000, "cuda": 60_000}  # about a second a repeat
REPEATS = 5
MODES = ("baseline", "batched")


def measure_noise(kind: str, index: int, processes: int) -> Floor:
    """Run the workload in `processes` sets of processes and return the noise; RunError if the run fails."""
    with scratch() as folder:
        words = [
            *(
                "workload=gemv_micro",
                f"workload.commands={COMMANDS[kind]}",
                f"mode={MODES[1]}",
                f"against=[{MODES[0]}]",
            ),
            *(f"repeats={REPEATS}", f"processes={processes}", f"device={kind}", f"device.index={index}"),
            f"hydra.run.dir={folder}/run",
        ]
        done = run_bound(words)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            raise RunError(said[-1].removeprefix("error: ") if said else f"exit code {done.returncode}")
        return noise_floor(read_summaries([folder]))


def noise_floor(rows: Sequence[Row]) -> Floor:
    """Return the noise of the mode that has more; RunError if there are too few processes."""
    found = [process_noise(by_process([row for row in rows if row["mode"] == mode], "wall_ms")) for mode in MODES]
    noises = [noise for noise in found if noise is not None]
    if len(noises) < len(MODES):
        raise RunError("too few processes")
    most = max(noises, key=lambda noise: noise.deviation)
    how = f"standard deviation of wall time; gemv_micro, the noisier of {' and '.join(MODES)}, {REPEATS} repeats each"
    return Floor(100 * most.deviation, PERCENT, None, None, int(most.dof) + 1, how)
