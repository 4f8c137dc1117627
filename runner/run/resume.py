"""Finished runs and their configs: which jobs `resume=true` skips, and which folders it must not touch.

A run is finished if its manifest says `ok` and its tables can be read. Two configs are the same if their hashes are
(`config_hash` in the manifest). The hash covers every setting except Hydra's own (folders) and those that cannot change
a result (`PASSING`). Another version of a plugin is noticed, too. Not covered are the machine that `device=auto` finds,
the content of a file that a setting names and the revision of this program. Start a new sweep after a change of one of
these, since `resume=true` does not notice it. The manifest records them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launchopt.errors import ConfigError, DataError, one_line
from launchopt.files import JsonObject, is_own_temporary, read_json
from launchopt.modes.stack import CHOICES, is_preset, options_in
from launchopt.plugins.found import plugin_of
from launchopt.reading.ownership import SWEEP, foreign, is_own
from launchopt.recording.manifest import Manifest, read_manifest
from launchopt.streams.model import NORM_EPSILON
from runner.run.folder_lock import FolderError

if TYPE_CHECKING:
    from runner.plan.plan import Plan

PASSING = ("resume", "force", "job_timeout_s", "watchdog_s")  # settings that end or skip a run and change no result
LATER = {
    "processes": 1,
    "tuning": "all",
    "parallel": {"tensor": 1},
}  # settings that older runs lack; this value is no part of the hash
LATER_IN: Mapping[str, JsonObject] = {
    "scheduler": {"prefixes": "none", "prefix_blocks": None},
    "workload": {"shared_prefix": 0},
}  # the same
OF_EVERY_MODEL = {  # the same, of a model
    **dict.fromkeys(("experts", "experts_per_token", "expert_intermediate", "shared_intermediate"), 0),
    **dict.fromkeys(("q_rank", "kv_rank", "rope_dim", "v_dim"), 0),
    "norm_epsilon": NORM_EPSILON,
    "rope_theta": 10_000.0,
}
OF_NOTICES = ("dtype", "left_out")  # settings of a model that change no result
CHOSEN = "mode=auto: "  # begins the notice of a run of which measurements chose the mode, before its label
_DIFFERENCES_NAMED = 4  # maximum settings that an error names; it only counts the others
_TABLES = ("summary", "histograms", "gpus", "launches", "commands", "kernels", "tokens")
OUTPUTS = (*(f"{name}.parquet" for name in _TABLES), "traceback.txt", "manifest.json")  # files that a run may write
_REPORTS = (
    "report.md",
    "report.html",
    "frontier.md",
    "strategies.md",
    "waterfall.md",
    "remedies.md",
)  # made from the results


def plain(composed: DictConfig) -> JsonObject:
    """Return the composed config as the manifest stores it, with interpolations resolved.

    It is empty if one cannot be resolved; `to_config` later raises the error.
    """
    try:
        container = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    except OmegaConfBaseException:
        return {}
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def is_timed(place: DictConfig) -> bool:
    """Return whether `place` (Hydra's `run` or `sweep`) has the default folder, whose name contains the time."""
    raw = OmegaConf.to_container(place, resolve=False)
    assert isinstance(raw, dict)
    return "${now:" in str(raw["dir"])


def config_hash(config: Mapping[str, object]) -> str:
    """Return a hash of 16 hexadecimal digits. It covers every setting that can change a result."""
    kept = {key: value for key, value in config.items() if key not in PASSING and LATER.get(key) != value}
    if isinstance(mode := kept.get("mode"), Mapping):  # older runs have no choices of a stack, or options of a submit
        name = str(mode.get("name"))
        chosen = {k: v for k, v in mode.items() if v is not None and not (k in CHOICES and is_preset(name, k, v))}
        if isinstance(fuse := chosen.get("fuse"), list):  # a set
            chosen["fuse"] = sorted(fuse)
        kept["mode"] = chosen
    if isinstance(parallel := kept.get("parallel"), Mapping):  # older runs have no choice of the all-reduce
        kept["parallel"] = own = {k: v for k, v in parallel.items() if (k, v) != ("all_reduce", "own")}
        if own == LATER["parallel"]:
            del kept["parallel"]
    if isinstance(device := kept.get("device"), Mapping):  # older runs have no list of GPUs
        gpus = device.get("gpus")
        kept["device"] = {k: v for k, v in device.items() if k not in ("gpus", "routing") or gpus is not None}
    for group, later in LATER_IN.items():
        if isinstance(settings := kept.get(group), Mapping):
            kept[group] = {k: v for k, v in settings.items() if k not in later or v != later[k]}
    if isinstance(model := kept.get("model"), Mapping):
        sizes = {k: v for k, v in model.items() if k not in OF_NOTICES}
        kept["model"] = {k: v for k, v in sizes.items() if k not in OF_EVERY_MODEL or v != OF_EVERY_MODEL[k]}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def work_key(plan: Plan) -> str | None:
    """Return a key of the work of a job whose modes ignore batching; None for any other job.

    Two jobs of one key differ in `batching` only, and launch the same commands in the same way.
    """
    from launchopt.modes import mode_class
    from launchopt.modes.base import Takes
    from launchopt.recording.identity import stream_hash

    stream = plan.stream
    if any(mode_class(arm.mode, arm.options).takes_of(stream) is not Takes.commands for arm in plan.arms):
        return None
    if plan.config.scheduler.kind != "none":  # `batching` limits the batches of a continuous scheduler
        return None
    others = {key: value for key, value in plan.composed.items() if key != "batching"}
    return f"{config_hash(others)} {stream_hash(stream)} {plan.residency}"


def earlier_run(folder: Path) -> Manifest | None:
    """Return the manifest in `folder`, None if there is none; DataError if it cannot be read."""
    return read_manifest(folder) if (folder / "manifest.json").exists() else None


def require_own(key: str, folder: Path, names: tuple[str, ...], *, force: bool) -> None:
    """Raise FolderError if one of the files `names` in `folder` is of another program, unless `force` is set.

    `key` is the setting that named the folder.
    """
    for name in names:
        if (folder / name).is_dir():
            raise FolderError(key, folder, f"{name} is a folder, where a file of results goes")
    if not force and (path := foreign(folder, names)) is not None:
        raise FolderError(key, folder, f"{path.name} was not made by launchopt; force=true replaces it")


def damage(folder: Path, manifest: Manifest) -> str | None:
    """Return why the tables of a finished run cannot be used; None if they can."""
    from launchopt.reading.parquet import opened  # late: only a finished run has tables to read
    from launchopt.recording.results import read_summary

    try:
        rows = read_summary(folder / "summary.parquet")
        for name in _TABLES:
            if (folder / f"{name}.parquet").exists():
                with opened(folder / f"{name}.parquet"):
                    pass
    except DataError as error:
        return str(error)
    repeats = manifest.get("repeats_done")
    if isinstance(repeats, int) and len(rows) != repeats:
        return f"{folder / 'summary.parquet'}: has {len(rows)} of {repeats} rows"
    return None


def is_done(folder: Path, config: Mapping[str, object], key: str, notices: Sequence[str] = ()) -> bool:
    """Return whether `folder` holds the finished run of this config. A finished run with damaged tables is named.

    Raises FolderError if it holds one of another config, or of another version of a plugin. `key` is the setting that
    named the folder. notices: of the config, for the mode that mode=auto takes.
    """
    try:
        manifest = earlier_run(folder)
    except DataError:
        if config.get("force"):
            return False
        raise
    if manifest is None or manifest.get("status") != "ok":
        return False
    theirs = manifest.get("config")
    theirs = theirs if isinstance(theirs, dict) else {}
    is_same = manifest.get("config_hash", config_hash(theirs)) == config_hash(config)
    if (why := damage(folder, manifest)) is not None:
        if is_same:
            print(one_line(f"{why}: the run is not finished, and runs again"))
        return False
    if is_same:
        if changed := _changed_plugins(manifest):
            raise FolderError(key, folder, f"holds a finished run of other plugins: {', '.join(changed)}")
        return True
    differences = _differences(theirs, config)
    then, now = _chosen(manifest.get("notices")), _chosen(notices)
    if then and now and all(each.partition(".")[0] in ("mode", "against") for each in differences):
        why = f"holds a finished run for which mode=auto took {then}; by what is measured since it takes {now}"
        raise FolderError(key, folder, f"{why} ({_typed(then)} resumes that run)")
    named = ", ".join(differences[:_DIFFERENCES_NAMED]) or "settings that its manifest does not name"
    more = f" and {len(differences) - _DIFFERENCES_NAMED} more" if len(differences) > _DIFFERENCES_NAMED else ""
    raise FolderError(key, folder, f"holds a finished run of another config, which differs in {named}{more}")


def _chosen(notices: object) -> str | None:
    """Return the mode that mode=auto took; None for a run of another mode."""
    lines = [line for line in notices if str(line).startswith(CHOSEN)] if isinstance(notices, list | tuple) else []
    return one_line(str(lines[0]).removeprefix(CHOSEN).partition(", ")[0], 100) if lines else None


def _typed(label: str) -> str:
    """Return the settings of a mode or of a changed stack."""
    try:
        return options_in(label)
    except ConfigError:  # of another version
        return f"mode={label}"


def _changed_plugins(manifest: Manifest) -> list[str]:
    """Return the plugins of a run that are installed in another version now, or not at all, each with both."""
    ran = manifest.get("plugins")
    found = []
    for setting, label in (ran if isinstance(ran, dict) else {}).items():
        group, _, name = str(setting).partition("=")
        plugin = plugin_of(group, name)
        now = plugin.label if plugin else "not installed"
        if now != label:
            found.append(f"{setting} was of {label}, now {now}")
    return found


def clear(folder: Path, *, force: bool = False) -> None:
    """Remove the files of an earlier run and its reports, so that a folder never mixes two runs. Other files stay.

    force: remove files of other programs, too, if they have the names of those that a run writes.
    """
    own = [path for name in (*_REPORTS, "torch-*.json.gz", *OUTPUTS) for path in folder.glob(name) if is_own(path)]
    forced = [folder / name for name in OUTPUTS] if force else []
    for path in (*own, *forced, *filter(is_own_temporary, folder.glob(".launchopt-*.tmp"))):
        path.unlink(missing_ok=True)


def newest_sweep(parent: Path, overrides: Sequence[str]) -> Path:
    """Return the newest sweep below `parent` with these overrides; ConfigError if there is none."""
    wanted = without_passing(overrides)
    found = [(about["started_utc"], folder) for folder, about in _sweeps(parent) if about["overrides"] == wanted]
    if not found:
        why = f"no sweep with these overrides in {parent}: name its folder with hydra.sweep.dir=..., or leave this out"
        raise ConfigError("resume", "true", why)
    return max(found)[1]


def without_passing(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that can change a result."""
    return [each for each in overrides if each.lstrip("+").partition("=")[0] not in PASSING]


def _sweeps(parent: Path) -> Iterator[tuple[Path, JsonObject]]:
    for path in parent.glob(f"*/{SWEEP}"):
        with contextlib.suppress(OSError, ValueError):
            about = read_json(path)
            if isinstance(about, dict) and isinstance(about.get("started_utc"), str) and "overrides" in about:
                yield path.parent, about


def _differences(theirs: Mapping[str, object], ours: Mapping[str, object]) -> list[str]:
    one, other = dict(_flat(theirs)), dict(_flat(json.loads(json.dumps(ours, default=str))))
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _flat(config: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif above or key not in PASSING:
            yield f"{above}{key}", value
