"""Read a GPU's SM clock, reasons for throttling, and energy through NVML while a run is timed.

    watch = open_watch(uuid_of(0))                  # DeviceError: NVML does not answer
    watch.begin(), watch.look(), watch.look()       # call `look` at any time; it reads only if a reading is due
    watch.end().within(start_ns, end_ns).columns(commands, wall_ns)

The parent process reads ten times a second, so that the process that launches is not disturbed. A run shorter than
FIRST_LOOK_S has no readings. The manifest says how long readings took. A reason for throttling that ends between two
readings is not seen. A value that NVML does not give is None.

Energy is the increase of the GPU's energy counter from just before the start to just after the last result. The counter
is updated every 20 to 100 ms, so that a reading can be one such step old. Energy is given only under two conditions.
First, the time between the two readings is at least LEAST_STEPS of the longest steps seen, so that the error is at most
5%. Second, the run is at least 95% of that time. Otherwise, the manifest says why there is no energy. The counter
covers the whole board, including other processes on it.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from launchopt.errors import DeviceError
from launchopt.files import JsonObject

FIRST_LOOK_S = 0.02  # time from the start of a run to the first reading
LOOK_S = 0.1  # time between readings
WATCH_S = 0.5  # time for which `learn` watches the counter
WATCH_STEP_S = 0.001  # time between readings of the counter by `learn`
FEWEST_CHANGES = 3  # changes of the counter that `learn` needs to know the length of a step
SHORTEST_STEP_NS = 20_000_000  # the GPU's sensors are not read more often
LEAST_STEPS = 20  # minimum number of the counter's steps between the two readings of a run
LEAST_SHARE = 0.95  # the run must take at least this share of the time between the two readings

# From <nvml.h>, nvmlClocksEventReason*.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
NO_THROTTLING = {"gpu_idle", "applications_clocks_setting"}  # reasons that do not count as throttling

_steps_ns: dict[bytes, int | None] = {}  # longest step of the energy counter by uuid of the GPU; None: unknown


def reason_names(bits: int) -> list[str]:
    """Return the names of the reasons whose bits are set. An unknown reason is named by its hexadecimal number."""
    return [REASONS.get(bit, hex(bit)) for bit in (1 << place for place in range(bits.bit_length())) if bits & bit]


@dataclass(frozen=True, slots=True)
class Look:
    """One reading; times are CLOCK_MONOTONIC. None: NVML gave no value."""

    start_ns: int
    end_ns: int
    sm_clock_mhz: int | None
    power_w: float | None  # NVML's average; on most GPUs, over the previous second
    reasons: int | None  # bits of REASONS


@dataclass(frozen=True, slots=True)
class Readings:
    """The readings of one run."""

    looks: tuple[Look, ...]
    energy_mj: int | None  # increase of the energy counter; None: no reading, or the counter went back
    window_ns: int  # time between the two readings of the counter
    step_ns: int | None  # longest time between two changes of the counter; None: unknown

    def within(self, start_ns: int, end_ns: int) -> Readings:
        """Return the readings made between two times in ns, CLOCK_MONOTONIC."""
        kept = (look for look in self.looks if start_ns <= look.start_ns and look.end_ns <= end_ns)
        return replace(self, looks=tuple(kept))

    def columns(self, commands: int, wall_ns: float) -> JsonObject:
        """Return the columns of summary.parquet. wall_ns: duration of the run."""
        clocks = [look.sm_clock_mhz for look in self.looks if look.sm_clock_mhz is not None]
        reported = [look.reasons for look in self.looks if look.reasons is not None]
        reasons = [name for name in self.reasons() if name not in NO_THROTTLING]
        energy_mj = None if self.no_energy(wall_ns) else self.energy_mj
        return {
            "sm_clock_mhz": float(statistics.median(clocks)) if clocks else None,
            "sm_clock_min_mhz": float(min(clocks)) if clocks else None,
            "throttled": bool(reasons) if reported else None,
            "throttle_reasons": ", ".join(reasons) or None,
            "energy_mj_per_command": None if energy_mj is None else energy_mj / commands,
            "power_w": None if energy_mj is None else energy_mj / (self.window_ns * 1e-6),
        }

    def no_energy(self, wall_ns: float) -> str | None:
        """Return why the energy of a run of `wall_ns` is not given, or None if it is given."""
        if self.energy_mj is None:
            return "NVML gave no energy, or its counter went back"
        if self.step_ns is None:
            return f"the energy counter changed fewer than {FEWEST_CHANGES} times in {WATCH_S:g} s"
        if self.window_ns < LEAST_STEPS * self.step_ns:
            least_ms = LEAST_STEPS * self.step_ns / 1e6
            return f"the energy counter moves every {self.step_ns / 1e6:.0f} ms: needs a run of {least_ms:.0f} ms"
        if wall_ns < LEAST_SHARE * self.window_ns:
            return f"the run was {wall_ns / self.window_ns:.0%} of the time between the two readings"
        return None

    def about(self, wall_ns: float) -> JsonObject:
        """Return the entries of the manifest."""
        return {
            "looks": len(self.looks),
            "look_ms": _spread([(look.end_ns - look.start_ns) / 1e6 for look in self.looks]),
            "sm_clock_mhz": _spread([look.sm_clock_mhz for look in self.looks]),
            "power_usage_w": _spread([look.power_w for look in self.looks]),
            "looks_with_reason": self.reasons(),
            "energy_mj": self.energy_mj,
            "energy_window_ms": self.window_ns / 1e6,
            "energy_step_ms": None if self.step_ns is None else self.step_ns / 1e6,
            "no_energy": self.no_energy(wall_ns),
        }

    def reasons(self) -> dict[str, int]:
        """Return every reason, throttling or not, with the number of readings that had it, most frequent first."""
        named = (name for look in self.looks for name in reason_names(look.reasons or 0))
        return dict(Counter(named).most_common())


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return the minimum, median and maximum of the known values."""
    known = [value for value in values if value is not None]
    return {"low": min(known), "median": statistics.median(known), "high": max(known)} if known else None


class GpuWatch:
    """Reads one GPU between `begin` and `end`."""

    def __init__(self, gpu: object, uuid: bytes) -> None:
        import pynvml

        self._nvml, self._gpu, self._uuid = pynvml, gpu, uuid
        self._looks: list[Look] = []
        self._begun: tuple[int, int | None] | None = None  # time in ns, and value of the energy counter
        self._due_ns = 0

    def learn(self) -> None:
        """Measure the longest step of the energy counter, once per process and GPU. This takes WATCH_S seconds."""
        if self._uuid not in _steps_ns:
            _steps_ns[self._uuid] = _longest_step_ns(self._counter_mj)

    def begin(self) -> None:
        """Begin a run."""
        self._looks = []
        self._begun = (time.monotonic_ns(), self._counter_mj())
        self._due_ns = time.monotonic_ns() + int(FIRST_LOOK_S * 1e9)

    def pause_s(self) -> float:
        """Return the seconds until the next reading is due."""
        return LOOK_S if self._begun is None else max(0.0, (self._due_ns - time.monotonic_ns()) * 1e-9)

    def look(self) -> None:
        """Make a reading if a run is in progress and a reading is due."""
        start_ns = time.monotonic_ns()
        if self._begun is None or start_ns < self._due_ns:
            return
        clock = self._read_or_none(self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM)
        power_mw = self._read_or_none(self._nvml.nvmlDeviceGetPowerUsage)
        reasons = self._reasons()
        end_ns = time.monotonic_ns()
        self._looks.append(Look(start_ns, end_ns, clock, None if power_mw is None else power_mw / 1e3, reasons))
        self._due_ns = end_ns + int(LOOK_S * 1e9)

    def end(self) -> Readings:
        """End the run, after its last result, and return its readings."""
        assert self._begun is not None, "begin first"
        (begun_ns, before_mj), self._begun = self._begun, None
        ended_ns, after_mj = time.monotonic_ns(), self._counter_mj()
        energy_mj = None if before_mj is None or after_mj is None or after_mj < before_mj else after_mj - before_mj
        return Readings(tuple(self._looks), energy_mj, ended_ns - begun_ns, _steps_ns.get(self._uuid))

    def _read_or_none(self, read: Callable[..., int], *more: object) -> int | None:
        """Return the result of an NVML function for the GPU, or None if NVML raises an error."""
        try:
            return read(self._gpu, *more)
        except self._nvml.NVMLError:
            return None

    def _counter_mj(self) -> int | None:
        return self._read_or_none(self._nvml.nvmlDeviceGetTotalEnergyConsumption)

    def _reasons(self) -> int | None:
        """Return the bits of the reasons. Drivers before 535 have the function under its older name."""
        reasons = self._read_or_none(self._nvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:
            reasons = self._read_or_none(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return reasons


class GpuWatches:
    """Reads several GPUs between `begin` and `end`, one after another. each: None for one that NVML does not know."""

    def __init__(self, each: Sequence[GpuWatch | None]) -> None:
        self._each = each
        self._known = [watch for watch in each if watch]

    def learn(self) -> None:
        """Measure the longest step of each energy counter, as `GpuWatch.learn` does."""
        for watch in self._known:
            watch.learn()

    def begin(self) -> None:
        """Begin a run."""
        for watch in self._known:
            watch.begin()

    def pause_s(self) -> float:
        """Return the seconds until the next reading of a GPU is due."""
        return min((watch.pause_s() for watch in self._known), default=LOOK_S)

    def look(self) -> None:
        """Make the readings that are due."""
        for watch in self._known:
            watch.look()

    def end(self) -> list[Readings | None]:
        """End the run, and return the readings of each GPU."""
        return [watch.end() if watch else None for watch in self._each]


def _longest_step_ns(counter_mj: Callable[[], int | None]) -> int | None:
    """Return the longest time between two changes of the counter in ns; None: fewer than FEWEST_CHANGES in WATCH_S."""
    changes_ns: list[int] = []
    last_mj, now_ns = counter_mj(), time.monotonic_ns()
    end_ns = now_ns + int(WATCH_S * 1e9)
    while last_mj is not None and now_ns < end_ns:
        time.sleep(WATCH_STEP_S)
        value_mj, now_ns = counter_mj(), time.monotonic_ns()
        if value_mj != last_mj:
            changes_ns.append(now_ns)
            last_mj = value_mj
    if len(changes_ns) < FEWEST_CHANGES:
        return None
    steps_ns = (later - earlier for earlier, later in pairwise(changes_ns))
    return max(SHORTEST_STEP_NS, *steps_ns)


def nvml_handle(uuid: bytes) -> object:
    """Return NVML's handle of the GPU with this CUDA uuid. NVML and CUDA may number GPUs in different orders."""
    import pynvml

    pynvml.nvmlInit()
    text = uuid.hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    handle: object = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{'-'.join(parts)}")
    return handle


def open_watch(uuid: bytes) -> GpuWatch:
    """Return a `GpuWatch` for the GPU with this CUDA uuid. DeviceError: NVML does not answer, or lacks the GPU."""
    import pynvml

    try:
        return GpuWatch(nvml_handle(uuid), uuid)
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML: {error}: no clocks, throttle reasons or energy") from None
