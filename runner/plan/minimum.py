"""What a job needs at least, from its numbers alone: so that what could never fit is refused before it is laid out.

In: a checked config and, once they are read, the requests of a file. Out: commands and bytes, each no more than the
job's own; `plan` compares them with the memory there is. Laying out 2**31 requests would take that memory, or minutes,
before the exact figures said the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.sampling import SamplingKind
from launchopt.workloads.decode import linears
from launchopt.workloads.model import ModelShape
from launchopt.workloads.stream import SLOT_ALIGNMENT_BYTES
from runner.config.arrivals import Replay
from runner.config.groups import Decode, Gemv, Ordering, Prefill
from runner.config.programs import OwnSize
from runner.config.schema import Config
from runner.config.traces import Trace

STEP_COMMANDS = 3  # of a layer of any workload, at least


class Least(NamedTuple):
    """No more than the job will have of each."""

    commands: int
    operand_bytes: int  # on the device


class _Steps(NamedTuple):
    requests: int
    steps: int
    columns: int
    tokens: int


def at_least(config: Config, model: ModelShape, requests: Requests | None) -> Least:
    """Of the job; `requests`: None where the config describes them, or their file has not been read."""
    workload = config.workload
    if isinstance(workload, Gemv):
        weights = _slot(workload.m * workload.k, workload.dtype.itemsize) * (workload.replicas or 1)
        outputs = _slot(workload.m * workload.n, workload.dtype.itemsize) * workload.commands
        return Least(workload.commands, weights + outputs)
    if isinstance(workload, Trace) or (isinstance(config.arrival, Replay) and requests is None):
        return Least(0, 0)
    layers, itemsize = workload.layers or 1, workload.dtype.itemsize
    hidden = workload.hidden if isinstance(workload, OwnSize) else model.hidden
    widths = [m for m, _ in linears(model)] if isinstance(workload, Decode | Prefill) else [hidden]
    asked = _steps(config, requests)
    if config.ordering is Ordering.none:
        slots = asked.steps * len(widths) * SLOT_ALIGNMENT_BYTES
        outputs = layers * max(slots, asked.columns * sum(widths) * itemsize)
    else:
        outputs = asked.requests * layers * sum(_slot(width, itemsize) for width in widths)
        kept = asked.tokens if config.sampling.kind is SamplingKind.none else 0
        outputs += kept * _slot(hidden, itemsize)
    return Least(asked.steps * layers * STEP_COMMANDS, outputs)


def _slot(elements: int, itemsize: int) -> int:
    return -(-elements * itemsize // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def _steps(config: Config, requests: Requests | None) -> _Steps:
    """In floating point where a file's numbers could be beyond int64 together."""
    workload, times = config.workload, 1
    if requests is not None:
        prompts, tokens = requests.context_tokens.astype(float), requests.generated_tokens.astype(float)
        count = len(requests)
    elif isinstance(workload, Prefill):
        prompts, tokens, count = np.array([float(workload.tokens)]), np.ones(1), workload.prompts
        times = count
    else:
        prompts, tokens = np.array([float(getattr(workload, "prompt_tokens", 0))]), np.array([float(workload.tokens)])
        count = 1 if config.ordering is Ordering.none else workload.requests
        times = count
    chunk = config.scheduler.chunk_tokens or np.inf
    has_prompt = prompts > 0
    chunks = np.where(has_prompt, np.maximum(np.ceil(prompts / chunk), 1), 0)
    decodes = np.maximum(tokens - has_prompt, 0)
    users = workload.users if isinstance(workload, Decode) else 1
    columns = float((prompts + decodes).sum()) * users
    return _Steps(count, times * int((chunks + decodes).sum()), times * int(columns), times * int(tokens.sum()))
