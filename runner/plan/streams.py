"""The stream of a config: its requests, when they arrive, how many copies of the weights, and its commands.

In: a checked config; a trace's file, where it names one; what the device's caches hold. Out: a `Stream`, no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals import process
from launchopt.arrivals.replay import read_requests
from launchopt.arrivals.requests import Requests
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.sampling import SamplingKind
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.decode import decode, decode_requests, linears
from launchopt.workloads.footprint import replicas_for
from launchopt.workloads.gemv import gemv
from launchopt.workloads.model import ModelShape
from launchopt.workloads.prefill import prefill, prefill_requests
from runner.config.arrivals import Closed, Replay
from runner.config.groups import Decode, Gemv, Ordering, Prefill
from runner.config.programs import Steps, program_of
from runner.config.schema import Config
from runner.config.traces import Trace, trace_stream
from runner.plan.job import Stream


def requests_of(config: Config) -> Requests | None:
    """The requests of a file, or those that the workload describes; None where there are none."""
    workload, arrival = config.workload, config.arrival
    if isinstance(workload, Gemv | Trace):
        return None
    if isinstance(arrival, Replay):
        requests = read_requests(Path(arrival.path), arrival.format.value, arrival.requests)
        if config.ordering is not Ordering.none:
            return _replayed(config, requests)
        if np.any(requests.after >= 0):
            raise ConfigError("ordering", "none", f"requests of {arrival.path} wait for others; use per_request")
        return requests
    if config.ordering is Ordering.none:
        return None
    if isinstance(workload, Prefill):
        count, prompt, tokens = workload.prompts, workload.tokens, 1
    else:
        count, prompt, tokens = workload.requests, workload.prompt_tokens, workload.tokens
    return Requests(_arrivals(config, count), np.full(count, prompt), np.full(count, tokens))


def _replayed(config: Config, requests: Requests) -> Requests:
    """At the asked speed; of a prefill the prompts alone."""
    due_ns = (requests.arrival_ns / config.arrival.speed).astype(np.int64)
    if not isinstance(config.workload, Prefill):
        return Requests(due_ns, requests.context_tokens, requests.generated_tokens, requests.after)
    if not requests.context_tokens.all():
        raise ConfigError("workload", "prefill", f"a request of {config.arrival.path} has no prompt")
    return Requests(due_ns, requests.context_tokens, np.ones(len(requests), np.int64), requests.after)


def _arrivals(config: Config, count: int) -> NDArray[np.int64]:
    """When each of `count` arrivals is due, ns since the start; all at once in a closed loop."""
    arrival = config.arrival
    try:
        if arrival.kind == "constant":
            return process.constant(arrival.rate_per_s, count)
        if arrival.kind == "poisson":
            return process.poisson(arrival.rate_per_s, count, config.seed)
        if arrival.kind == "bursty":
            return process.bursty(arrival.rate_per_s, arrival.burst_size, arrival.peak_per_s, count, config.seed)
    except ValueError as error:
        raise ConfigError("arrival.rate_per_s", arrival.rate_per_s, str(error)) from None
    return np.zeros(count, np.int64)


def builder(config: Config, info: DeviceInfo, requests: Requests | None) -> Callable[[int], Stream]:
    """A function from a number of layers to the stream."""
    workload, dtype = config.workload, config.workload.dtype

    def replicas(weights: int, multiple: int = 1) -> int:
        if workload.replicas is not None:
            return int(workload.replicas)
        return replicas_for(workload.cache, weights * dtype.itemsize, info.cache_bytes, multiple)

    if isinstance(workload, Gemv):
        copies = replicas(workload.m * workload.k, min(config.batching.max_batch, workload.commands))
        gemm = (workload.m, workload.n, workload.k, workload.commands)
        due_ns = None if isinstance(config.arrival, Closed) else _arrivals(config, workload.commands)
        return lambda layers: gemv(*gemm, dtype, copies, workload.shuffle, config.seed, due_ns)

    model = model_shape(config)
    program = None
    if isinstance(workload, Steps):
        assert requests is not None
        program = program_of(workload, model, requests)
    weights_a_layer = program.weights if program else sum(m * k for _, m, k in model.linears())

    vocab = None if config.sampling.kind is SamplingKind.none else config.model.vocab

    def build(layers: int) -> Stream:
        copies = replicas(weights_a_layer * layers)
        if config.ordering is not Ordering.none:
            assert requests is not None
            chunk = config.scheduler.chunk_tokens
            return ChainStream(program or linears(model), layers, requests, dtype, copies, vocab, chunk, config.seed)
        if requests is not None:
            of_requests = prefill_requests if isinstance(workload, Prefill) else decode_requests
            return of_requests(model, layers, requests, config.arrival.speed, dtype, copies)
        if isinstance(workload, Prefill):
            return prefill(model, layers, workload.prompts, workload.tokens, dtype, copies)
        assert isinstance(workload, Decode)
        return decode(model, layers, workload.tokens, workload.users, dtype, copies)

    return build


def stream_on(config: Config, info: DeviceInfo) -> Stream:
    """The stream of a config with all its layers, on a device like `info`: to ask who could run it, not to run it."""
    if isinstance(config.workload, Trace):
        return trace_stream(config.workload, info.cache_bytes, config.batching.max_batch, [])
    layers = getattr(config.workload, "layers", None) or config.model.layers
    return builder(config, info, requests_of(config))(layers)


def model_shape(config: Config) -> ModelShape:
    """The model of the config, as the library's arithmetic takes it."""
    model = config.model
    return ModelShape(
        model.name,
        model.hidden,
        model.layers,
        model.q_heads,
        model.kv_heads,
        model.head_dim,
        model.intermediate,
        model.gated,
    )
