"""Time a decode step of a Llama-like model in PyTorch as an expert writes it: what a user would run instead.

    python scripts/peer_torch.py --models llama_3_2_1b,qwen3_0_6b --requests 1,16

The step is written once: merged weights for q, k and v and for gate and up, a static KV cache, SDPA, greedy sampling on
the GPU. Weights are random, in bf16; dimensions come from conf/model/*.yaml. Models of Qwen3 also normalize q and k.
Each way of running the step prints one line of JSON with the us per step:

    eager           one operator at a time
    graph           these operators, captured in a CUDA graph
    compiled_graph  the step compiled as a whole (fullgraph, coordinate descent), then captured in a CUDA graph
    cudagraph_tree  mode="reduce-overhead": the compiler captures the graphs itself

A time is the median over repeats of the wall time of `--steps` steps, divided by their number. No step waits for the
host, and each step's token is the next step's input. `setup_s` is the time to compile and capture.
`--kernels` adds the kernels of one step: name, number, and total us, by torch.profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo
import yaml
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

MODELS = Path(__file__).parents[1] / "conf" / "model"
DEVICE = "cuda"
EPSILON, THETA = 1e-5, 500_000.0
WAYS = ("eager", "graph", "compiled_graph", "cudagraph_tree")
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
EAGER_STEPS = 20  # an eager step takes milliseconds
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


def shape_of(name: str) -> Shape:
    """Return the dimensions of conf/model/NAME.yaml."""
    given = yaml.safe_load((MODELS / f"{name}.yaml").read_text())
    sizes = (given[key] for key in Shape._fields[:-1])
    return Shape(*sizes, normalizes_heads=given.get("qk_norm", name.startswith("qwen3")))


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
        seen = (self.positions <= position).view(1, 1, 1, -1)
        for layer in self.layers:
            qkv = functional.linear(_normalized(x, layer.norm1), layer.qkv)
            attended = self._attended(layer, qkv, position, (cosine, sine), seen)
            x = x + functional.linear(attended, layer.o)
            gate, up = functional.linear(_normalized(x, layer.norm2), layer.gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        return functional.linear(_normalized(x, self.gain), self.embedding).argmax(-1)

    def _attended(
        self, layer: Layer, qkv: Tensor, position: Tensor, angle: tuple[Tensor, Tensor], seen: Tensor
    ) -> Tensor:
        s = self.shape
        heads = qkv.view(self.requests, -1, s.head_dim)
        q, k, v = heads.split((s.q_heads, s.kv_heads, s.kv_heads), 1)
        if s.normalizes_heads:
            q, k = _normalized(q, layer.q_norm), _normalized(k, layer.k_norm)
        q, k = _rotated(q, *angle), _rotated(k, *angle)
        layer.keys.index_copy_(2, position, k.unsqueeze(2))
        layer.values.index_copy_(2, position, v.unsqueeze(2))
        attend = functional.scaled_dot_product_attention
        if self.attention == "gqa":
            found = attend(q.unsqueeze(2), layer.keys, layer.values, attn_mask=seen, enable_gqa=True)
            return found.reshape(self.requests, -1)
        # the query heads of a group as the rows of one query
        grouped = q.view(self.requests, s.kv_heads, -1, s.head_dim)
        mask = torch.where(seen, 0.0, float("-inf")).to(q.dtype)
        mask = mask.expand(self.requests, s.kv_heads, grouped.shape[2], -1)
        with sdpa_kernel(BACKENDS[self.attention]):
            found = attend(grouped, layer.keys, layer.values, attn_mask=mask)
        return found.reshape(self.requests, -1)


def _normalized(x: Tensor, gain: Tensor) -> Tensor:
    return functional.rms_norm(x, gain.shape, gain, EPSILON)


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


def measured(way: str, model: Model, steps: int, autotunes: bool, shows_kernels: bool) -> dict[str, Any]:
    """Return the result of one way, with its settings."""
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
    found["us"] = loop.replayed(graph) if graph else loop.called(step, EAGER_STEPS if way == "eager" else steps)
    found["wall_s"] = round(time.perf_counter() - start_s, 1)
    if graph and shows_kernels:
        found["kernels"] = kernels_of(graph.replay, loop.start)
    return found


def main() -> None:
    """Measure each way for each model and number of requests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="llama_3_2_1b", help="names of conf/model, with commas between them")
    parser.add_argument("--requests", default="1,16")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--context", type=int, default=256, help="tokens of the KV cache")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--attention", choices=("gqa", *BACKENDS), default="gqa")
    parser.add_argument("--autotune", choices=("one", "all", "none"), default="one", help="for which requests")
    parser.add_argument("--kernels", action="store_true", help="list the kernels of a captured step")
    options = parser.parse_args()
    torch._inductor.config.coordinate_descent_tuning = True
    torch.manual_seed(0)
    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}
    for name in options.models.split(","):
        for requests in map(int, options.requests.split(",")):
            with torch.inference_mode():
                model = Model(shape_of(name), requests, options.context, options.attention)
                about |= {"model": name, "requests": requests, "attention": options.attention}
                about |= {"context": options.context, "weight_bytes": model.weight_bytes}
                autotunes = options.autotune == "all" or (options.autotune == "one" and requests == 1)
                for way in options.ways.split(","):
                    try:
                        result = measured(way, model, options.steps, autotunes, options.kernels)
                    except Exception as error:
                        result = {"way": way, "failed": f"{type(error).__name__}: {error}"[:300]}
                    print(json.dumps(about | result), flush=True)
                del model
            torch._dynamo.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
