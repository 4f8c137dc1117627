"""What the user asks of `launchopt advise`: the work, the limit on latency, and the time to find an answer."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hydra import compose

from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError, explained, nearest
from launchopt.files import is_there
from launchopt.messages import print_error
from launchopt.recording.results import Row
from launchopt.workloads.list import most_common_dtype
from runner.calling.words import words_of
from runner.config.composing import group_options
from runner.config.loading import hydra_of
from runner.config.model_files import GROUP, OR_PATH, is_path
from runner.config.objects import to_config
from runner.config.schema import Config
from runner.plan.streams import DTYPES

# Tokens of each request: in the first trial, and the most and least in others. The first token of a request takes
# longer than a later one, so trials of few tokens favour stacks that begin fast.
TOKENS, MOST_TOKENS, LEAST_TOKENS = 16, 100, 4
EXPERT_STEPS, LEAST_EXPERT_STEPS = 32, 4  # of a layer with experts in a trial
PLAIN_BATCH = 64  # max_batch of trials of independent commands
TIMEOUT_US = 150.0
STEP_TIMEOUT_US = 50_000.0  # every step waits for all requests: the commands of 64 loops take ms to arrive
CHECK_S = 0.1  # to check an audit run, or a trial of independent commands; the advised experiment has the usual time

Settings = Mapping[str, object]


class Limit(NamedTuple):
    """The largest latency that an answer may have, in ms. column: of the summary."""

    option: str
    column: str
    name: str
    most_ms: float
    to_ms: float  # factor from the column's unit

    def ms(self, rows: Sequence[Row], layers: int | None) -> float:
        """Return the median of the column in ms. A model of which fewer layers ran counts as having all `layers`."""
        values = [row[self.column] for row in rows]
        if not values or None in values:
            raise ConfigError(self.option, f"{self.most_ms:g}", "this work has no such latency")
        whole = layers / rows[0]["layers"] if layers and rows[0]["layers"] else 1.0
        return float(statistics.median(values)) * self.to_ms * whole


def tpot(most_ms: float) -> Limit:
    """Return a limit on the time per output token."""
    return Limit("--slo-tpot-ms", "tpot_p99_ms", "p99 TPOT", most_ms, 1.0)


def p99(most_ms: float) -> Limit:
    """Return a limit on the latency of a command, which waits for those before it: all come as fast as they can."""
    return Limit("--slo-p99-ms", "latency_p99_us", "p99 latency with its wait in the queue", most_ms, 1e-3)


@dataclass(frozen=True, slots=True)
class Question:
    """The settings of every trial, and what an answer must keep. requests: 0 for independent commands."""

    settings: Settings
    requests: int
    limit: Limit | None

    @property
    def is_of_experts(self) -> bool:
        """Whether the experts of a layer run."""
        return self.settings.get("workload") == "moe"

    def with_settings(self, settings: Settings) -> Question:
        """Return the question with other values of some settings."""
        return replace(self, settings={**self.settings, **settings})

    def config(self) -> Config:
        """Return the config of a trial; LaunchoptError for a file or number that cannot be used."""
        with hydra_of():
            return to_config(compose("config", words_of(self.settings)))


def of_model(path: Path, requests: int, device: str, limit: Limit | None) -> Question:
    """Return a question about a model's config.json, or about one of launchopt's own models or of a plugin's by name.

    Of a model with experts, the experts of a layer run, whose steps have a token of each request. Of one with latent
    attention and no experts, the GEMMs of one request run, without order.
    """
    if "${" in str(path.absolute()):
        raise ConfigError("--model", path.absolute(), "has ${ in its name, which Hydra reads: copy it to another path")
    own: dict[str, object] = {
        "model": _model_of(path),
        "workload.tokens": TOKENS,
        "workload.layers": 1,
    }
    whole = own | {"workload": "layer", "workload.requests": requests, "batching.max_batch": requests}
    with hydra_of():
        model = compose("config", words_of(whole)).model
    if not (model.experts or model.kv_rank):
        settings = whole | _common(device) | {"batching.timeout_us": STEP_TIMEOUT_US}
        return Question(settings, requests, limit)
    if model.experts:
        experts: dict[str, object] = {"model": own["model"], "workload": "moe", "workload.tokens": requests}
        together = {"workload.steps": EXPERT_STEPS, "batching.max_batch": max(PLAIN_BATCH, model.experts)}
        return Question(experts | together | _common(device), 0, limit)
    if requests > 1:
        why = f"must be 1: {path} has latent attention, which runs as GEMMs of one request"
        raise ConfigError("--requests", requests, why)
    parts = own | {"workload": "decode", "ordering": "none", "batching.max_batch": PLAIN_BATCH}
    return Question(parts | _common(device), 0, limit)


def _model_of(path: Path) -> str:
    """Return the value of `model` for a path, or for the name of a model if there is no such file."""
    names, name = group_options()[GROUP], str(path)
    if is_there(path) or is_path(name):
        return os.path.normpath(path.absolute())
    if name not in names:
        why = explained(
            "no such file", ", ".join([*names, OR_PATH]), [f"--model {each}" for each in nearest(name, names)]
        )
        raise ConfigError("--model", name, why)
    return name


def of_file(workload: str, path: Path, device: str, limit: Limit | None) -> Question:
    """Return a question about a trace or a list of GEMMs.

    Commands of a trace are not due at their recorded times: all stacks would take as long as the trace.
    """
    settings = {"workload": workload, "workload.path": str(path.absolute()), "batching.max_batch": PLAIN_BATCH}
    settings |= {"workload.gaps": "none"} if workload == "trace" else {}
    if workload == "list" and (dtype := most_common_dtype(path)) is not None:
        settings["workload.dtype"] = dtype.name  # a notice of each run counts the rows of others
        print_error(f"{path} has several dtypes: all rows run in {dtype.name}, that of most GEMMs", "warning")
    return Question(settings | _common(device), 0, limit)


def base_of(question: Question, kind: str) -> str:
    """Return the base of the gain on a kind of device: without launch strategies, and able to read the weights."""
    is_quantised = kind == "cuda" and "workload.weights" in question.settings
    if not question.requests:
        return "expert_kernel" if is_quantised and question.is_of_experts else "baseline"
    return "engine+own" if is_quantised else "engine"


def _common(device: str) -> dict[str, object]:
    return {"device": device, "batching.timeout_us": TIMEOUT_US, "record.launches": "none", "verify_budget_s": CHECK_S}


def settled_for(question: Question, config: Config, info: DeviceInfo) -> Question:
    """Return the question with the settings of a model's first trial on a device.

    A GPU runs the dtype in which the model was published. A CPU takes long for a token of many requests.
    """
    if "model" not in question.settings:
        return question
    if question.is_of_experts:
        dtype = DTYPES.get(config.model.dtype or "") if info.kind == "cuda" else None
        return question.with_settings({"workload.dtype": dtype}) if dtype else question
    if info.kind != "cuda":
        return question.with_settings({"workload.tokens": LEAST_TOKENS})
    dtype = DTYPES.get(config.model.dtype or "")
    return question.with_settings({"workload.dtype": dtype}) if dtype else question
