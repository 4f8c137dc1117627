"""Differences between two runs: in their work, their machine, and everything else.

In: rows of summary.parquet and manifests. Out: short texts such as `commands: 2,000 in A, 4,000 in B`. Differences that
forbid a comparison and those that a reader should know come from different functions. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launchopt.analysis.stream_rows import STREAM, is_independent
from launchopt.recording.manifest import GPU_LIBRARIES, MACHINE, PROCESSOR, Manifest, value_at
from launchopt.recording.results import Row

# Columns in which two rows of the same work agree: the stream, its order, and the bytes it moved.
WORK = (*STREAM, "ordering", "input_footprint_bytes")

WORK_SETTINGS = ("workload", "model", "arrival", "sampling", "scheduler", "seed")
_OF_NO_CONCERN = (
    "mode.name",
    "model.name",
    "model.dtype",
    "model.left_out",
    "device.kind",
    "against",
    "repeats",
    "processes",
    "table",
    "verify_columns",
)


def work_of(row: Row, name: str) -> object:
    """Return the value of a column of `WORK`, with "none" for values that mean the same work.

    These are the ordering of independent commands, and a scheduler or sampling that is null: files of an earlier schema
    lack these columns, and their runs had neither.
    """
    if name == "ordering" and is_independent(row):
        return "none"
    return "none" if row[name] is None and name in ("scheduler", "sampling") else row[name]


def unlike_work(a: Row, b: Row) -> list[str]:
    """Return a text for each column of WORK in which two rows differ."""
    found = [differing(name, a[name], b[name]) for name in WORK if work_of(a, name) != work_of(b, name)]
    remark = ": times of a traced run are not headline times"
    return [text + remark if text.startswith("traced") else text for text in found]


def unlike_settings(a: Manifest, b: Manifest) -> list[str]:
    """Return a text for each differing setting that changes the work but has no column in the summary.

    A setting that only one of the two manifests has does not count.
    """
    return [text for key, text in _settings(a, b) if key.partition(".")[0] in WORK_SETTINGS]


def other_machine(a: Manifest | None, b: Manifest | None) -> list[str]:
    """Return a text for each difference between the machines: device, cores, GPU driver and CUDA libraries.

    The type of processor counts if both manifests have it.
    """
    unknown = [side for side, manifest in (("A", a), ("B", b)) if manifest is None]
    if a is None or b is None:
        return [f"{' and '.join(unknown)} without manifest.json: nothing says on which machine"]
    paths = [*MACHINE, *(("device_versions", name) for name in GPU_LIBRARIES)]
    paths += [PROCESSOR] if value_at(a, PROCESSOR) and value_at(b, PROCESSOR) else []
    pairs = [(" ".join(path[1:]), value_at(a, path), value_at(b, path)) for path in paths]
    return [differing(name, one, other) for name, one, other in pairs if one != other]


def remarks(a: Manifest, b: Manifest) -> list[str]:
    """Return differences that a reader should know: revision, packages, settings and status of the run."""
    found = [_revisions(a, b), *_packages(a, b)]
    found += [text for key, text in _settings(a, b) if key.partition(".")[0] not in WORK_SETTINGS]
    found += _polled_words(a, b)
    for name in ("platform", "python"):
        one, other = value_at(a, ("environment", name)), value_at(b, ("environment", name))
        found += [differing(name, one, other)] if one != other else []
    for side, manifest in (("A", a), ("B", b)):
        status = manifest.get("status")
        found += [f"{side}: its run ended with status {status}"] if status != "ok" else []
    return found


def differing(name: str, one: object, other: object) -> str:
    """Return a difference as text: `commands: 2,000 in A, 4,000 in B`."""
    return f"{name}: {_shown(one)} in A, {_shown(other)} in B"


def revision(manifest: Manifest | None) -> str | None:
    """Return the revision: `82f1f88f35dc, changed`; None if it is unknown."""
    if manifest is None or not value_at(manifest, ("environment", "git_revision")):
        return None
    dirty = value_at(manifest, ("environment", "git_dirty"))
    return str(value_at(manifest, ("environment", "git_revision")))[:12] + (", changed" if dirty else "")


def _revisions(a: Manifest, b: Manifest) -> str:
    one, other = revision(a), revision(b)
    if one is not None and one == other:
        return f"revision: {one} in both"
    return differing("revision", one, other)


def _packages(a: Manifest, b: Manifest) -> list[str]:
    def versions(manifest: Manifest) -> dict[str, object]:
        of_device = value_at(manifest, ("device_versions",)) or {}
        others = {name: version for name, version in of_device.items() if name not in (*GPU_LIBRARIES, "gpu")}
        return {**others, **(value_at(manifest, ("environment", "packages")) or {})}

    one, other = versions(a), versions(b)
    names = sorted(one.keys() | other.keys())
    return [differing(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]


def _polled_words(a: Manifest, b: Manifest) -> list[str]:
    """Return a text for each mode whose kernel polled words in the host's memory in one run, in the GPU's in the other.

    A mode counts only if both manifests name it: earlier versions did not record it.
    """
    one, other = a.get("polled_words") or {}, b.get("polled_words") or {}
    modes = sorted(mode for mode in one.keys() & other.keys() if one[mode] != other[mode])
    return [differing(f"words that {mode} polls", one[mode], other[mode]) for mode in modes]


def _settings(a: Manifest, b: Manifest) -> Iterable[tuple[str, str]]:
    one, other = _flat(a.get("config")), _flat(b.get("config"))
    for key in (key for key in one if key in other):
        if key not in _OF_NO_CONCERN and _comparable(key, one[key]) != _comparable(key, other[key]):
            yield key, differing(key, one[key], other[key])


def _flat(config: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(config, Mapping):
        return {prefix[:-1]: config} if prefix else {}
    return {name: value for key in config for name, value in _flat(config[key], f"{prefix}{key}.").items()}


def _comparable(key: str, value: object) -> object:
    """Return a setting for the comparison: a path without its folder, any other value unchanged."""
    return str(value).rpartition("/")[2] if key.endswith("path") and value is not None else value


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int | float) else str(value)
