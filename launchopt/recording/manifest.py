"""A run's manifest.json: its configuration, its environment, and how it ended.

This module imports no pyarrow. So a run that is refused, or finished already, ends without loading it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launchopt.errors import DataError, one_line
from launchopt.files import JsonObject, read_json, reason, save_result
from launchopt.reading.shapes import ANY, fitted
from launchopt.reading.unusable import name_unusable
from launchopt.recording.run_names import named_apart, names_in

Manifest = JsonObject
LEFT_OUT = "left_out"  # key of a committed manifest, for what scripts/reference_kept.py left out
SCHEMA_VERSION = 4  # raised when a column's meaning changes; readers take files of every version


_TEXTS = {ANY: str}
_NUMBERS = {ANY: float}
_DEVICE = {"name": str, "kind": str}
_SHAPE = {  # of what the reading commands use
    **dict.fromkeys(("run_id", "status", "error", "started_utc", "config_hash", "garbage_collection"), str),
    **dict.fromkeys(("device_versions", "refused", "polled_words", "plugins"), _TEXTS),
    **{"overrides": [str], "notices": [str], "repeats_done": int, "device": _DEVICE, "waterfall": [[str]]},
    **dict.fromkeys(("ceilings", "ceilings_after"), _NUMBERS),
    "environment": {
        **dict.fromkeys(("git_revision", "python", "platform", "processor"), str),
        **{"git_dirty": bool, "packages": _TEXTS, "device": _DEVICE, "cores": int, "memory_bytes": int},
    },
    "config": {"timing": {"kind": str}},
    "runs": [{"mode": str, "repeat": int, "state": {ANY: {"sm_clock_mhz": float}}}],
    LEFT_OUT: {"runs": int, "sha256": str, "sm_clock_mhz": [float]},
}
_KEYS_NAMED = 6  # maximum keys that a warning names; it only counts the others
# Where a manifest says on which machine a run was: its device and cores, then the GPU's driver and CUDA's libraries.
MACHINE = (("environment", "device", "name"), ("environment", "cores"))
PROCESSOR = ("environment", "processor")  # unknown to results of earlier versions
GPU_LIBRARIES = ("driver", "cuda_driver", "cuda_runtime", "cublaslt")


def write_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Write `manifest.json` atomically, with the schema version first; RunError if the disk refuses it."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=2, default=str) + "\n"
    save_result(folder / "manifest.json", lambda temporary: temporary.write_text(text))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a run's folder; DataError if it is missing or broken."""
    return _read(folder / "manifest.json", None)


def _read(path: Path, name: str | None) -> Manifest:
    shown = name or path
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        raise DataError(shown, None, "no manifest: not a folder of a run") from None
    except (OSError, ValueError) as error:
        raise DataError(shown, None, f"cannot be read as JSON ({reason(error)})") from None
    if not isinstance(manifest, dict):
        raise DataError(shown, None, "not the manifest of a run")
    return manifest


def fitted_manifest(folder: Path) -> Manifest:
    """Return the manifest of a run's folder without keys of a wrong type, which are named on standard error.

    Raise DataError if there is none, or if it cannot be read.
    """
    path = folder / "manifest.json"
    return _fitted(_read(path, None), path)


def facts_in(path: Path, keys: Iterable[str], name: str | None = None) -> Manifest:
    """Return some keys of the manifest in the file `path`, as `fitted_manifest` does. name: of the file in messages."""
    whole = _read(path, name)
    return _fitted({key: whole[key] for key in keys if key in whole}, name or path)


def _fitted(manifest: Manifest, shown: Path | str) -> Manifest:
    lost: list[str] = []
    kept: Manifest = fitted(manifest, _SHAPE, lost)
    if lost:
        more = f" and {len(lost) - _KEYS_NAMED} more" if len(lost) > _KEYS_NAMED else ""
        keys = f"{', '.join(one_line(key, 60) for key in lost[:_KEYS_NAMED])}{more}"
        name_unusable(DataError(shown, None, f"shown without keys of a wrong type: {keys}"))
    return kept


def value_at(manifest: Manifest, path: tuple[str, ...]) -> Any:
    """Return the value at a path of keys; None if there is none."""
    value: Any = manifest
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def machine_of(manifest: Manifest | None) -> str | None:
    """Return the machine of a run as one text: `NVIDIA H200, cores 16, driver 580.65.06, ...`; None if unknown."""
    if manifest is None:
        return None
    paths = [*MACHINE, *(("device_versions", name) for name in GPU_LIBRARIES)]
    known = [(path[-1], value) for path in paths if (value := value_at(manifest, path)) is not None]
    return ", ".join(str(value) if name == "name" else f"{name} {value}" for name, value in known) or None


def usable_manifest(folder: Path) -> Manifest | None:
    """Return the same; None if there is no manifest, or one that cannot be read. That is named, too."""
    if not os.path.lexists(folder / "manifest.json"):
        return None
    try:
        return fitted_manifest(folder)
    except DataError as error:
        name_unusable(error)
        return None


def device_name(manifest: Manifest | None) -> str:
    """Return the name of the device that a usable manifest gives, else `an unknown device`."""
    return str(((manifest or {}).get("device") or {}).get("name") or "an unknown device")


def read_manifests(folders: Iterable[Path]) -> list[Manifest]:
    """Return the usable manifests at or below each folder, in path order. For a path of a file: the one beside it.

    Runs that share a run_id have others here: see run_names.py.
    """
    places, found = list(folders), []
    for folder in places:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        for path in sorted(within("manifest.json")):
            if (manifest := usable_manifest(path.parent)) is not None:
                found.append((path.parent, manifest))
    return named_apart(found, names_in(places))
