"""The machine that measures a part: what it is, and the GPU and cores of a part that runs beside others.

With several GPUs each part has a GPU of its own, and an equal share of the processor's cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launchopt.devices.cpu.info import cpu_info
from launchopt.files import JsonObject
from runner.plan.cores import usable

ASKED = ("name", "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "clocks_throttle_reasons.active")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Place(NamedTuple):
    """GPUs and cores. gpu: as CUDA_VISIBLE_DEVICES names them; None: what the environment says, and all cores."""

    gpu: str | None = None
    cores: Sequence[int] = ()
    at_once: int = 1  # parts that run at the same time, each in its place

    def words(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs on these cores only."""
        return ["taskset", "-c", ",".join(map(str, self.cores)), *words] if self.cores else [*words]

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of a command."""
        return {} if self.gpu is None else {VISIBLE: self.gpu}


def shortage(gpus: int, runs_gpu: bool) -> str:
    """Return what this machine lacks to run that many parts at a time, or nothing."""
    if gpus == 1:
        return ""
    if runs_gpu and (there := _gpus_there()) < gpus:
        return f"must be from 1 to {max(there, 1)}, the GPUs of this machine"
    if (cores := len(usable())) < gpus:
        return f"must be from 1 to {cores}, the cores of this machine: each part has cores of its own"
    return "" if shutil.which("taskset") else "needs taskset on the PATH, to give each part cores of its own"


def _gpus_there() -> int:
    named = os.environ.get(VISIBLE)
    return len(named.split(",")) if named else len(machine("cuda", Place()).get("gpus", []))


def places(gpus: int, each: int = 1) -> list[Place]:
    """Return places of `each` GPUs, of `gpus` in all. They share all cores equally, and no core by hardware threads."""
    named = os.environ.get(VISIBLE)
    names = named.split(",") if named else [str(gpu) for gpu in range(gpus)]
    cores = usable()
    count = gpus // each
    own = max(1, len(cores) // count) if count and shutil.which("taskset") else 0
    return [
        Place(",".join(names[at * each : (at + 1) * each]), cores[at * own : (at + 1) * own], count)
        for at in range(count)
    ]


def place_for(gpus: int, place: Place) -> Place:
    """Return the place of a part that needs several GPUs: the first ones, unless it has its own. Others keep theirs."""
    return place if gpus == 1 or place.gpu else places(gpus, gpus)[0]


def machine(device: str, place: Place) -> JsonObject:
    """Return the processor, or the GPUs with driver and clocks as nvidia-smi prints them."""
    about: JsonObject = {"processor": cpu_info().name}
    if device == "cuda" and shutil.which("nvidia-smi"):
        used = [f"--id={shown}"] if (shown := place.gpu or os.environ.get(VISIBLE)) else []
        command = ["nvidia-smi", *used, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
        try:
            lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
        except (OSError, subprocess.SubprocessError):
            lines = []
        about["gpus"] = [dict(zip(ASKED, map(str.strip, line.split(",")), strict=False)) for line in lines]
    if place.at_once > 1:
        about |= {"at_once": place.at_once, "cores": [*place.cores]}
    return about


def name_of(about: JsonObject) -> str:
    """Return the name of a machine: its GPUs, or else its processor."""
    return ", ".join(each.get("name", "?") for each in about.get("gpus", [])) or str(about["processor"])
