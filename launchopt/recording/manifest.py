"""A run's manifest.json: its configuration, its environment, and how it ended.

This module imports no pyarrow. So a run that is refused, or finished already, ends without loading it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json, save_result

Manifest = JsonObject
SCHEMA_VERSION = 4  # raised when a column's meaning changes; readers take files of every version


def write_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Write `manifest.json` atomically, with the schema version first; RunError if the disk refuses it."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=2, default=str) + "\n"
    save_result(folder / "manifest.json", lambda temporary: temporary.write_text(text))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a run's folder; DataError if it is missing or broken."""
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        raise DataError(path, None, "no manifest: not a folder of a run") from None
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({error})") from None
    if not isinstance(manifest, dict):
        raise DataError(path, None, "not the manifest of a run")
    return manifest


def read_manifests(folders: Iterable[Path]) -> list[Manifest]:
    """Return the manifests at or below each folder, in path order. For a path of a file, take the one beside it.

    Raise DataError if one is broken.
    """
    manifests = []
    for folder in folders:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        manifests += [read_manifest(path.parent) for path in sorted(within("manifest.json"))]
    return manifests
