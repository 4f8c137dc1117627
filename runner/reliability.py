"""Prints the results of a kill campaign, and of what was measured beside it, as tables, or puts them into a page.

    launchopt reliability outputs/reliability/20260101-120000                 Markdown of one campaign
    launchopt reliability outputs/reference/reliability --readme outputs/reference/RELIABILITY.md

In: a folder that scripts/kill_campaign.py wrote (campaign.parquet with a row per kill, and manifest.json), with or
without what other scripts wrote there with --json: soak.json (`scripts/soak.py`), fuzz.json (`scripts/fuzz.py`) and
limits.json (`scripts/limits.py`). Out: Markdown; a section without its file says `not measured`. --readme FILE.md
replaces the text between `<!-- reliability -->` and `<!-- /reliability -->` of that page; with --check it only checks
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

from launchopt.analysis.tables.reliability import Kill, Soak, reliability_markdown
from launchopt.analysis.tables.trials import FUZZ, LIMITS, NULLABLE
from launchopt.errors import DataError
from launchopt.files import read_json, reason
from launchopt.reading.parquet import opened
from launchopt.reading.shapes import ANY, fitted
from launchopt.recording.manifest import Manifest
from launchopt.recording.results import read_manifest
from runner.ending import end
from runner.provenance.origins import Revisions, read_revisions
from runner.reading import CommandParser, exit_code, page_code, sync_block

CAMPAIGN, SOAK, FUZZED, LIMITED = "campaign.parquet", "soak.json", "fuzz.json", "limits.json"
BLOCK = "reliability"  # name of the block in a page
MOST_KILLS = 1_000_000
_TYPES = {"int": pa.int64(), "int | None": pa.int64(), "float": pa.float64(), "str": pa.string()}
SCHEMA = pa.schema([pa.field(each.name, _TYPES[str(each.type)]) for each in fields(Kill)])
_LATER = {each.name for each in fields(Kill) if each.default is not MISSING}  # columns that older campaigns lack
_MAY_BE_NULL = {each.name for each in fields(Kill) if "None" in str(each.type)}
_NUMBERS = ("records", "lost", "seconds", "records_per_s", "batches")
_MEMORY = {"first_bytes", "last_bytes", "peak_bytes"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parsed(argv)
    if options.check and options.readme is None:
        parser.error("--check goes with --readme")
    return exit_code(lambda: _reliability(options.folder, options.readme, options.check))


def _reliability(folder: Path, page: Path | None, check: bool) -> int:
    text = campaign_markdown(folder)
    if page is None:
        print(text, end="")
        return 0
    is_current = sync_block(page, BLOCK, text, check=check)
    return page_code(page, is_current, f"reliability {quote(str(folder))} --readme {quote(str(page))}")


def campaign_markdown(folder: Path) -> str:
    """Return the tables of a campaign's folder; DataError for another kind of folder, or contradictory files."""
    if not folder.is_dir():
        raise DataError(folder, None, "no such folder")
    path = folder / CAMPAIGN
    if not path.is_file():
        raise DataError(path, None, "no such file: not a folder of scripts/kill_campaign.py")
    kills, about = read_kills(path), read_manifest(folder)
    _require_same(folder, kills, about)
    soak = read_soak(folder / SOAK) if (folder / SOAK).exists() else None
    files = [about, read_trials(folder / FUZZED, FUZZ, "fuzz.py"), read_trials(folder / LIMITED, LIMITS, "limits.py")]
    revisions = read_revisions(folder)
    for each in files:
        if each is not None:
            each["environment"] = _proven(each["environment"], revisions)
    if soak is not None:
        soak = replace(soak, environment=_proven(soak.environment, revisions))
    return reliability_markdown(kills, about, soak, *files[1:])


def _proven(environment: Manifest, revisions: Revisions) -> Manifest:
    """Return the environment; that of a copy without a history is clean if its code has the hash of its revision."""
    known = revisions.get(str(environment.get("git_revision")), {})
    is_proven = environment.get("git_dirty") is None and environment.get("code_sha1") == known.get("code_sha1", "")
    return {**environment, "git_dirty": False} if is_proven else environment


def read_kills(path: Path) -> list[Kill]:
    """Return every row; DataError for a file that is no table of a campaign."""
    with opened(path) as file:
        if not 1 <= file.metadata.num_rows <= MOST_KILLS:
            raise DataError(path, None, f"{file.metadata.num_rows:,} kills: must be 1 to {MOST_KILLS:,}")
        names = [name for name in SCHEMA.names if name not in _LATER or name in file.schema_arrow.names]
        if missing := [name for name in names if file.schema_arrow.names.count(name) != 1]:
            raise DataError(path, None, f"not a table of kills: lacks {', '.join(missing)}, or has it twice")
        table = file.read(columns=names).select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
    for name in names:
        if name not in _MAY_BE_NULL and table.column(name).null_count:
            raise DataError(path, None, f"{name} must not be null")
    return [Kill(**row) for row in table.to_pylist()]


def _require_same(folder: Path, kills: Sequence[Kill], about: Manifest) -> None:
    """Raise DataError if the counts in the manifest are not those of the table."""
    counts = about.get("counts")
    whole = counts[-1] if isinstance(counts, list) and counts and isinstance(counts[-1], dict) else {}
    found = {"tried": len(kills), "lost": sum(k.lost for k in kills), "leaked": sum(k.leaked for k in kills)}
    found["wrong"] = sum(bool(kill.wrong) for kill in kills)
    counted: dict[str, int | None] = dict(found)
    for name in ("hung", "tracebacks"):
        values = [getattr(kill, name) for kill in kills]
        counted[name] = None if None in values else sum(values)
    for name, value in counted.items():
        if whole.get(name) != value:
            why = f"says {name}: {whole.get(name)}, where {CAMPAIGN} has {value}: not of one campaign"
            raise DataError(folder / "manifest.json", None, why)
    if not isinstance(about.get("environment"), dict):
        raise DataError(folder / "manifest.json", None, "has no environment")


def read_trials(path: Path, shape: Mapping[str, Any], script: str) -> Manifest | None:
    """Return what a script wrote, None if there is no file; DataError if a value is missing or of a wrong type."""
    if not path.exists():
        return None
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({reason(error)})") from None
    lost: list[str] = []
    kept = fitted(found, shape, lost)
    if missing := lost or _missing(kept, shape):
        raise DataError(path, None, f"not what scripts/{script} writes: {missing[0] or 'all of it'}")
    about: Manifest = kept
    return about


def _missing(value: Any, shape: Any, name: str = "") -> list[str]:
    """Return the names of values that a shape has and `value` lacks."""
    if value is None:
        return [] if name.rpartition(".")[2] in NULLABLE else [name]
    if isinstance(shape, list):
        return [each for item in value for each in _missing(item, shape[0], name)]
    if not isinstance(shape, Mapping):
        return []
    inner = {key: shape.get(key, shape.get(ANY)) for key in (value if ANY in shape else shape)}
    names = {key: f"{name}.{key}".strip(".") for key in inner}
    lacking = [names[key] for key in inner if key not in value]
    return lacking + [each for key in inner if key in value for each in _missing(value[key], inner[key], names[key])]


def read_soak(path: Path) -> Soak:
    """Return the measurements; DataError for a file that scripts/soak.py did not write."""
    try:
        figures = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({reason(error)})") from None
    figures = figures if isinstance(figures, dict) else {}
    wanted = [each.name for each in fields(Soak)]
    if missing := [name for name in wanted if name not in figures]:
        raise DataError(path, None, f"not what scripts/soak.py writes: lacks {', '.join(missing)}")
    memory, environment = figures["memory"], figures["environment"]
    is_sound = (
        all(_is_number(figures[name]) for name in _NUMBERS)
        and isinstance(environment, dict)
        and isinstance(memory, dict)
        and {"consumer", "producer"} <= memory.keys()
        and all(isinstance(held, dict) and held.keys() >= _MEMORY for held in memory.values())
        and all(_is_number(held[name]) for held in memory.values() for name in _MEMORY)
    )
    if not is_sound:
        raise DataError(path, None, "not what scripts/soak.py writes: a value has a wrong type")
    return Soak(**{name: figures[name] for name in wanted})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _parser() -> CommandParser:
    parser = CommandParser("reliability", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of one campaign")
    parser.add_argument("--readme", type=Path, metavar="FILE.md", help="refresh the tables inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    return parser


if __name__ == "__main__":
    end(main)
