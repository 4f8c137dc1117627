"""From a checked config to a job: finds the device, and the number of layers that fit its memory. Starts nothing.

Every config that cannot run is refused here, before a folder is made or an arena allocated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from launchopt.arrivals.requests import Requests
from launchopt.devices import find_device
from launchopt.devices.base import DeviceInfo
from launchopt.devices.cuda.info import gpu_hint
from launchopt.errors import ConfigError, DeviceError
from launchopt.files import JsonObject, as_utf8
from launchopt.modes import MODES, broken_modes, mode_class
from launchopt.modes.base import Takes
from launchopt.modes.stack import CHOICES
from launchopt.producing.production import Schedule
from launchopt.sampling import Sampling, SamplingKind
from launchopt.stack import preset_of
from launchopt.streams.chains.chain import Stream
from launchopt.timing import cupti, torch_trace
from runner.config.against import ALL
from runner.config.groups import AllReduce, DeviceKind, Ordering, Record, TimingKind, Tuning, Verify, Where
from runner.config.modes import options_of_label
from runner.config.objects import to_config
from runner.config.plugged import plugin_lines
from runner.config.schema import Config
from runner.plan.consumers import facts_of_all, first_index, jobs_of, require_routable
from runner.plan.consumers import notices as several_notices
from runner.plan.gpus import check_index
from runner.plan.job import Arm, Job
from runner.plan.left_out import left_out as left_out  # also for `runner.advise`
from runner.plan.memory import (
    MEMORY_SHARE,
    needed_bytes,
    require_held,
    require_memory,
    require_records,
    residency_of,
    too_large,
    what_to_lower,
)
from runner.plan.minimum import minimum_of
from runner.plan.refusal import gets_ahead, is_for_split, refusal_of, together_of
from runner.plan.split import require_gpus, require_same_batches, with_gpus
from runner.plan.streams import due_per_s, is_open, requests_of, setting_of

UNLIMITED = 1 << 30
UNBREAKABLE = {  # reasons of modes to refuse ordering=violated
    Takes.commands: "launches commands one at a time, as they arrive: it has no order to break",
    Takes.steps: "runs a request's steps whole: it has no order to break",
}
MANY_CORES, SPIN_US_MANY_CORES, SPIN_US_FEW_CORES = 4, 5000.0, 200.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A job without its folder, and the notices that the user reads before it."""

    config: Config
    composed: JsonObject
    stream: Stream
    info: DeviceInfo
    arms: tuple[Arm, ...]
    notices: tuple[str, ...]
    residency: str | None
    refused: dict[str, str]  # with against=all, or of a waterfall: arm -> the reason why it cannot run this
    orders: tuple[tuple[str, ...], ...]  # of the waterfall: labels of arms, also of those in `refused`

    def job(self, folder: Path) -> Job:
        """Return the job with `folder` for its results."""
        config = self.config
        return Job(
            run_id=as_utf8(f"{folder.parent.name}/{folder.name}"),
            folder=folder,
            config=self.composed,
            stream=self.stream,
            arms=self.arms,
            device_kind=self.info.kind,
            device_index=first_index(config),
            threads=config.device.threads,
            pin_cpu=config.device.pin_cpu,
            timing=config.timing.kind.value,
            sample_every=0 if config.timing.kind is TimingKind.host else config.timing.sample_every,
            capacity=config.queue.capacity,
            spin_us=_spin_us(config),
            sleep_us=config.queue.sleep_us,
            seed=config.seed,
            verify_columns=config.verify_columns,
            verify_budget_s=math.inf if config.verify is Verify.full else config.verify_budget_s,
            residency=self.residency,
            record_launches=config.record.launches is Record.all,
            record_commands=config.record.commands is Record.all,
            violated=config.ordering is Ordering.violated,
            tunes=config.tuning is Tuning.all,
            open_loop=is_open(self.config, self.stream),
            on_stall=config.batching.stall,
            sampling=sampling_of(config),
            samples_on_host=self.sampling_where == "cpu",
            schedule=_schedule(config),
            nccl=config.parallel.all_reduce is AllReduce.nccl,
        )

    @property
    def consumers(self) -> tuple[int, ...]:
        """The GPU of each consumer; on the CPU device its core, or 0."""
        return tuple(self.config.device.gpus or (self.config.device.index,))

    def jobs(self, folder: Path) -> tuple[Job, ...]:
        """Return the job of each consumer."""
        return jobs_of(self.job(folder), self.config)

    @property
    def due_per_s(self) -> float | None:
        """Mean rate at which independent commands are due; None in a closed loop, and for requests of many tokens."""
        return due_per_s(self.config, self.stream) if is_open(self.config, self.stream) else None

    @property
    def sampling_where(self) -> str | None:
        """Place of sampling: cpu or gpu; None without sampling."""
        sampling = self.config.sampling
        if sampling.kind is SamplingKind.none:
            return None
        device = {"cpu": "cpu", "cuda": "gpu"}[self.info.kind]
        return device if sampling.where is Where.auto else sampling.where.value


def plan_of(composed: DictConfig) -> Plan:
    """Return the plan of a composed config that is settled: it names the modes of `against` and the repeats."""
    return make_plan(to_config(composed), composed)


def make_plan(config: Config, composed: DictConfig) -> Plan:
    """Check the config against this machine and return its plan; LaunchoptError if it cannot run."""
    require_records(minimum_of(config, config.model.shape(), None).commands, what_to_lower(config))
    require_gpus(config)
    requests = requests_of(config)
    if config.device.pin_cpu is not None and config.device.pin_cpu not in os.sched_getaffinity(0):
        cores = sorted(os.sched_getaffinity(0))
        raise ConfigError("device.pin_cpu", config.device.pin_cpu, f"must be one of this process's cores: {cores}")
    if config.device.kind is not DeviceKind.cpu:
        first = config.device.index
        for index in config.device.gpus or range(first, first + config.parallel.tensor):
            check_index(index)
    info, why = find_device(config.device.kind.value, first_index(config))
    config = with_gpus(config, info.kind)
    info = facts_of_all(config, info)
    if config.timing.kind is TimingKind.cupti:
        if info.kind == "cpu":
            raise DeviceError("timing=cupti: traces kernels on a GPU, and the device is the CPU; use timing=host")
        cupti.require()
    if config.timing.kind is TimingKind.torch:
        if len(config.device.gpus or ()) > 1:
            raise ConfigError("timing", "torch", "traces one GPU: use timing=cupti with device.gpus")
        torch_trace.require()
    if config.sampling.where is Where.gpu and info.kind == "cpu":
        raise ConfigError("sampling.where", "gpu", "the device is the CPU: must be auto or cpu")
    notices = [f"device: {info.kind} ({info.name}), {why}", *several_notices(config, info)]
    if config.device.kind is DeviceKind.auto and info.kind == "cpu" and (hint := gpu_hint()):
        notices.append(hint)
    if config.ordering is Ordering.violated:
        notices.append("ordering=violated: batches break the order within requests on purpose; their check must fail")
    broken = broken_modes() if config.against == [ALL] else {}
    arms = _arms(config, broken)
    stream = _fitting(config, info, requests, arms, notices)
    require_routable(config, stream)
    require_same_batches(config, stream, info.kind)
    arms, refused = _able(config, arms, info, stream)
    refused = broken | refused
    if refused:
        notices.append(f"{left_out(refused)}. `launchopt matrix` shows which mode runs which workload")
    container = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    assert isinstance(container, dict)
    residency = residency_of(config, stream, info)
    plain = {str(k): v for k, v in container.items()}
    notices += plugin_lines(config, [arm.mode for arm in arms])
    return Plan(config, plain, stream, info, arms, tuple(notices), residency, refused, _orders(config, refused))


def _orders(config: Config, refused: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return the orders of the waterfall; ConfigError if fewer than two arms of one can run."""
    for order in config.waterfall:
        mine = {label: refused[label] for label in order if label in refused}
        if len(order) - len(mine) < 2:
            raise ConfigError("waterfall", order, f"fewer than two of its modes run here: {left_out(mine)}")
    return tuple(map(tuple, config.waterfall))


def _arms(config: Config, broken: Container[str] = ()) -> tuple[Arm, ...]:
    """Return the arms of the modes to compare with, then that of the config's own mode.

    Other stacks of the own mode have its options, such as mode.tokens; other modes have their defaults. broken: modes
    that against=all leaves out.
    """
    compared = [name for name in MODES if name not in broken] if config.against == [ALL] else config.against
    batching = config.batching
    common = (batching.max_batch, batching.timeout_us, batching.idle_us)
    own = Arm(config.mode.name, *common, config.mode.options)
    labels = dict.fromkeys([*compared, *chain.from_iterable(config.waterfall)])
    shared = {own.mode: {key: value for key, value in own.options.items() if key not in CHOICES}}
    others = [Arm(name := preset_of(label), *common, options_of_label(label, shared.get(name, {}))) for label in labels]
    return (*(other for other in others if other.label != own.label), own)


def _able(
    config: Config, arms: tuple[Arm, ...], info: DeviceInfo, stream: Stream
) -> tuple[tuple[Arm, ...], dict[str, str]]:
    """Return the arms that can run the stream here, and the modes that cannot, with their reasons.

    Raises ConfigError if the config's own mode cannot, or one that `against` names.
    """
    able, refused = [], {}
    for arm in arms:
        is_own = arm is arms[-1]
        why = refusal_of(config, arm, info, stream)
        takes = mode_class(arm.mode, arm.options).takes_of(stream)
        if why is None and config.ordering is Ordering.violated:
            asked = is_own or takes is Takes.steps  # another mode of against= may keep the order
            why = UNBREAKABLE.get(takes) if asked else None
        if why is None:
            arm = replace(arm, together=together_of(arm, stream))
            require_held(arm, stream)
            able.append(replace(arm, ahead=gets_ahead(config, arm, info.kind, stream, is_own)))
        elif is_own or (arm.label in config.against and not is_for_split(arm, stream)):
            raise ConfigError("mode" if is_own else "against", arm.label, why)
        else:
            refused[arm.label] = why
    return tuple(able), refused


def sampling_of(config: Config) -> Sampling:
    """Return the config's sampling as a `Sampling` of the library."""
    sampling = config.sampling
    return Sampling(sampling.kind, sampling.temperature, sampling.top_k, sampling.top_p, config.seed)


def _schedule(config: Config) -> Schedule:
    scheduler = config.scheduler
    if scheduler.kind == "none":
        return Schedule()
    return Schedule(True, scheduler.budget_tokens or UNLIMITED, scheduler.max_running or UNLIMITED)


def _spin_us(config: Config) -> float:
    """Return `queue.spin_us`. Its default on many cores is longer than a step, so that no process sleeps within one."""
    if config.queue.spin_us is not None:
        return config.queue.spin_us
    return SPIN_US_MANY_CORES if len(os.sched_getaffinity(0)) >= MANY_CORES else SPIN_US_FEW_CORES


def _fitting(
    config: Config, info: DeviceInfo, requests: Requests | None, arms: tuple[Arm, ...], notices: list[str]
) -> Stream:
    """Return the stream. Without workload.layers it has as many layers as fit. ArenaMemoryError if it does not fit."""
    usable = int(info.memory_free_bytes * MEMORY_SHARE[info.kind])
    workload = config.workload
    minimum = minimum_of(config, config.model.shape(), requests)
    require_records(minimum.commands, what_to_lower(config))
    if minimum.operand_bytes > usable:
        raise too_large(f"at least {minimum.commands:,}", minimum.operand_bytes, usable, info, what_to_lower(config))
    setting = setting_of(config, info, requests)
    layers = workload.layers_in(config.model.layers)
    stream: Stream = workload.stream(layers, setting)
    while workload.takes_what_fits and layers > 1 and needed_bytes(info, stream, arms) > usable:
        layers = min(layers - 1, max(1, layers * usable // needed_bytes(info, stream, arms)))
        stream = workload.stream(layers, setting)
    notices += setting.notices
    require_memory(info, stream, arms, usable, what_to_lower(config))
    if layers < config.model.layers and not workload.instead_of_model:
        fits = f", as many as fit into {usable / 1e9:.1f} GB of {info.memory_name}"
        chosen = f" (workload.layers={layers})" if workload.has_layers else f", since workload={workload.name} runs one"
        why = fits if workload.takes_what_fits else chosen
        notices.append(f"layers: {layers} of {config.model.name}'s {config.model.layers}{why}")
    return stream
