"""What a workload is: a dataclass of options that makes a stream of commands.

In: its options, and a `Setting`, which holds whatever else a stream depends on. Out: a stream; no memory is allocated.
`Workload` is the base of all, `OfModel` of those whose commands are steps of requests, `Steps` of those among them
that have requests side by side and keep their order, `OwnSize` of those that have no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.options import REQUIRED, check_options, option
from launchopt.workloads.chain import ChainStream, Stream
from launchopt.workloads.footprint import Cache, replicas_for
from launchopt.workloads.model import MOST_LAYERS, ModelShape
from launchopt.workloads.program import Program, linear_program


@dataclass(frozen=True, slots=True)
class Setting:
    """What a stream depends on besides the options of its workload."""

    model: ModelShape
    cache_bytes: int  # of the device's last-level cache
    max_batch: int  # commands
    seed: int
    requests: Requests | None = None  # None: the workload says all
    is_ordered: bool = True  # each request's commands run in order
    due_ns: NDArray[np.int64] | None = None  # int64 [commands], of independent commands; None: a closed loop
    vocab: int | None = None  # width of the LM head; None: nothing is sampled
    chunk_tokens: int | None = None  # most columns of a prompt's step; None: whole prompts
    speed: float = 1.0  # of a replay without order: 2 is twice the pace
    notices: list[str] = field(default_factory=list)  # what the user is told; a workload may add to it


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests that are all alike."""

    count: int
    prompt_tokens: int
    tokens: int  # generated a request


class Minimum(NamedTuple):
    """Lower bounds on what a job needs."""

    commands: int
    operand_bytes: int  # on the device


@dataclass(slots=True)
class Workload:
    """Options that every workload has, and what the rest of the program asks of a workload."""

    name: str = REQUIRED
    cache: Cache = option(Cache.cold, "cold: inputs cycle over at least 4x the cache; hot: they fit in half of it")
    replicas: int | None = option(None, "distinct weights, or copies of all layers; null: what `cache` asks for", low=1)

    has_requests: ClassVar[bool] = False  # commands are steps of requests
    has_layers: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False  # ordering=none is refused
    own_arrival: ClassVar[str] = ""  # why arrival= is refused, of a workload that says itself when commands are due
    instead_of_model: ClassVar[str] = ""  # what to use instead of model=, of a workload that has its own shape
    smallest: ClassVar[tuple[str, ...]] = ()  # overrides of a small run; {trace} stands for a trace's path

    def __post_init__(self) -> None:
        check_options("workload", self)

    @classmethod
    def option(cls) -> str | None:
        """Return its name on the command line; None where presets in conf/workload name it."""
        default = str(next(each.default for each in fields(cls) if each.name == "name"))
        return None if default == REQUIRED else default

    def model_name(self, model: str) -> str | None:
        """Return whose shapes the commands have, given the name of the chosen model; None: no model's."""
        return None if self.instead_of_model else model

    def layers_in(self, model_layers: int) -> int:
        """Return how many layers are asked for, of a model with `model_layers`."""
        return 1

    @property
    def takes_what_fits(self) -> bool:
        """Whether it has as many layers as fit into the device's memory."""
        return False

    def copies(self, weight_bytes: int, setting: Setting, multiple: int = 1) -> int:
        """Return how many copies of the weights to cycle through; see `replicas_for`."""
        if self.replicas is not None:
            return self.replicas
        return replicas_for(self.cache, weight_bytes, setting.cache_bytes, multiple)

    def lower(self, is_ordered: bool) -> str:
        """Return the settings that need less memory when lower, for an error text."""
        raise NotImplementedError

    def minimum(self) -> Minimum:
        """Return lower bounds on what independent commands need."""
        return Minimum(0, 0)

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return the stream; ConfigError or DataError where it cannot be made."""
        raise NotImplementedError


@dataclass(slots=True)
class OfModel(Workload):
    """A workload whose commands are steps of requests through layers."""

    dtype: Dtype = option(Dtype.fp32, "of weights, inputs and outputs")
    layers: int | None = option(None, "null: the model's, or as many as fit into memory", low=1, high=MOST_LAYERS)

    has_requests: ClassVar[bool] = True
    has_layers: ClassVar[bool] = True
    smallest: ClassVar[tuple[str, ...]] = ("model=tiny", "model.head_dim=64")  # q, k and v may lie side by side

    def layers_in(self, model_layers: int) -> int:
        """Return how many layers are asked for, of a model with `model_layers`."""
        return self.layers or model_layers

    @property
    def takes_what_fits(self) -> bool:
        """Whether it has as many layers as fit into the device's memory."""
        return self.layers is None

    @property
    def users(self) -> int:
        """Columns of each step, as if so many requests were in step for ever."""
        return 1

    def lower(self, is_ordered: bool) -> str:
        """Return the settings that need less memory when lower."""
        return "workload.layers or workload.requests or workload.tokens"

    def asked(self) -> Asked:
        """Return the requests of a run without a replay."""
        raise NotImplementedError

    def replayed(self, requests: Requests, path: str) -> Requests:
        """Return what this workload takes of the requests of the file at `path`."""
        return requests

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of outputs that every layer has, or of some of them."""
        return [model.hidden]

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return what a layer consists of; ConfigError where its sizes do not go together."""
        return linear_program(model.linear_sizes())

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return the stream of requests whose commands run in order."""
        requests = setting.requests
        assert requests is not None
        program = self.program(setting.model, requests)
        copies = self.copies(program.weights * layers * self.dtype.itemsize, setting)
        vocab, chunk = setting.vocab, setting.chunk_tokens
        return ChainStream(program, layers, requests, self.dtype, copies, vocab, chunk, setting.seed)


@dataclass(slots=True)
class Steps(OfModel):
    """Requests side by side, whose order is always kept."""

    requests: int = option(1, "side by side in a closed loop, else in all; a replay takes its own", low=1)
    prompt_tokens: int = option(0, "columns of a prompt before the first token; a replay takes its own", low=0)
    tokens: int = option(64, "generated a request; a replay takes its own", low=1)

    needs_order: ClassVar[bool] = True

    def asked(self) -> Asked:
        """Return the requests of a run without a replay."""
        return Asked(self.requests, self.prompt_tokens, self.tokens)


@dataclass(slots=True)
class OwnSize(Steps):
    """Layers of no model, of `hidden` features each."""

    layers: int | None = option(8, "layers", low=1, high=MOST_LAYERS)
    hidden: int = option(4096, "features of every input and output", low=1)

    instead_of_model: ClassVar[str] = "workload.hidden"
    smallest: ClassVar[tuple[str, ...]] = ("workload.hidden=128",)

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of a layer's output."""
        return [self.hidden]
