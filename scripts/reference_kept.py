"""Keeps of results what pages, reports and `launchopt compare` read, so that what is committed stays small.

    python scripts/reference_kept.py                     # shrinks what is committed; a second start changes nothing
    python scripts/reference_kept.py outputs/new/goals   # or other results

scripts/goal_pages.py and scripts/readme_figures.py copy results in this way. Values stay as they were measured:

- manifest.json: `left_out` replaces `runs`, the list with an entry for each repeat. It has the number of entries, the
  lowest and highest clock, and the SHA-256 of the file that was measured.
- summary.parquet: columns without a value are left out, but for those that every file has. Readers return null.
- histograms.parquet: only those that a frontier reads (beside or below a frontier.json), with only the quantities that
  it reads.

The Parquet files have no statistics, and their metadata has the SHA-256 of the file that was measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from launchopt.analysis.frontier.points import HISTOGRAMS_USED
from launchopt.errors import DataError
from launchopt.files import JsonObject, absent, read_json, reason, save_json, save_result
from launchopt.recording.columns import HISTOGRAMS as HISTOGRAMS_SCHEMA
from launchopt.recording.columns import RENAMED
from launchopt.recording.manifest import LEFT_OUT, read_manifest
from launchopt.recording.summary_columns import SUMMARY_COLUMNS
from runner.bench import account, figures
from runner.provenance.origins import CARRIERS
from runner.reading import CommandParser, exit_code
from runner.report import advised, kernel_times, profilers, several_gpus, step_goals
from runner.report.tables import FRONTIER_FILE, STRATEGIES_FILE
from scripts import device_use
from scripts.cpp_loop.measure import RESULT as CPP_LOOP

ROOT = Path(__file__).parents[1]
MANIFEST, SUMMARY, HISTOGRAMS = "manifest.json", "summary.parquet", "histograms.parquet"
KEPT = (
    *CARRIERS,
    *(SUMMARY, HISTOGRAMS, account.FILE, figures.FILE, profilers.AGREEMENTS),
    *(
        advised.ANSWER,
        step_goals.PEER_FILE,
        several_gpus.SWEEP,
        device_use.FILE,
        STRATEGIES_FILE,
        FRONTIER_FILE,
        CPP_LOOP,
    ),
)
ORIGINAL, VERSION = "launchopt.original_sha256", "launchopt.schema_version"
TRACED = "traced_"  # in the path of their folders
MANY_ROWS = 1000  # in fewer rows a dictionary takes more bytes than the values


def copy(source: Path, target: Path, left_out: Sequence[str] = ()) -> None:
    """Replace the results in `target` by what is kept of those in `source`. left_out: folders that no page reads.

    DataError for results that cannot be read.
    """
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        # A page shows the kernels of traced twins only; those of other runs are large.
        is_kept = any(fnmatch(path.name, name) for name in KEPT) or (
            path.name == kernel_times.KERNELS and TRACED in path.relative_to(source.parent).as_posix()
        )
        if is_kept and path.is_file() and not set(left_out) & set(inner.parts):
            try:
                (target / inner).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target / inner)
                if path.suffix == ".json":
                    read_json(path)
            except (OSError, ValueError) as error:
                raise DataError(path, None, f"cannot be copied ({reason(error)})") from None
    shrink(target)


def require_readable(folder: Path) -> None:
    """Raise DataError if a folder, or one below it, cannot be listed: searches would silently leave it out."""

    def refuse(error: OSError) -> None:
        raise DataError(error.filename or folder, None, f"cannot be read ({reason(error)})")

    for place, _, _ in os.walk(folder, onerror=refuse):
        if not os.access(place, os.X_OK):
            raise DataError(place, None, "its files cannot be read (Permission denied)")


@contextlib.contextmanager
def staging(root: Path) -> Iterator[Path]:
    """Make a folder on the disk of a checkout's results, and remove it at the end."""
    try:
        (root / "outputs").mkdir(exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=root / "outputs", ignore_cleanup_errors=True)
    except OSError as error:
        raise DataError(root / "outputs", None, f"cannot be written to ({reason(error)})") from None
    with made as place:
        yield Path(place)


def replace(staged: Path, target: Path, replaced: Path) -> None:
    """Move results to where others may be, which go to `replaced`. All are on one disk, so no result is ever lost."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replaced.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            target.rename(replaced)
        staged.rename(target)
    except OSError as error:
        raise DataError(target, None, f"cannot be replaced ({reason(error)})") from None


def shrink(folder: Path) -> int:
    """Leave out of the results at and below a folder what nothing reads; return how many bytes that were."""
    before = _size(folder)
    for path in sorted(folder.rglob(MANIFEST)):
        _shrink_manifest(path)
    for path in sorted(folder.rglob(SUMMARY)):
        _shrink_table(path)
    for path in sorted(folder.rglob(HISTOGRAMS)):
        if any((place / FRONTIER_FILE).is_file() for place in (path.parent, path.parent.parent)):
            _shrink_table(path, HISTOGRAMS_USED)
        else:
            path.unlink()
    return before - _size(folder)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _shrink_manifest(path: Path) -> None:
    content = read_manifest(path.parent)
    if runs := content.pop("runs", None):
        try:
            states = (state for each in runs for state in each.get("state", {}).values())
            clocks = [state["sm_clock_mhz"] for state in states if state and state.get("sm_clock_mhz")]
        except (AttributeError, TypeError):
            raise DataError(path, None, "runs: not the repeats of a run") from None
        about: JsonObject = {"runs": len(runs), "sha256": _sha256(path)}
        if clocks:
            about["sm_clock_mhz"] = [min(clocks), max(clocks)]
        save_json(path, content | {LEFT_OUT: about})


def _shrink_table(path: Path, quantities: Sequence[str] | None = None) -> None:
    """Write a table again without columns of nulls. quantities: the rows of a table of histograms that stay."""
    try:
        if original(path) is not None:
            return
        table, measured = pq.read_table(path), _sha256(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(path, None, f"cannot be read as Parquet ({error})") from None
    if quantities is not None:
        table = table.filter(pc.is_in(table["what"], pa.array(quantities)))
    kept = [name for name in table.column_names if table[name].null_count < len(table) or _is_required(name)]
    table = table.select(kept).replace_schema_metadata()
    many = len(table) > MANY_ROWS
    small = {"compression": "zstd", "compression_level": 19, "use_dictionary": many, "write_statistics": False}
    about = {key: value for key, value in _metadata(path).items() if key == VERSION} | {ORIGINAL: measured}

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, table.schema, store_schema=False, **small) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(about)

    save_result(path, write)


def original(path: Path) -> str | None:
    """Return the SHA-256 of the file that was measured, if `path` is what is kept of it."""
    return _metadata(path).get(ORIGINAL)


def _metadata(path: Path) -> dict[str, str]:
    found: Mapping[bytes, bytes] = pq.read_metadata(path).metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


def _is_required(column: str) -> bool:
    name = RENAMED.get(column, column)
    return name in HISTOGRAMS_SCHEMA.names or any(each.is_required for each in SUMMARY_COLUMNS if each.name == name)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = CommandParser("reference_kept", __doc__)
    default = root / "outputs/reference"
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", default=default, help=f"default: {default.name}")
    options = parser.parsed(argv, needs_words=False)

    def work() -> int:
        if not options.folder.is_dir():
            raise DataError(options.folder, None, absent(options.folder))
        left_out = shrink(options.folder)
        print(f"{os.fspath(options.folder)}: {_size(options.folder):,} bytes, {left_out:,} left out")
        return 0

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())
