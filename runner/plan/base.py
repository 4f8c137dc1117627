"""The base of a run: the mode that a single run is compared with if the user names none.

`against: auto` asks for a base, and `repeats: null` for REPEATS interleaved repeats beside it. A single run without a
profiler gets both, so that its table ends with a factor. With modes in `against` or a waterfall it takes REPEATS
repeats, too. A job of a sweep, an experiment or a table gets no base and one repeat.
"""

from __future__ import annotations

from dataclasses import replace

from omegaconf import DictConfig

from launchopt.errors import ArenaMemoryError, ConfigError
from launchopt.modes.stack import preset_stack, stack_of
from launchopt.statistics.interval import FEWEST_REPEATS
from launchopt.timing.nvtx_ranges import is_profiled
from runner.config.against import AUTO, settled
from runner.config.groups import Ordering, TimingKind
from runner.config.schema import Config
from runner.plan.plan import Plan, plan_of

REPEATS = FEWEST_REPEATS
INDEPENDENT, STEPS = "baseline", "engine"  # bases for independent commands, and for steps: what an engine launches


def bases_of(config: Config) -> tuple[str, ...]:
    """Return the modes that can be the base of a single run, the preferred one first; empty: it gets none."""
    if config.mode.label == INDEPENDENT or _is_traced(config) or config.ordering is Ordering.violated:
        return ()
    has_steps = config.workload.has_requests and config.ordering is not Ordering.none
    mode, stack = config.mode, stack_of(config.mode.name, config.mode.options)
    # A changed stack may have all choices of a base: coalesced with the fusions of engine.
    alike = {base for base in (STEPS, INDEPENDENT) if mode.label != mode.name and stack == preset_stack(base)}
    bases = (STEPS, INDEPENDENT) if has_steps and mode.label != STEPS else (INDEPENDENT,)
    return tuple(base for base in bases if base not in alike)


def plan_with_base(config: Config, task: DictConfig) -> Plan:
    """Return the plan of a single run, with a base if it gets one. `task` is the composed config of `config`."""
    if task.against != AUTO or config.waterfall:
        takes_many = (config.against or config.waterfall) and not _is_traced(config)
        return plan_of(settled(task, repeats=REPEATS if takes_many else 1))
    for base in bases_of(config):
        try:
            plan = plan_of(settled(task, [base], REPEATS))
            notice = f"{base} runs beside {config.mode.label}, as the base of its factor ('against=[]' leaves it out)"
            return replace(plan, notices=(*plan.notices, notice))
        except ArenaMemoryError:
            continue
        except ConfigError as error:
            if error.key != "against":
                raise
    return plan_of(settled(task))


def _is_traced(config: Config) -> bool:
    return config.timing.kind in (TimingKind.cupti, TimingKind.torch) or is_profiled()
