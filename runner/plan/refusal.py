"""Why an arm cannot run a stream with a config, and what it does with the steps that it takes.

The mode answers for the device and the stream; this module adds what depends on other settings of the config.
"""

from __future__ import annotations

from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.modes import MODES, broken_modes, mode_class
from launchopt.modes.base import Takes
from launchopt.modes.stack import stack_of
from launchopt.stack import Fusion
from launchopt.streams.chains.chain import Stream, chain_of
from runner.config.groups import AllReduce, TimingKind, Where
from runner.config.schema import Config
from runner.plan.job import Arm


def together_of(arm: Arm, stream: Stream) -> int:
    """Return the number of steps of a request that a launch of an arm has."""
    together = mode_class(arm.mode, arm.options)(**arm.options).together
    return min(together, int(chain_of(stream).outputs.max())) if stream.has_steps else together


def refusal_of(config: Config, arm: Arm, info: DeviceInfo, stream: Stream) -> str | None:
    """Return why an arm cannot run the stream with this config on a device, or None if it can."""
    mode = mode_class(arm.mode, arm.options)
    if config.parallel.all_reduce is AllReduce.nccl and Fusion.reduce in stack_of(arm.mode, arm.options).fuse:
        return "fuses our own all-reduce: leave reduce out of mode.fuse, or use parallel.all_reduce=own"
    if (why := mode.refusal(info.kind, stream) or mode.lacks()) is not None:
        return why
    if info.compute_capability and (why := mode.capability_refusal(stream, info.compute_capability)) is not None:
        return why
    return _unfit(config, info.kind, together_of(arm, stream))


def gets_ahead(config: Config, arm: Arm, kind: str, stream: Stream, is_own: bool) -> bool:
    """Return whether the driver pushes the commands of an arm's next step ahead, all but the last.

    Raises ConfigError with scheduler.ahead if the config's own mode does not take whole steps.
    """
    takes = mode_class(arm.mode, arm.options).takes_of(stream)
    if not config.scheduler.ahead or takes is Takes.steps:
        return config.scheduler.ahead
    if is_own:
        usable = sorted({*MODES} - {*broken_modes()})
        able = (name for name in usable if mode_class(name).refusal(kind, stream) is None)
        others = (name for name in able if mode_class(name).takes_of(stream) is Takes.steps)
        why = f"mode={arm.mode} takes {takes.value}, and only whole steps can wait for their last command"
        raise ConfigError("scheduler.ahead", "true", f"{why}: use one of {', '.join(sorted(others))}")
    return False


def _unfit(config: Config, kind: str, together: int) -> str | None:
    """Return why a mode with so many steps in a launch cannot run with this sampling or timing, or None if it can."""
    if kind == "cpu" or together == 1:
        return None
    if config.sampling.where is Where.cpu:
        return "samples on the GPU between two steps of a launch, and sampling.where is cpu: must be auto or gpu"
    if config.timing.kind in (TimingKind.cupti, TimingKind.torch):
        tool = f"timing={config.timing.kind.value}"
        return f"{tool} records the kernels of a repeated step only once: use timing=host, or mode.tokens=1"
    return None


def is_for_split(arm: Arm, stream: Stream) -> bool:
    """Return whether an arm fuses an all-reduce, and one GPU has none. Sweeps of `parallel.tensor` leave it out."""
    return stream.tensor == 1 and Fusion.reduce in stack_of(arm.mode, arm.options).fuse
