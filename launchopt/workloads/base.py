"""Base classes of workloads. A workload is a dataclass of options that makes a stream of commands.

In: its options, and a `Setting` with the other inputs of a stream. Out: a stream; no memory is allocated.

    Workload    the base of all
    OfModel     commands are steps of requests through the layers of a model
    Steps       also: several requests at a time, whose order is always kept
    OwnSize     also: layers of `hidden` features instead of a model's
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.errors import ConfigError
from launchopt.options import REQUIRED, check_options, option
from launchopt.prefixes.sharing import SharedPrefixes
from launchopt.streams.chains.chain import ChainSettings, ChainStream, Stream
from launchopt.streams.chains.program import Program, linear_program
from launchopt.streams.chains.tensor import Split
from launchopt.streams.footprint import Cache, replicas_for
from launchopt.streams.model import MOST_LAYERS, ModelShape
from launchopt.weights.packing import PLAIN, Packing

REQUESTS_HELP = "requests at a time in a closed loop, else their total number; a replay takes those of its trace"
PROMPT_TOKENS_HELP = "tokens of a prompt; a replay takes those of its trace"
TOKENS_HELP = "output tokens per request; a replay takes those of its trace"
WEIGHTS_HELP = "none: weights have workload.dtype; else quantised weights; a model's LM head is not quantised"
SCALES_HELP = "values that share a scale; null: channel, int4: block"


@dataclass(frozen=True, slots=True)
class Setting:
    """Inputs of a stream besides the options of its workload."""

    model: ModelShape
    cache_bytes: int  # size of the device's last-level cache
    max_batch: int  # commands that fill a bucket
    seed: int
    device_kind: str = "cuda"  # cuda or cpu
    requests: Requests | None = None  # None: the options alone describe the commands
    is_ordered: bool = True  # the commands of each request run in order
    due_ns: NDArray[np.int64] | None = None  # int64 [commands], for independent commands; None: a closed loop
    vocab: int | None = None  # width of the LM head; None: nothing is sampled
    chunk_tokens: int | None = None  # maximum columns of a step of a prompt; None: whole prompts
    prefixes: SharedPrefixes | None = None  # tokens of prompts that need no step; None: every token has one
    tensor: int = 1  # GPUs that split each layer
    rounds_sums: bool = False  # their all-reduce rounds each partial sum (`streams.chains.tensor.Split`)
    speed: float = 1.0  # pace of a replay without order: 2 is twice that of the trace
    notices: list[str] = field(default_factory=list)  # lines that the user sees; a workload may add some


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests with the same number of prompt and output tokens."""

    count: int
    prompt_tokens: int
    tokens: int  # generated per request


class Minimum(NamedTuple):
    """Lower bounds on what a job needs."""

    commands: int
    operand_bytes: int  # memory of the device


@dataclass(slots=True)
class Workload:
    """Options that every workload has, and the properties and methods that the rest of the program uses."""

    name: str = REQUIRED
    cache: Cache = option(Cache.cold, "cold: inputs cycle over at least 4x the cache; hot: they fit in half of it")
    replicas: int | None = option(None, "distinct weights, or copies of all layers; null: what `cache` asks for", low=1)

    has_requests: ClassVar[bool] = False  # True: commands are steps of requests
    has_layers: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False  # True: ordering=none is refused
    own_arrival: ClassVar[str] = ""  # reason to refuse arrival=; "": arrival= is allowed
    instead_of_model: ClassVar[str] = ""  # the option that replaces model=; "": model= is used
    runs_experts: ClassVar[bool] = False  # True: with ordering=none, layers with experts or MLA can be run
    smallest: ClassVar[tuple[str, ...]] = ()  # overrides for a small run; {trace} stands for the path of a trace

    def __post_init__(self) -> None:
        check_options("workload", self)

    @property
    def packing(self) -> Packing:
        """How weights of GEMMs are stored. A workload with the options `weights` and `scales` overrides it."""
        return PLAIN

    @classmethod
    def option(cls) -> str | None:
        """Return the workload's name on the command line; None where only presets in conf/workload name it."""
        default = str(next(each.default for each in fields(cls) if each.name == "name"))
        return None if default == REQUIRED else default

    def model_name(self, model: str) -> str | None:
        """Return the name of the model whose shapes the commands have; None: no model. `model` is the chosen one."""
        return None if self.instead_of_model else model

    def layers_in(self, model_layers: int) -> int:
        """Return the number of layers that the options ask for. The model has `model_layers`."""
        return 1

    @property
    def takes_what_fits(self) -> bool:
        """Whether the stream gets as many layers as fit into the device's memory."""
        return False

    def copies(self, weight_bytes: int, setting: Setting, multiple: int = 1) -> int:
        """Return the number of copies of the weights to cycle through (see `replicas_for`)."""
        if self.replicas is not None:
            return self.replicas
        return replicas_for(self.cache, weight_bytes, setting.cache_bytes, multiple)

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        raise NotImplementedError

    def count(self, device_kind: str) -> int:
        """Return the number of independent commands on a device; 0 for any other workload."""
        return 0

    def minimum(self) -> Minimum:
        """Return lower bounds for a workload of independent commands; zeros for any other."""
        return Minimum(0, 0)

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return the stream; raise ConfigError or DataError if it cannot be made."""
        raise NotImplementedError


@dataclass(slots=True)
class OfModel(Workload):
    """A workload whose commands are steps of requests through layers."""

    dtype: Dtype = option(Dtype.fp32, "of weights, inputs and outputs")
    layers: int | None = option(None, "null: the model's, or as many as fit into memory", low=1, high=MOST_LAYERS)

    has_requests: ClassVar[bool] = True
    has_layers: ClassVar[bool] = True
    # head_dim=64: rows of q, of k and of v are multiples of 256 bytes in every dtype, as workload=qkv needs.
    smallest: ClassVar[tuple[str, ...]] = ("model=tiny", "model.head_dim=64")

    def layers_in(self, model_layers: int) -> int:
        """Return the number of layers that the options ask for. The model has `model_layers`."""
        return self.layers or model_layers

    @property
    def takes_what_fits(self) -> bool:
        """Whether the stream gets as many layers as fit into the device's memory."""
        return self.layers is None

    @property
    def users(self) -> int:
        """Columns of each step in a stream without order: the tokens of `users` requests that stay in step."""
        return 1

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.layers or workload.requests or workload.tokens"

    def asked(self) -> Asked:
        """Return the number and lengths of the requests in a run without arrival=replay."""
        raise NotImplementedError

    def replayed(self, requests: Requests, path: str) -> Requests:
        """Return the requests that this workload takes from those of the file at `path`."""
        return requests

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of some outputs of a layer, one entry per output: a lower bound of its memory."""
        return [model.hidden]

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return the ops of a step; ConfigError where the sizes do not fit one another."""
        return linear_program(model.linear_sizes(), model.linear_parts())

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return the stream of requests. The commands of each request run in order."""
        requests = setting.requests
        assert requests is not None
        program, split = self.program(setting.model, requests), None
        if setting.tensor > 1:
            if self.packing:
                why = "has no shares of quantised weights: use parallel.tensor=1 or workload.weights=none"
                raise ConfigError("parallel.tensor", setting.tensor, why)
            share = self.program(setting.model.share(setting.tensor), requests)
            split = Split(program, share, setting.tensor, setting.rounds_sums)
            program = split.program
        packing = self.packing
        setting.model.packings(packing)  # a ConfigError with the option to change
        copies = self.copies(program.weight_bytes(self.dtype.itemsize, packing) * layers, setting)
        vocab, chunk = setting.vocab, setting.chunk_tokens
        return ChainStream(
            program,
            layers,
            requests,
            self.dtype,
            copies,
            ChainSettings(vocab, chunk, setting.seed, split, packing, setting.prefixes),
        )


@dataclass(slots=True)
class Steps(OfModel):
    """Several requests at a time, whose order is always kept."""

    requests: int = option(1, REQUESTS_HELP, low=1)
    prompt_tokens: int = option(0, PROMPT_TOKENS_HELP, low=0)
    tokens: int = option(64, TOKENS_HELP, low=1)

    needs_order: ClassVar[bool] = True

    def asked(self) -> Asked:
        """Return the number and lengths of the requests in a run without arrival=replay."""
        return Asked(self.requests, self.prompt_tokens, self.tokens)


@dataclass(slots=True)
class OwnSize(Steps):
    """Layers of `hidden` features instead of those of a model."""

    layers: int | None = option(8, "layers", low=1, high=MOST_LAYERS)
    hidden: int = option(4096, "features of every input and output", low=1)

    instead_of_model: ClassVar[str] = "workload.hidden"
    smallest: ClassVar[tuple[str, ...]] = ("workload.hidden=128",)

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of a layer's output, the only width."""
        return [self.hidden]
