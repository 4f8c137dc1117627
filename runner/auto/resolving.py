"""The mode that mode=auto stands for: chosen when a run is planned, before its processes start.

In: a composed config. Out: one with the chosen mode, and the line that says which mode it is and why. The manifest
keeps the line among its notices. The whole workload gets one mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from omegaconf import DictConfig, open_dict, read_write

from launchopt.analysis.choice import Choice, choose, work_of, workload_of
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from launchopt.modes.base import Takes
from launchopt.modes.stack import choices_of, label_of, stack_of
from runner.auto.table import find_entries
from runner.config.against import AUTO as BESIDE
from runner.config.against import settled
from runner.config.groups import Ordering
from runner.config.modes import Mode, mode_of_label, options_of_label
from runner.config.objects import to_config
from runner.plan.base import INDEPENDENT, plan_with_base
from runner.plan.job import Arm
from runner.plan.plan import Plan, plan_of
from runner.plan.refusal import refusal_of
from runner.run.resume import CHOSEN

AUTO = "auto"
TRIAL = "baseline"  # the mode with which the work of a config is found out: it runs everything


def resolved(task: DictConfig) -> tuple[DictConfig, tuple[str, ...]]:
    """Return the config with the chosen mode and the line about it; a config of another mode as it is."""
    if task.mode.name != AUTO:
        return task, ()
    if to_config(task).ordering is Ordering.violated:
        raise ConfigError("mode", AUTO, "ordering=violated breaks the order on purpose: name a mode")
    trial = _with(task, mode_of_label(TRIAL), against=[], waterfall=None)
    with read_write(trial), open_dict(trial):
        trial.scheduler.ahead = False
    choice = _choice(plan_of(settled(trial)), has_ahead=bool(task.scheduler.ahead))
    against = task.against
    if against is not None and not isinstance(against, str):
        against = [label for label in against if label != choice.mode]
    elif against == choice.mode:
        against = []
    chosen = _with(task, mode_of_label(choice.mode), against=against)
    return chosen, (f"{CHOSEN}{choice.mode}, {choice.why}",)


def plan_of_run(task: DictConfig, is_published: bool, has_mode: bool = True) -> Plan:
    """Return the plan of a single run, with a base unless it is an experiment or a table.

    has_mode: False if the user named no mode. A waterfall then runs its own modes alone.
    """
    if not has_mode and not is_published and (orders := to_config(task).waterfall):
        return _plan_of_waterfall(task, orders[0])
    asked = task.against
    task, chosen = resolved(task)
    if is_published:
        return _noted(plan_of(settled(task)), chosen)
    plan = plan_with_base(to_config(task), task)
    return _noted(plan, [*chosen, *(_alone(plan, asked) if chosen else ())])


def _alone(plan: Plan, asked: str | Sequence[str] | None) -> list[str]:
    """Return a line if mode=auto took the base, and nothing runs beside it. asked: `against` as the user gave it."""
    label, *others = [arm.label for arm in plan.arms]
    bases = [INDEPENDENT] if asked == BESIDE else [asked] if isinstance(asked, str) else [*(asked or ())]
    if others or label not in bases:
        return []
    return [f"auto chose {label}, the base itself: nothing is compared; type against=all"]


def _plan_of_waterfall(task: DictConfig, order: Sequence[str]) -> Plan:
    """Return the plan of a run whose mode is the first one of an order that can run the work."""
    refused: ConfigError | None = None
    for label in order:
        chosen = _with(task, mode_of_label(label))
        try:
            return plan_with_base(to_config(chosen), chosen)
        except ConfigError as error:
            if error.key != "mode":
                raise
            refused = refused or error
    assert refused is not None
    raise ConfigError("waterfall", refused.value, refused.allowed)


def plan_of_job(task: DictConfig) -> Plan:
    """Return the plan of a settled config, such as that of a job of a sweep."""
    task, chosen = resolved(task)
    return _noted(plan_of(task), chosen)


def _noted(plan: Plan, lines: Sequence[str]) -> Plan:
    return replace(plan, notices=(*lines, *plan.notices))


def _choice(plan: Plan, *, has_ahead: bool) -> Choice:
    """Return the choice for the work of a plan. has_ahead: only modes that take whole steps can run."""
    config, stream, info = plan.config, plan.stream, plan.info
    shapes = {str(shape): count for shape, count in stream.counts.items()}
    together = min(stream.requests, config.batching.max_batch)
    workload = workload_of(config.workload.name, stream.requests)
    work = work_of(workload, stream.has_steps, info.name, stream.dtype.name, shapes, together)
    batching = config.batching

    def runs_here(label: str) -> bool:
        try:
            name, chosen = choices_of(label)
            if label_of(name, stack_of(name, chosen)) != label:
                return False  # not as this program writes it
            options = options_of_label(label)
            arm = Arm(name, batching.max_batch, batching.timeout_us, batching.idle_us, options)
            takes = mode_class(name, options).takes_of(stream)
            return refusal_of(config, arm, info, stream) is None and (takes is Takes.steps or not has_ahead)
        except ConfigError:  # a mode of another version, or of a plugin that is not installed
            return False

    entries = [] if stream.packing else find_entries(info.name)  # of works without quantised weights
    choice = None if work is None else choose(entries, work, runs_here)
    return choice or Choice(TRIAL, "no other mode of the rule can run this")


def _with(task: DictConfig, mode: Mode, **settings: str | Sequence[str] | None) -> DictConfig:
    """Return a copy of the config with another mode and other settings."""
    found = task.copy()
    with read_write(found), open_dict(found):
        found.mode = mode
        for key, value in settings.items():
            found[key] = value
    return found
