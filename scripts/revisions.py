"""Lists the revisions that measured the committed results, for clones without a history.

    python scripts/revisions.py            # writes outputs/reference/revisions.json; needs a clone with its history

Run it before results of a new revision are committed. It saves, for each revision, the number of commits up to it, its
day, the hash of its code, and those of the paths in reference_paths.py. A revision that is not in the history is left
out and named; the test on provenance then refuses its results.

Exit code 2: there is no history, or none of the revisions is in it; nothing is changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.errors import DataError
from launchopt.files import save_text
from launchopt.recording.environment import CODE_PATHS, code_sha1
from runner.provenance.origins import REVISIONS, Revisions, carriers, origin
from runner.reading import CommandParser, exit_code
from scripts.reference_paths import path_hashes

ROOT = Path(__file__).parents[1]
REFERENCE = "outputs/reference"


def history_of(root: Path, named: set[str]) -> Revisions:
    """Return the named revisions that are in the history of a checkout, in order; DataError without a history."""
    if _git(root, "rev-parse", "--show-prefix") or not _git(root, "rev-parse", "HEAD"):
        raise DataError(root, None, "no checkout with commits, or git is not installed: take a clone of the repository")
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        raise DataError(root, None, "this clone has no history: run `git fetch --unshallow`")
    order = (_git(root, "rev-list", "--reverse", "HEAD") or "").split()
    listed = [revision for revision in order if any(revision.startswith(each) for each in named)]
    return {each: _about(root, each) for each in listed}


def named_below(folder: Path) -> set[str]:
    """Return the revisions that the results below a folder name."""
    origins = map(origin, carriers(folder))
    return {found.revision for found in origins if found.revision}


def _about(root: Path, revision: str) -> dict[str, object]:
    lines = (_git(root, "ls-tree", "-r", revision, "--", *CODE_PATHS) or "").splitlines()
    blobs = [(path, about.split()[2]) for about, _, path in (line.partition("\t") for line in lines)]
    return {
        "commit": int(_git(root, "rev-list", "--count", revision) or 0),
        "date": _git(root, "log", "-1", "--format=%cs", revision),
        "code_sha1": code_sha1(blobs),
        "paths": path_hashes(blobs),
    }


def _git(root: Path, *words: str) -> str | None:
    """Return what git prints, or None if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    CommandParser("revisions", __doc__).parsed(argv, needs_words=False)
    reference = root / REFERENCE

    def work() -> int:
        named = named_below(reference)
        if not named:
            raise DataError(reference, None, "no results that name a revision")
        found = history_of(root, named)
        lost = sorted(each for each in named if not any(revision.startswith(each) for revision in found))
        if not found:
            raise DataError(root, None, f"its history has none of the revisions of the results: {', '.join(lost)}")
        save_text(reference / REVISIONS, json.dumps(found, indent=1) + "\n")
        if lost:
            print(f"left out, not in the history: {', '.join(lost)}")
        return 0

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())
