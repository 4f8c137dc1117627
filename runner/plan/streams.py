"""The stream of a config: its requests, their arrivals and its commands. Allocates no memory on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.base import SPAN_NS_MAX
from launchopt.arrivals.requests import Requests
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.huggingface.left_out import ONLY_MOE, ONLY_WEIGHTS, SEPARATOR
from launchopt.sampling import SamplingKind
from launchopt.streams.chains.chain import Stream
from launchopt.weights.packing import PLAIN
from launchopt.workloads.base import Setting
from runner.config.groups import AllReduce, Ordering
from runner.config.schema import Config
from runner.plan.shared_prefixes import prefix_notice, shared_of

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # names in a config.json, and ours


def requests_of(config: Config) -> Requests | None:
    """Return the requests of a file, or those that the workload's options describe.

    None: commands are independent, or ordering=none, with which the options alone determine the stream.
    """
    workload, arrival = config.workload, config.arrival
    if not workload.has_requests:
        return None
    if arrival.has_requests:
        requests: Requests = arrival.read()
        if config.ordering is not Ordering.none:
            due_ns = (requests.arrival_ns / arrival.speed).astype(np.int64)
            replayed: Requests = workload.replayed(replace(requests, arrival_ns=due_ns), arrival.path)
            return replayed
        if np.any(requests.after >= 0):
            raise ConfigError("ordering", "none", f"requests of {arrival.path} wait for others; use per_request")
        return requests
    if config.ordering is Ordering.none:
        return None
    asked = workload.asked()
    due_ns, prompts = _due_ns(config, asked.count), np.full(asked.count, asked.prompt_tokens)
    return Requests(due_ns, prompts, np.full(asked.count, asked.tokens))


def _due_ns(config: Config, count: int) -> NDArray[np.int64]:
    """Return the due time of each of `count` arrivals: int64 [count], ns since the start."""
    arrival = config.arrival
    try:
        due_ns: NDArray[np.int64] = arrival.due_ns(count, config.seed)
    except ValueError as error:
        raise ConfigError("arrival.rate_per_s", arrival.asked_rate_per_s, str(error)) from None
    is_right = isinstance(due_ns, np.ndarray) and due_ns.dtype == np.int64 and due_ns.shape == (count,)
    if not is_right or due_ns[0] < 0 or due_ns[-1] > SPAN_NS_MAX or np.any(due_ns[1:] < due_ns[:-1]):
        why = f"its due_ns must return {count} int64 times that never decrease, from 0 to {SPAN_NS_MAX} ns"
        raise ConfigError("arrival", arrival.kind, why)
    return due_ns


def is_open(config: Config, stream: Stream | None = None) -> bool:
    """Return whether independent commands are due at times of their own. stream: may have those of a trace."""
    by_rule = not (config.workload.has_requests or config.arrival.is_closed)
    return by_rule or (stream is not None and bool(stream.span_ns))


def due_per_s(config: Config, stream: Stream) -> float | None:
    """Return the mean rate at which the commands of an open loop are due; None if all are due at once."""
    if stream.span_ns:  # a trace whose commands arrive at their recorded times
        return stream.commands / stream.span_ns * 1e9
    if (asked := config.arrival.asked_rate_per_s) is not None:
        return float(asked)
    span_ns = int(_due_ns(config, stream.commands)[-1])  # a plugin's rule may have no rate
    return (stream.commands - 1) / span_ns * 1e9 if span_ns else None


def setting_of(config: Config, info: DeviceInfo, requests: Requests | None) -> Setting:
    """Return the inputs of the workload's stream besides its options. ConfigError for an impossible arrival rate."""
    workload = config.workload
    notices = [] if workload.instead_of_model else model_notices(config)
    if prefixes := shared_of(config, requests):
        notices.append(prefix_notice(prefixes))
    return Setting(
        model=config.model.shape(),
        cache_bytes=info.cache_bytes,
        max_batch=config.batching.max_batch,
        seed=config.seed,
        device_kind=info.kind,
        requests=requests,
        is_ordered=config.ordering is not Ordering.none,
        due_ns=_due_ns(config, workload.count(info.kind)) if is_open(config) else None,
        vocab=None if config.sampling.kind is SamplingKind.none else config.model.vocab,
        chunk_tokens=config.scheduler.chunk_tokens,
        prefixes=prefixes,
        tensor=config.parallel.tensor,
        rounds_sums=config.parallel.all_reduce is AllReduce.nccl,
        speed=config.arrival.speed if config.arrival.has_requests else 1.0,
        notices=notices,
    )


def model_notices(config: Config) -> list[str]:
    """Return what the user should know of a published model: its dtype if another one runs, and what does not run."""
    model, ran = config.model, config.workload.dtype.name
    is_other = model.dtype is not None and DTYPES.get(model.dtype, model.dtype) != ran
    other = [f"{model.name}: published in {model.dtype}, run in workload.dtype={ran}"] if is_other else []
    ran_here = [ONLY_MOE] if config.workload.name == "moe" else []
    ran_here += [ONLY_WEIGHTS] if getattr(config.workload, "packing", PLAIN) else []
    left_out = [each for each in (model.left_out or "").split(SEPARATOR) if not each.endswith(tuple(ran_here))]
    return [*other, f"{model.name}: no workload runs {SEPARATOR.join(left_out)}"] if any(left_out) else other


def stream_on(config: Config, info: DeviceInfo) -> Stream:
    """Return the workload stream with all its layers, for a device with the facts in `info`.

    `runner.matrix` passes it to each mode's `refusal`, to learn whether the mode can run it.
    """
    layers = config.workload.layers_in(config.model.layers)
    stream: Stream = config.workload.stream(layers, setting_of(config, info, requests_of(config)))
    return stream
