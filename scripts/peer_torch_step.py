"""A decode step of a Llama-like model in PyTorch, and the ways to run and time it; scripts/peer_torch.py prints them.

The step is written once: merged weights for q, k and v and for gate and up, a static KV cache, SDPA, greedy sampling on
the GPU. Weights are random, in bf16. Each step's token is the next step's input, and no step waits for the host.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._inductor.config
import yaml
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"
NORM_EPSILON = 1e-5  # of a card that does not say another one
THETA = 500_000.0
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
EAGER_STEPS = 20  # at most: an eager step takes milliseconds
REPEATS, DROPPED = 7, 2  # the first repeats warm up

Step = Callable[[Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    """Dimensions of a model."""

    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    normalizes_heads: bool
    norm_epsilon: float


class Layer(NamedTuple):
    """Weights and KV cache of a layer. keys, values: [requests, kv heads, context, head_dim]."""

    norm1: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor


def shape_of(card: Path) -> Shape:
    """Return the dimensions in a file of conf/model."""
    given = yaml.safe_load(card.read_text(encoding="utf-8"))
    norms = given.get("qk_norm", False), given.get("norm_epsilon", NORM_EPSILON)
    return Shape(*(given[key] for key in Shape._fields[:-2]), *norms)


class Model:
    """Random weights of a model, and empty KV caches."""

    def __init__(self, shape: Shape, requests: int, context: int, attention: str) -> None:
        self.shape, self.requests, self.context, self.attention = shape, requests, context, attention
        self.embedding, self.gain = self._weight(shape.vocab, shape.hidden), self._ones(shape.hidden)
        self.layers = [self._layer() for _ in range(shape.layers)]
        frequencies = THETA ** -(torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
        angles = torch.outer(torch.arange(context).double(), frequencies)
        both = torch.cat([angles, angles], -1)
        self.cosines, self.sines = (f(both).to(torch.bfloat16).to(DEVICE) for f in (torch.cos, torch.sin))
        self.positions = torch.arange(context, device=DEVICE)
        self.shown, self.hidden = (
            torch.full((), value, device=DEVICE, dtype=torch.bfloat16) for value in (0.0, float("-inf"))
        )
        self.weight_bytes = sum(
            each.nbytes for layer in self.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)
        )
        self.weight_bytes += self.embedding.nbytes  # the LM head is the embedding

    def _weight(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, device=DEVICE, dtype=torch.bfloat16) / columns**0.5

    def _ones(self, features: int) -> Tensor:
        return torch.ones(features, device=DEVICE, dtype=torch.bfloat16)

    def _layer(self) -> Layer:
        s = self.shape
        width, kv_width = s.q_heads * s.head_dim, s.kv_heads * s.head_dim
        caches = [
            torch.zeros(self.requests, s.kv_heads, self.context, s.head_dim, device=DEVICE, dtype=torch.bfloat16)
            for _ in range(2)
        ]
        for cache in caches:
            torch._dynamo.mark_static_address(cache)
        return Layer(
            self._ones(s.hidden),
            self._weight(width + 2 * kv_width, s.hidden),
            self._ones(s.head_dim),
            self._ones(s.head_dim),
            self._weight(s.hidden, width),
            self._ones(s.hidden),
            self._weight(2 * s.intermediate, s.hidden),
            self._weight(s.hidden, s.intermediate),
            *caches,
        )

    def step(self, token: Tensor, position: Tensor) -> Tensor:
        """Return the next token of each request. position: int64 [1], where the step writes keys and values."""
        x = functional.embedding(token, self.embedding)
        cosine, sine = self.cosines[position], self.sines[position]
        # Of floats: from a mask of booleans, PyTorch would make one of floats in every layer.
        mask = torch.where(self.positions <= position, self.shown, self.hidden).view(1, 1, 1, -1)
        for layer in self.layers:
            qkv = functional.linear(self._normalized(x, layer.norm1), layer.qkv)
            attended = self._attended(layer, qkv, position, (cosine, sine), mask)
            x = x + functional.linear(attended, layer.o)
            gate, up = functional.linear(self._normalized(x, layer.norm2), layer.gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        return functional.linear(self._normalized(x, self.gain), self.embedding).argmax(-1)

    def _attended(
        self, layer: Layer, qkv: Tensor, position: Tensor, angle: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        s = self.shape
        heads = qkv.view(self.requests, -1, s.head_dim)
        q, k, v = heads.split((s.q_heads, s.kv_heads, s.kv_heads), 1)
        if s.normalizes_heads:
            q, k = self._normalized(q, layer.q_norm), self._normalized(k, layer.k_norm)
        q, k = _rotated(q, *angle), _rotated(k, *angle)
        layer.keys.index_copy_(2, position, k.unsqueeze(2))
        layer.values.index_copy_(2, position, v.unsqueeze(2))
        attend = functional.scaled_dot_product_attention
        if self.attention == "gqa":
            found = attend(q.unsqueeze(2), layer.keys, layer.values, attn_mask=mask, enable_gqa=True)
            return found.reshape(self.requests, -1)
        # the query heads of a group as the rows of one query
        grouped = q.view(self.requests, s.kv_heads, -1, s.head_dim)
        mask = mask.expand(self.requests, s.kv_heads, grouped.shape[2], -1)
        with sdpa_kernel(BACKENDS[self.attention]):
            found = attend(grouped, layer.keys, layer.values, attn_mask=mask)
        return found.reshape(self.requests, -1)

    def _normalized(self, x: Tensor, gain: Tensor) -> Tensor:
        return functional.rms_norm(x, gain.shape, gain, self.shape.norm_epsilon)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def median_us(run: Callable[[], None], start: Callable[[], object], steps: int) -> float:
    """Return the median us per step. run: runs `steps` steps. start: sets the first token and position."""
    found = []
    for _ in range(REPEATS):
        start()
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start_s) / steps * 1e6)
    return round(statistics.median(found[DROPPED:]), 1)


class Loop:
    """Token and position of all requests, at fixed addresses, and the ways to run steps on them."""

    def __init__(self, requests: int, steps: int) -> None:
        self.token = torch.zeros(requests, device=DEVICE, dtype=torch.long)
        self.position = torch.zeros(1, device=DEVICE, dtype=torch.long)
        self.steps = steps

    def start(self) -> None:
        """Begin at the first position."""
        self.token.zero_()
        self.position.zero_()

    def called(self, step: Step, steps: int) -> float:
        """Return the us per step if Python calls each step."""

        def run() -> None:
            for _ in range(steps):
                self.token.copy_(step(self.token, self.position))
                self.position.add_(1)

        return median_us(run, self.start, steps)

    def captured(self, step: Step) -> torch.cuda.CUDAGraph:
        """Return the step, and the feedback of its token, as a CUDA graph."""
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step(self.token, self.position)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.token.copy_(step(self.token, self.position))
            self.position.add_(1)
        return graph

    def replayed(self, graph: torch.cuda.CUDAGraph) -> float:
        """Return the us per step if each is a replay."""

        def run() -> None:
            for _ in range(self.steps):
                graph.replay()

        return median_us(run, self.start, self.steps)


def kernels_of(replay: Callable[[], None], start: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Return the kernels of one step: name, number, total us; the longest in total first."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    start()
    with torch.profiler.profile(activities=activities) as profile:
        replay()
        torch.cuda.synchronize()
    calls, spent_us = Counter[str](), Counter[str]()
    for event in profile.events():
        calls[event.name] += 1
        spent_us[event.name] += event.device_time
    return [(name[:90], calls[name], round(us, 1)) for name, us in spent_us.most_common()]


def compiled(step: Step, mode: str | None) -> Step:
    """Return the step compiled as a whole."""
    made: Step = torch.compile(step, fullgraph=True, dynamic=False, mode=mode)
    return made


def measured(way: str, model: Model, steps: int, autotunes: bool) -> dict[str, Any]:
    """Return the result of one way, with its settings."""
    torch._inductor.config.coordinate_descent_tuning = True
    loop, step, found = Loop(model.requests, steps), model.step, dict[str, Any](way=way)
    start_s = time.perf_counter()
    if way == "compiled_graph":
        found["compile_mode"] = "max-autotune-no-cudagraphs" if autotunes else "default"
        step = compiled(step, found["compile_mode"] if autotunes else None)
    if way == "cudagraph_tree":
        found["compile_mode"] = "reduce-overhead"
        inner = compiled(step, "reduce-overhead")

        def marked(token: Tensor, position: Tensor) -> Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return inner(token, position)

        step = marked
    graph = loop.captured(step) if "_graph" in f"_{way}" and way != "cudagraph_tree" else None
    called_steps = min(steps, EAGER_STEPS) if way == "eager" else steps
    found["us"] = loop.replayed(graph) if graph else loop.called(step, called_steps)
    found["wall_s"] = round(time.perf_counter() - start_s, 1)
    if graph:
        found["kernels"] = kernels_of(graph.replay, loop.start)
    return found


def about() -> dict[str, Any]:
    """Return the versions and the name of the GPU."""
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}


def results(
    shape: Shape, requests: int, context: int, attention: str, ways: Sequence[str], steps: int, autotunes: bool
) -> Iterator[dict[str, Any]]:
    """Yield the result of each way, or why it failed."""
    with torch.inference_mode():
        model = Model(shape, requests, context, attention)
        for way in ways:
            try:
                found = measured(way, model, steps, autotunes)
            except Exception as error:
                found = {"way": way, "failed": f"{type(error).__name__}: {error}"[:300]}
            yield {"weight_bytes": model.weight_bytes} | found
    torch._dynamo.reset()
    torch.cuda.empty_cache()
