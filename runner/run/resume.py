"""Which runs are finished, and with which config: what `resume=true` may skip, and what it must not touch.

In: a folder and a composed config. A run is finished when its manifest says `ok` and its summary is there. Its config
is known by a hash, kept in the manifest as `config_hash`, over every setting but those that cannot change a result
(`PASSING`) and Hydra's own (folders). Not in the hash: the machine that `device=auto` finds, the content of a file that
a setting names, the revision of this program. The manifest has those; whoever changes them begins a new sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launchopt.errors import ConfigError
from launchopt.recording.manifest import read_manifest
from runner.run.folder_lock import FolderError

PASSING = ("resume", "job_timeout_s", "watchdog_s")  # settings that end or skip a run, and leave its results alone
SWEEP = "sweep.json"
_DIFFERENCES = 4  # so many settings are named, more are only counted
_TABLES = ("summary", "histograms", "launches", "commands", "kernels", "tokens")
_LEFT = (*(f"{name}.parquet" for name in _TABLES), "torch-*.json.gz", "traceback.txt", ".*.tmp", "manifest.json")


def plain(composed: DictConfig) -> dict[str, Any]:
    """The composed config as a manifest holds it; empty where it does not resolve (`schema.to_config` says why)."""
    try:
        container = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    except OmegaConfBaseException:
        return {}
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def is_timed(place: DictConfig) -> bool:
    """Whether a folder's name is made from the time: nobody named one."""
    raw: Any = OmegaConf.to_container(place, resolve=False)
    return "${now:" in str(raw["dir"])


def config_hash(config: Mapping[str, Any]) -> str:
    """16 hex digits that two configs share when they ask for the same results."""
    kept = {key: value for key, value in config.items() if key not in PASSING}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def earlier_run(folder: Path) -> dict[str, Any] | None:
    """The manifest in `folder`, None where there is none; DataError where it cannot be read."""
    return read_manifest(folder) if (folder / "manifest.json").exists() else None


def is_finished(folder: Path, manifest: Mapping[str, Any] | None) -> bool:
    """Whether the run that left this manifest in `folder` ended well."""
    return manifest is not None and manifest.get("status") == "ok" and (folder / "summary.parquet").exists()


def is_done(folder: Path, config: Mapping[str, Any], key: str) -> bool:
    """Whether `folder` holds the finished run of this config.

    FolderError where it holds a finished run of another; `key` is the setting that named the folder.
    """
    manifest = earlier_run(folder)
    if manifest is None or not is_finished(folder, manifest):
        return False
    theirs = manifest.get("config")
    theirs = theirs if isinstance(theirs, dict) else {}
    if manifest.get("config_hash", config_hash(theirs)) == config_hash(config):
        return True
    differences = _differences(theirs, config)
    named = ", ".join(differences[:_DIFFERENCES]) or "settings that its manifest does not name"
    more = f" and {len(differences) - _DIFFERENCES} more" if len(differences) > _DIFFERENCES else ""
    raise FolderError(key, folder, f"holds a finished run of another config, which differs in {named}{more}")


def clear(folder: Path) -> None:
    """Remove what an earlier run left, so that a folder never holds files of two; other files stay."""
    for pattern in _LEFT:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def newest_sweep(parent: Path, overrides: Sequence[str]) -> Path:
    """The sweep below `parent` that was last started with these overrides; ConfigError where none was."""
    wanted = asked(overrides)
    found = [(about["started_utc"], folder) for folder, about in _sweeps(parent) if about["overrides"] == wanted]
    if not found:
        why = f"no sweep with these overrides in {parent}: name its folder with hydra.sweep.dir=..., or leave this out"
        raise ConfigError("resume", "true", why)
    return max(found)[1]


def asked(overrides: Sequence[str]) -> list[str]:
    """Overrides less those of settings that leave results alone."""
    return [each for each in overrides if each.lstrip("+").partition("=")[0] not in PASSING]


def _sweeps(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in parent.glob(f"*/{SWEEP}"):
        with contextlib.suppress(OSError, ValueError):
            about = json.loads(path.read_text())
            if isinstance(about, dict) and isinstance(about.get("started_utc"), str) and "overrides" in about:
                yield path.parent, about


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    one, other = dict(_flat(theirs)), dict(_flat(json.loads(json.dumps(ours, default=str))))
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif above or key not in PASSING:
            yield f"{above}{key}", value
