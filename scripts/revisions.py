"""Lists the revisions that measured the committed results, for clones without a history.

    python scripts/revisions.py            # writes outputs/reference/revisions.json; needs a clone with its history

Run it before results of a new revision are committed. It saves, for each revision, the number of commits up to it, its
day, the hash of its code, and those of the paths in reference_paths.py. A revision that is not in the history is left
out; the test on provenance then refuses its results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.files import save_text
from launchopt.recording.environment import CODE_PATHS, code_sha1
from runner.reading import CommandParser
from runner.report.provenance import REVISIONS, Revisions, carriers, origin
from scripts.reference_paths import path_hashes

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "outputs/reference"


def history_of(root: Path, named: set[str]) -> Revisions:
    """Return the named revisions that are in the history of a checkout, in order; SystemExit without a history."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        raise SystemExit("scripts/revisions.py: this clone has no history; run `git fetch --unshallow`")
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
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file."""
    CommandParser("revisions", __doc__).parsed(argv, needs_words=False)
    save_text(REFERENCE / REVISIONS, json.dumps(history_of(ROOT, named_below(REFERENCE)), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
