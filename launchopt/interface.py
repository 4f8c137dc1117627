"""The names that a plugin may rely on: a mode, workload, arrival or model of another package imports them from here.

docs/plugins.md lists them. A test keeps them, and the arguments of their methods.
"""

from __future__ import annotations

from launchopt.arrivals.base import Arrival
from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import Batch, StepBatch
from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.errors import ConfigError
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.options import ModeOptions
from launchopt.options import REQUIRED, option
from launchopt.streams.chains.chain import Stream
from launchopt.streams.chains.program import INPUT, Node, Program
from launchopt.streams.model import Model, ModelShape
from launchopt.workloads.base import OwnSize, Steps

__all__ = [
    "INPUT",
    "REQUIRED",
    "Arrival",
    "Batch",
    "ConfigError",
    "Device",
    "Dtype",
    "Mode",
    "ModeOptions",
    "Model",
    "ModelShape",
    "Node",
    "Op",
    "OwnSize",
    "Prepared",
    "Program",
    "Requests",
    "ShapeKey",
    "StepBatch",
    "Steps",
    "Stream",
    "Takes",
    "option",
]
