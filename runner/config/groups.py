"""Dataclasses of the groups device, timing, queue, batching, record, sampling, scheduler and slo, which check ranges.

Modes, workloads, arrivals and models declare their options in launchopt. `mode_settings` makes a dataclass of a mode's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, make_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, get_type_hints

from omegaconf import MISSING

from launchopt.errors import ConfigError, choices
from launchopt.modes import check_mode
from launchopt.modes.options import SUBMIT_OPTIONS, RepeatsSteps, options_of, options_with
from launchopt.modes.stack import (
    CHOICES,
    check_stack,
    choices_of,
    conflict,
    is_preset,
    label_of,
    preset_stack,
    stack_of,
    values_of,
)
from launchopt.options import Value, check_options, fixed, option
from launchopt.sampling import SamplingKind
from launchopt.stack import Stack, Submit

NOTHING: Mapping[str, Value] = MappingProxyType({})


class Verify(enum.Enum):
    """How many outputs of independent commands are checked."""

    sampled = "sampled"  # a random sample, as large as `verify_budget_s` allows; all outputs where time is enough
    full = "full"


class Tuning(enum.Enum):
    """Which modes take the fastest of the algorithms that cuBLASLt proposes for a GEMM, instead of its first."""

    all = "all"
    none = "none"


class Ordering(enum.Enum):
    """Order of a request's commands: each waits for the previous one, unless dependencies are ignored or broken."""

    per_request = "per_request"
    none = "none"  # dependencies are ignored, and the result says so
    violated = "violated"  # dependencies are broken on purpose, so that the check must fail


class Record(enum.Enum):
    """Rows of a detailed table that are written: all or none."""

    all = "all"
    none = "none"


@dataclass(slots=True)
class Mode:
    """The chosen mode; `mode_settings` adds its options."""

    name: str = MISSING

    def __post_init__(self) -> None:
        check_mode(self.name)
        check_options("mode", self)
        check_stack("mode", self.name, self._choices)
        for each in self._others:
            if each.name not in self.taken and getattr(self, each.name) != each.default:
                raise _of_another_submit(each.name, getattr(self, each.name))

    @property
    def _choices(self) -> dict[str, Value]:
        """The choices of the stack that are not the preset's."""
        values = {key: getattr(self, key) for key in CHOICES}
        return {key: value for key, value in values.items() if not is_preset(self.name, key, value)}

    @property
    def _others(self) -> list[Field[Value]]:
        """Fields of the options that are no choices of the stack."""
        return [each for each in fields(self) if each.name not in ("name", *CHOICES)]

    @property
    def stack(self) -> Stack:
        """The choices."""
        return stack_of(self.name, self._choices)

    @property
    def taken(self) -> set[str]:
        """Names of the options that the mode has with its submit, beside the choices of its stack."""
        return {each.name for each in fields(options_with(self.name, self.stack.submit))} - {*CHOICES}

    @property
    def options(self) -> dict[str, Value]:
        """Values of the options by name, for the constructor of the mode, without those that are the preset's."""
        values = {each.name: getattr(self, each.name) for each in self._others if each.name in self.taken}
        return {key: value for key, value in values.items() if value is not None} | self._choices

    @property
    def label(self) -> str:
        """Name in tables: that of the mode, and how its stack differs from the preset's."""
        return label_of(self.name, self.stack)


def _submits_with(key: str) -> list[Submit]:
    """Return the values of mode.submit that give a stack this option."""
    return [submit for submit, kind in SUBMIT_OPTIONS.items() if key in {each.name for each in fields(kind)}]


def _of_another_submit(key: str, value: object) -> ConfigError:
    submits = _submits_with(key)
    why = f"mode.{key} belongs to mode.submit={choices(submits)}; did you mean to add mode.submit={submits[0]}?"
    return ConfigError(f"mode.{key}", value, why)


def mode_settings(name: str) -> Mode:
    """Return the settings of a mode with every option at its default."""
    preset = values_of(preset_stack(name))
    declared = [
        (each.name, each.type, _with_default(each, preset.get(each.name, each.default)))
        for each in fields(options_of(name))
    ]
    made: type[Mode] = make_dataclass("Mode", [*declared, *_of_other_submits(name)], bases=(Mode,))  # takes 1 ms
    return made(name=name)


def _of_other_submits(name: str) -> list[tuple[str, object, object]]:
    """Return the name, type and field of each option that a mode has only with another submit.

    Its default is None. The metadata `submits` has the values of mode.submit that give the mode this option.
    """
    preset, found = preset_stack(name), list[tuple[str, object, object]]()
    able = [submit for submit in SUBMIT_OPTIONS if conflict(name, replace(preset, submit=submit)) is None]
    known = {each.name for each in fields(options_of(name))} if able else set[str]()
    for each, kind, all_submits in _of_submits():
        submits = [submit for submit in all_submits if submit in able]
        if submits and each.name not in known:
            text = f"{each.metadata['help']}; only with mode.submit={choices(submits)}"
            metadata = {**each.metadata, "help": text, "submits": submits}
            found.append((each.name, kind | None, field(default=None, metadata=metadata)))
    return found


@cache
def _of_submits() -> list[tuple[Field[Any], Any, list[Submit]]]:
    """Return the options that depend on mode.submit: the field, the type, and the values of mode.submit with it."""
    kinds = get_type_hints(RepeatsSteps)
    declared = [each for each in fields(RepeatsSteps) if each.name not in CHOICES]
    return [(each, kinds[each.name], _submits_with(each.name)) for each in declared]


def options_of_label(label: str, others: Mapping[str, Value] = NOTHING) -> dict[str, Value]:
    """Return the options of the mode with this label, such as graph+norm+pdl; ConfigError if there is none.

    others: values of options that are no choices of a stack, for those of them that this stack has. The rest have their
    defaults.
    """
    name, chosen = choices_of(label)
    mode = replace(mode_settings(name), **chosen)  # type: ignore[arg-type]  # a class of `mode_settings` has these
    return mode.options | {key: value for key, value in others.items() if key in mode.taken}


def _with_default(declared: Field[object], value: object) -> object:
    """Return the field of an option with this default."""
    if isinstance(value, list):
        return field(default_factory=value.copy, metadata=declared.metadata)
    return field(default=value, metadata=declared.metadata)


class DeviceKind(enum.Enum):
    """Kind of the device that runs the work."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass(slots=True)
class Device:
    """The device, and the core of the host that the consumer runs on."""

    kind: DeviceKind = option(DeviceKind.auto, "auto: the GPU if there is one, else the CPU")
    index: int = option(0, "number of the GPU, as CUDA counts them", low=0)
    threads: int | None = option(None, "BLAS threads of the cpu device; null: all cores but one", low=1, high=1024)
    pin_cpu: int | None = option(None, "core that the consumer is pinned to; null: none", low=0)

    def __post_init__(self) -> None:
        check_options("device", self)


class TimingKind(enum.Enum):
    """Method by which times on the device are measured."""

    host = "host"  # the host's clock, and CUDA events around the whole run
    events = "events"  # like host, and CUDA events around sampled launches
    cupti = "cupti"  # like events, and CUPTI's record of every kernel; the run counts as traced
    torch = "torch"  # like events, and a Kineto trace of each repeat by torch.profiler; counts as traced, too


@dataclass(slots=True)
class Timing:
    """Settings of the timing of a run."""

    kind: TimingKind = option(TimingKind.events, "what is measured on the device")
    sample_every: int = option(64, "one in this many launches is timed on the device", low=1)

    def __post_init__(self) -> None:
        check_options("timing", self)


@dataclass(slots=True)
class Queue:
    """Settings of the ring between producer and consumer."""

    # 4,096 records of 64 bytes: larger than any bucket in use, and small enough for the L2.
    capacity: int = option(4096, "records of 64 bytes", low=2, high=1 << 24, is_power_of_two=True)
    spin_us: float | None = option(
        None, "time of spinning for the other side; null: 5,000 with 4 cores or more, else 200", low=0, high=1e6
    )
    sleep_us: float = option(50.0, "time of each sleep after the spin", low=1, high=1e6)

    def __post_init__(self) -> None:
        check_options("queue", self)


@dataclass(slots=True)
class Batching:
    """Conditions under which a bucket is flushed."""

    max_batch: int = option(64, "commands that fill a bucket", low=1)
    timeout_us: float = option(150.0, "longest wait of a bucket's oldest command", low=0, high=1e9)
    idle_us: float | None = option(None, "also flush when nothing has arrived for this time", low=0, high=1e9)
    stall: bool = option(True, "also flush, with order kept, when everything left waits for commands in buckets")

    def __post_init__(self) -> None:
        check_options("batching", self)


@dataclass(slots=True)
class Recording:
    """Choice of the tables that are written beside summary.parquet."""

    launches: Record = option(Record.all, "write launches.parquet")
    commands: Record = option(Record.none, "write commands.parquet")
    tokens: Record = option(Record.none, "write tokens.parquet")


class Where(enum.Enum):
    """Processor that samples tokens."""

    auto = "auto"  # on the device
    cpu = "cpu"
    gpu = "gpu"


@dataclass(slots=True)
class TokenSampling:
    """Rule that chooses a token from its logits. Its seed is that of the run."""

    kind: SamplingKind = option(SamplingKind.none, "how a token is chosen")
    where: Where = option(Where.auto, "where tokens are sampled; auto: on the device")
    temperature: float = option(1.0, "divisor of the logits", is_above_zero=True)
    top_k: int = option(50, "number of largest logits that top_k chooses from", low=1)
    top_p: float = option(0.9, "probability of the tokens that top_p chooses from")

    def __post_init__(self) -> None:
        check_options("sampling", self)
        if not 0 < self.top_p <= 1:
            raise ConfigError("sampling.top_p", self.top_p, "must be above 0 and at most 1")


@dataclass(slots=True)
class Scheduler:
    """Rule for the next step of a request.

    none: each request continues once its own token is complete. continuous: all running requests continue together, in
    rounds.
    """

    kind: str = MISSING
    chunk_tokens: int | None = option(None, "most columns of a prompt's step; null: whole prompts", low=1)
    budget_tokens: int | None = option(None, "most columns of a step, over all requests", low=1)
    max_running: int | None = option(None, "most requests in a step; null: all", low=1)
    ahead: bool = option(False, "while a step runs, push all commands of the next one but the last")

    def __post_init__(self) -> None:
        fixed("scheduler.kind", self.kind, "none", "continuous")
        if self.ahead and self.kind == "continuous":
            why = "goes with scheduler=none: the requests of a continuous step are known only when it begins"
            raise ConfigError("scheduler.ahead", "true", why)
        check_options("scheduler", self)
        if self.budget_tokens is not None and (self.chunk_tokens is None or self.budget_tokens < self.chunk_tokens):
            raise ConfigError(
                "scheduler.budget_tokens", self.budget_tokens, f"must be at least chunk_tokens={self.chunk_tokens}"
            )


@dataclass(slots=True)
class Slo:
    """Latency objectives of goodput, which counts the requests that meet all of them; null: no such objective."""

    ttft_ms: float | None = option(None, "arrival to first token", is_above_zero=True)
    tpot_ms: float | None = option(None, "each further token, on average over a request", is_above_zero=True)

    def __post_init__(self) -> None:
        check_options("slo", self)
