"""A lower bound of a job's commands and bytes, computed from its config alone.

`plan` compares it with the free memory before it lays out the stream. Laying out 2**31 requests would itself take that
memory, or minutes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.sampling import SamplingKind
from launchopt.streams.model import ModelShape
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES, aligned_bytes
from launchopt.workloads.base import Minimum
from runner.config.groups import Ordering, Prefixes
from runner.config.schema import Config

STEP_COMMANDS = 3  # minimum commands per layer and step, over all workloads


class _Steps(NamedTuple):
    requests: int
    steps: int
    columns: int
    tokens: int


def minimum_of(config: Config, model: ModelShape, requests: Requests | None) -> Minimum:
    """Return the minimum of a job. `requests` is None if the config describes them, or before their file is read."""
    workload = config.workload
    if not workload.has_requests:
        minimum: Minimum = workload.minimum()
        return minimum
    if config.arrival.has_requests and requests is None:
        return Minimum(0, 0)
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
    return Minimum(asked.steps * layers * STEP_COMMANDS, outputs)


def _steps(config: Config, requests: Requests | None) -> _Steps:
    """Count requests, steps, columns and tokens, in floating point: sums of a file's numbers may exceed int64."""
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
    if config.scheduler.prefixes is not Prefixes.none:
        prompts = np.minimum(prompts, 1)  # all others may be cached
    chunks = np.where(has_prompt, np.maximum(np.ceil(prompts / chunk), 1), 0)
    decodes = np.maximum(tokens - has_prompt, 0)
    columns = float((prompts + decodes).sum()) * workload.users
    return _Steps(count, times * int((chunks + decodes).sum()), times * int(columns), times * int(tokens.sum()))
