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
from launchopt.workloads.base import Least
from launchopt.workloads.model import ModelShape
from launchopt.workloads.stream import SLOT_ALIGNMENT_BYTES, aligned_bytes
from runner.config.groups import Ordering
from runner.config.schema import Config

STEP_COMMANDS = 3  # of a layer of any workload, at least


class _Steps(NamedTuple):
    requests: int
    steps: int
    columns: int
    tokens: int


def at_least(config: Config, model: ModelShape, requests: Requests | None) -> Least:
    """Return lower bounds; `requests`: None where the config describes them, or their file has not been read."""
    workload = config.workload
    if not workload.has_requests:
        least: Least = workload.least()
        return least
    if config.arrival.has_requests and requests is None:
        return Least(0, 0)
    layers, itemsize = workload.layers or 1, workload.dtype.itemsize
    widths: list[int] = workload.widths(model)
    asked = _steps(config, requests)
    if config.ordering is Ordering.none:
        slots = asked.steps * len(widths) * SLOT_ALIGNMENT_BYTES
        outputs = layers * max(slots, asked.columns * sum(widths) * itemsize)
    else:
        outputs = asked.requests * layers * sum(aligned_bytes(width * itemsize) for width in widths)
        kept = asked.tokens if config.sampling.kind is SamplingKind.none else 0
        outputs += kept * aligned_bytes(widths[-1] * itemsize)
    return Least(asked.steps * layers * STEP_COMMANDS, outputs)


def _steps(config: Config, requests: Requests | None) -> _Steps:
    """Count in floating point, since a file's numbers may be beyond int64 together."""
    workload, times = config.workload, 1
    if requests is not None:
        prompts, tokens = requests.context_tokens.astype(float), requests.generated_tokens.astype(float)
        count = len(requests)
    else:
        asked = workload.asked()
        prompts, tokens = np.array([float(asked.prompt_tokens)]), np.array([float(asked.tokens)])
        count = times = asked.count
    chunk = config.scheduler.chunk_tokens or np.inf
    has_prompt = prompts > 0
    chunks = np.where(has_prompt, np.maximum(np.ceil(prompts / chunk), 1), 0)
    decodes = np.maximum(tokens - has_prompt, 0)
    columns = float((prompts + decodes).sum()) * workload.users
    return _Steps(count, times * int((chunks + decodes).sum()), times * int(columns), times * int(tokens.sum()))
