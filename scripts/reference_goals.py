"""The parts of the reference results for the goals of whole decode steps, and for the waterfalls.

A goal compares the time of a step with the time in which the GPU reads the weights once, in one run with its rivals. In
three parts `scripts/peer_torch.py` runs before that run and behind it. A waterfall has a part for each order of its
stacks. Independent commands have a part, too, so that a headline has both bases.

The `seconds` are about those on an H200, two parts at a time. PyTorch compiles a model for 90 to 200 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

from scripts.reference_part import Part, run_words

EXPERIMENT = Path(__file__).parents[1] / "conf/experiment/waterfall.yaml"
GOALS, WATERFALL = "goals", "waterfall"  # the folders of the parts
RUN, PEERS = "run", ("peer_before", "peer_behind")  # below the folder of a goal
INDEPENDENT, LOOP = "independent", "loop"
FUSED, LOOPED = "engine+silu+epilogue+graph+own+pdl", "engine+silu+epilogue+graph_loop+own+pdl"
MINUTES = 9.5  # of a call of ten
PEER_CONTEXT = 112  # tokens: those of the run, up to the alignment of PyTorch's mask
ORDERS = ("fusions_first", "launches_first")  # those of experiment=waterfall
WATERFALL_MODELS = ("llama_3_2_1b", "qwen3_0_6b")
# Tokens of each request, by requests, the most wanted first. A check computes every token in float64.
WATERFALL_TOKENS = {1: 100, 16: 50, 4: 100, 64: 25}


class Goal(NamedTuple):
    """A row of the goals: the time of a step on an H200, and the time in which that GPU reads the weights, in us."""

    model: str
    requests: int
    goal_us: int
    floor_us: int
    seconds: int  # of its part
    peers: tuple[
        str, ...
    ] = ()  # folders of PyTorch alone, which runs before and behind it; or only before, to save time
    against: tuple[str, ...] = ()  # the rivals, if not all those of experiment=goals

    @property
    def name(self) -> str:
        """Folder of its part, below GOALS."""
        return f"{self.model}_{self.requests}"

    @property
    def part(self) -> Part:
        """The part that measures it."""
        place = f"{{folder}}/{RUN}"
        rivals = [f"'against=[{','.join(self.against)}]'"] if self.against else []
        words = " ".join([f"experiment=goals model={self.model} workload.requests={self.requests}", *rivals])
        commands = [run_words(words, place), f"python -m runner report {place} --strategies"]
        words_of_peers = [self._peer_words(name) for name in self.peers]
        commands = [*words_of_peers[:1], *commands, *words_of_peers[1:]]
        return Part(f"{GOALS}/{self.name}", "cuda", MINUTES, tuple(commands), seconds=self.seconds)

    def _peer_words(self, name: str) -> str:
        size = f"--models {self.model} --requests {self.requests} --context {PEER_CONTEXT}"
        return f"python -m scripts.peer_torch {size} --ways graph,compiled_graph --output {{folder}}/{name}"


GOAL_ROWS = (
    Goal("llama_3_2_1b", 1, 760, 567, 230, PEERS),
    Goal("llama_3_2_1b", 16, 900, 567, 360, PEERS[:1]),
    Goal("qwen3_0_6b", 1, 650, 273, 240, PEERS),
    Goal("llama_3_8b", 1, 3900, 3443, 160),
    # With graph_loop it takes more than ten minutes.
    Goal("llama_3_8b", 16, 4100, 3443, 390, against=("graph", FUSED, "torch_compile", "megakernel")),
)
_SETTINGS = "table=strategies_gemv_micro mode=batched 'against=[baseline,graph,persistent]' repeats=5"
# One launch for 100 tokens, for its CPU time: in the other parts a launch of graph_loop has 64 tokens at most.
_LOOP = (
    "experiment=goals workload.tokens=101 mode.submit=graph_loop mode.tokens=100 mode.kernels=own mode.pdl=true"
    " 'mode.fuse=[qkv,gate_up,norm,rope_kv,attention,silu,epilogue]' 'against=[engine]'"
)
GOAL_PARTS = (
    *(row.part for row in GOAL_ROWS),
    Part(
        f"{GOALS}/{LOOP}",
        "cuda",
        5,
        (run_words(_LOOP, f"{{folder}}/{RUN}"), f"python -m runner report {{folder}}/{RUN} --strategies"),
        seconds=15,
    ),
    Part(
        f"{GOALS}/{INDEPENDENT}",
        "cuda",
        5,
        (run_words(_SETTINGS, f"{{folder}}/{RUN}"), f"python -m runner report {{folder}}/{RUN} --strategies"),
        seconds=30,
    ),
)


def _orders() -> dict[str, str]:
    """Return the orders of experiment=waterfall, each as a setting of a run of its own."""
    orders = yaml.safe_load(EXPERIMENT.read_text(encoding="utf-8"))["waterfall"]
    return {name: f"'waterfall=[[{','.join(order)}]]'" for name, order in zip(ORDERS, orders, strict=True)}


def _waterfall(model: str, requests: int, name: str, order: str) -> Part:
    tokens = WATERFALL_TOKENS[requests]
    size = f"model={model} workload.requests={requests} workload.tokens={tokens}"
    words = f"experiment=waterfall hydra.mode=RUN {size} {order}"
    folder, seconds = f"{WATERFALL}/{model}_{requests}/{name}", 70 + tokens * requests // 16
    return Part(folder, "cuda", MINUTES, (run_words(words),), seconds=seconds)


WATERFALL_PARTS = tuple(
    _waterfall(model, requests, *order)
    for requests in WATERFALL_TOKENS
    for model in WATERFALL_MODELS
    for order in _orders().items()
)
