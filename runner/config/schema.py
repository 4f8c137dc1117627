"""The whole configuration: its groups, the settings outside of groups, and the checks across groups."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from launchopt.arrivals import arrivals
from launchopt.errors import ConfigError, choices, explained
from launchopt.modes import OWN_MODES
from launchopt.options import above_zero, option, within
from launchopt.plugins.found import GROUPS
from launchopt.sampling import SamplingKind
from launchopt.streams.model import Model
from launchopt.workloads import workloads
from runner.config import groups
from runner.config.against import AUTO, checked_against, checked_orders
from runner.config.groups import Ordering, Verify
from runner.config.modes import AutoMode, Mode, mode_settings
from runner.config.tables import tables


@dataclass(slots=True)
class Config:
    """All settings of one run. `__post_init__` checks ranges and combinations."""

    workload: Any = MISSING
    mode: Mode = MISSING
    model: Model = MISSING
    device: groups.Device = MISSING
    arrival: Any = MISSING
    timing: groups.Timing = MISSING
    parallel: groups.Parallel = field(default_factory=groups.Parallel)
    queue: groups.Queue = field(default_factory=groups.Queue)
    batching: groups.Batching = field(default_factory=groups.Batching)
    sampling: groups.TokenSampling = MISSING
    scheduler: groups.Scheduler = MISSING
    slo: groups.Slo = field(default_factory=groups.Slo)
    record: groups.Recording = field(default_factory=groups.Recording)
    against: Any = option("auto", "modes that run in turn with `mode`; auto: its base; all: every other")
    waterfall: Any = option(None, "lists of modes in turn; each mode has one more choice than the one before")
    ordering: Ordering = option(Ordering.per_request, "order of the commands of one request")
    tuning: groups.Tuning = option(groups.Tuning.all, "modes for which cuBLASLt's proposals are timed, on a GPU")
    repeats: Any = option(
        None, "number; auto: until the noise is low; null: 5 with other modes beside `mode`, 1 without and in sweeps"
    )
    processes: int = option(1, "new processes that run the repeats, one set after the other", low=1)
    repeats_limit_s: float = option(300.0, "with repeats=auto, no round begins after this time", is_above_zero=True)
    watchdog_s: float = option(60.0, "limit of a run in which no command moves; 0: none (runner.run.watchdog)", low=0)
    seed: int = option(0, "seed of operands, arrivals and sampling", low=0)
    verify: Verify = option(Verify.sampled, "full: check all independent commands and token ids, however long it takes")
    verify_budget_s: float | None = option(
        None,
        "time to check a repeat of independent commands, or an audit run; null: its own, at least 5",
        is_above_zero=True,
    )
    verify_columns: int = option(256, "most columns of an output that are compared; of more, a random choice", low=2)
    table: Any = option(None, "one table of an experiment: it sets the groups above")
    resume: bool = option(False, "skip jobs that are finished in the named folder (runner.run.resume)")
    force: bool = option(False, "replace files of other programs in the output folder")
    job_timeout_s: float | None = option(None, "a job that takes longer is ended, and failed", is_above_zero=True)

    def __post_init__(self) -> None:
        self.against = [] if self.against in (None, AUTO) else self.against
        self.repeats = 1 if self.repeats is None else self.repeats
        self._check_groups()
        self.against = checked_against(self.against, self.mode)
        self.waterfall = checked_orders(self.waterfall)
        if self.waterfall and not (self.arrival.is_closed or self.arrival.has_requests):
            why = "waterfall compares wall times, which follow the arrivals in an open loop: use arrival=closed"
            raise ConfigError("arrival", self.arrival.kind, why)
        self._check_repeats()
        above_zero("job_timeout_s", self.job_timeout_s)
        within("watchdog_s", self.watchdog_s, 0)
        within("seed", self.seed, 0)
        within("verify_columns", self.verify_columns, 2)
        above_zero("verify_budget_s", self.verify_budget_s)
        within("processes", self.processes, 1, MOST_PROCESSES)
        if self.batching.max_batch > self.queue.capacity:
            why = f"must be at most queue.capacity, which is {self.queue.capacity}"
            raise ConfigError("batching.max_batch", self.batching.max_batch, why)
        if self.workload.has_requests:
            self._check_requests()
        else:
            self._check_alone()

    @property
    def rounds(self) -> int | None:
        """Number of repeats; None for auto."""
        return None if self.repeats == AUTO else int(self.repeats)

    def _check_groups(self) -> None:
        """Refuse a workload or arrival from a user's file without our schema, and settings within `table`."""
        for key, value in (("workload", self.workload), ("arrival", self.arrival)):
            kinds = SCHEMAS[key] | PLUGGED[key]
            if not isinstance(value, tuple(kinds.values())):
                what = type(value).__name__ if is_dataclass(value) else "its own"
                wanted = f"must follow /schema/{key}/NAME@_here_, NAME one of {choices(kinds)}"
                raise ConfigError(key, f"(settings of {what})", wanted)
        if self.table is not None:
            shown = self.table if isinstance(self.table, str | int | float) else "(settings of its own)"
            raise ConfigError("table", shown, explained("holds no settings", "the options of the group table"))

    def _check_repeats(self) -> None:
        is_number = isinstance(self.repeats, int) and not isinstance(self.repeats, bool)
        if self.repeats != AUTO and not (is_number and 1 <= self.repeats <= MOST_REPEATS):
            wanted = f"whole numbers from 1 to {MOST_REPEATS}, or {AUTO}"
            raise ConfigError("repeats", self.repeats, explained("not a number of repeats", wanted))
        above_zero("repeats_limit_s", self.repeats_limit_s)

    def _check_alone(self) -> None:
        """Check a workload of independent commands."""
        name = self.workload.name
        if self.workload.own_arrival and not self.arrival.is_closed:
            why = f"workload={name} brings its own: {self.workload.own_arrival}"
            raise ConfigError("arrival", self.arrival.kind, why)
        if self.arrival.has_requests:
            raise ConfigError(
                "arrival", "replay", f"a trace holds requests: workload={name} has none; use decode or prefill"
            )
        if self.workload.instead_of_model and self.model.name != DEFAULT_MODEL:
            why = f"workload={name} has its own shape; use {self.workload.instead_of_model}"
            raise ConfigError("model", self.model.name, why)
        if self.workload.needs_order and self.ordering is Ordering.none:
            why = f"workload={name} is made of commands that need those before; use per_request"
            raise ConfigError("ordering", "none", why)
        if self.ordering is Ordering.violated:
            raise ConfigError("ordering", "violated", f"workload={name} has no order to break; use decode or prefill")
        self._refuse_tokens(f"workload={name} has no tokens; use decode or prefill")

    def _check_requests(self) -> None:
        self._check_layers()
        if self.ordering is Ordering.none:
            if self.workload.needs_order:
                why = f"workload={self.workload.name} is made of steps that need the one before; use per_request"
                raise ConfigError("ordering", "none", why)
            if not (self.arrival.is_closed or self.arrival.has_requests):
                raise ConfigError(
                    "arrival", self.arrival.kind, "needs ordering=per_request; without it: closed or replay"
                )
            self._refuse_tokens("ordering=none knows no tokens; use ordering=per_request")
            for key, plain in (("requests", 1), ("prompt_tokens", 0)):
                value = getattr(self.workload, key, plain)
                if value != plain:
                    raise ConfigError(
                        f"workload.{key}", value, "needs ordering=per_request; without it: workload.users"
                    )
            return
        alone = self.workload.asked().count < 2 and not self.arrival.has_requests
        if self.ordering is Ordering.violated and alone:
            raise ConfigError("ordering", "violated", "one request leaves in order by itself: give two or more")
        if self.ordering is Ordering.violated and (self.mode.name == "baseline" or self.batching.max_batch == 1):
            raise ConfigError(
                "ordering", "violated", "one launch per command, in arrival order, breaks no order: use mode=batched"
            )
        if self.workload.users != 1:
            raise ConfigError(
                "workload.users", self.workload.users, "needs ordering=none; with another ordering: workload.requests"
            )
        sampling = self.sampling
        if sampling.kind is SamplingKind.none and sampling.where is not groups.Where.auto:
            raise ConfigError("sampling.where", sampling.where.value, "needs a sampling: greedy, top_k or top_p")
        if sampling.kind is not SamplingKind.none and self.model.vocab is None:
            raise ConfigError(
                "sampling",
                sampling.kind.value,
                f"needs a vocabulary: model={self.model.name} has none; give model.vocab",
            )

    def _check_layers(self) -> None:
        if self.workload.instead_of_model:
            if self.model.name != DEFAULT_MODEL:
                why = f"workload={self.workload.name} has its own shape; use {self.workload.instead_of_model}"
                raise ConfigError("model", self.model.name, why)
            return
        if self.workload.layers is not None and self.workload.layers > self.model.layers:
            raise ConfigError(
                "workload.layers",
                self.workload.layers,
                f"must be at most {self.model.layers}: model={self.model.name} has no more",
            )
        if not self.model.shape().is_dense:
            self._check_experts()

    def _check_experts(self) -> None:
        """Refuse whatever would need data to flow through experts or MLA, or columns that share an expert."""
        has = "experts" if self.model.experts else "latent attention"
        runs = self.workload.runs_experts and self.ordering is Ordering.none
        if not (runs and self.workload.users == 1 and self.arrival.is_closed):
            why = f"has {has}, which run as GEMMs without order only: workload=decode ordering=none workload.users=1"
            other = "; workload=moe runs the experts of a layer" if self.model.experts else ""
            raise ConfigError("model", self.model.name, f"{why} arrival=closed{other}")

    def _refuse_tokens(self, why: str) -> None:
        """Raise ConfigError for a setting that only workloads with tokens have."""
        for key, value in (("slo.ttft_ms", self.slo.ttft_ms), ("slo.tpot_ms", self.slo.tpot_ms)):
            if value is not None:
                raise ConfigError(key, value, why)
        if self.sampling.kind is not SamplingKind.none:
            raise ConfigError("sampling", self.sampling.kind.value, why)
        if self.scheduler.kind != "none":
            raise ConfigError("scheduler", self.scheduler.kind, why)
        if self.scheduler.ahead:
            raise ConfigError("scheduler.ahead", "true", why)
        if self.record.tokens is groups.Record.all:
            raise ConfigError("record.tokens", "all", why)


DEFAULT_MODEL = "small_1024"
MOST_REPEATS = 10_000
MOST_PROCESSES = 1_000

SCHEMAS: dict[str, dict[str, type]] = {
    "workload": dict(workloads()),
    "model": {"base": Model},
    "device": {"base": groups.Device},
    "arrival": dict(arrivals()),
    "timing": {"base": groups.Timing},
    "sampling": {"base": groups.TokenSampling},
    "scheduler": {"base": groups.Scheduler},
}
# Options that have no YAML of their own in conf/GROUP. launchopt declares each mode, workload and arrival in a Python
# file; tables are files in conf/experiment. A workload that needs values of the user (`Gemv`) is not among them:
# presets in conf/workload name it.
FOUND: dict[str, dict[str, object]] = {
    "mode": {"auto": AutoMode()} | {name: mode_settings(name) for name in OWN_MODES},
    "workload": {str(kind.option()): kind for kind in workloads().values() if kind.option()},
    "arrival": dict(arrivals()),
    "table": {name: {"defaults": [config, "_self_"]} for name, config in tables().items()},
}
# Options of plugins that a config named so far: nodes by group and name (runner.config.plugged).
PLUGGED: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}


@cache
def register() -> None:
    """Store the schemas, and the options of FOUND, in Hydra's ConfigStore, once a process."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    for group, options in FOUND.items():
        for name, node in options.items():
            store.store(group=group, name=name, node=node, package="_global_" if group == "table" else None)
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
