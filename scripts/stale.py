"""Marks results that are older than a change to the code that made them.

    python scripts/stale.py            # writes outputs/reference/stale.json, and the marks on all pages
    python scripts/stale.py --check    # before a release: names stale results, and pages whose marks are old

reference_paths.py lists the code of each kind of result. `revisions.json` has its hash at each revision that measured,
so a clone needs no history. Pages take their marks from `stale.json`: a commit that changes code changes no page, and
the tests compare a page with committed files only.

Exit code of --check: 0 if nothing is stale, 1 otherwise. 2: an option is wrong, or a result cannot be
read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.errors import DataError
from launchopt.files import save_text
from launchopt.recording.environment import blobs
from runner.provenance.origins import CARRIERS, REVISIONS, origin, read_revisions, whole
from runner.provenance.sentences import STALE, Stale, listed, read_stale
from runner.reading import CommandParser, exit_code, read_page
from runner.report.blocks import sync_readme
from scripts.reference_paths import DEPENDS, kind_of, path_hashes

ROOT = Path(__file__).parents[1]
REFERENCE = "outputs/reference"
LISTING = "python scripts/revisions.py"
PAGES = ("README.md", "docs/*.md", f"{REFERENCE}/*.md")


def stale_results(reference: Path, now: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Return the paths that have changed since, by revision and by kind of results. now: the hashes of today's code.

    A kind within a stale one, such as gpu/trace_bert in gpu, has an empty list if it is not stale itself.
    """
    revisions, found = read_revisions(reference), dict[str, dict[str, list[str]]]()
    for path in sorted(path for name in CARRIERS for path in reference.rglob(name)):
        kind, named = _kind(path.parent, reference), origin(path).revision or ""
        revision = whole(named, revisions) or named
        then = revisions.get(revision, {}).get("paths", {})
        if not isinstance(then, dict):
            raise DataError(reference / REVISIONS, None, f"{revision}.paths: not an object: run {LISTING}")
        changed = [each for each in DEPENDS[kind] if then.get(each) != now.get(each)]
        found.setdefault(revision, {})[kind] = changed
    return {revision: kept for revision, kinds in sorted(found.items()) if (kept := _needed(kinds))}


def _kind(folder: Path, reference: Path) -> str:
    try:
        return kind_of(folder.relative_to(reference).as_posix())
    except KeyError as error:
        raise DataError(folder, None, str(error.args[0])) from None


def _needed(kinds: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the stale kinds, and those within them."""
    broad = [f"{kind}/" for kind, changed in kinds.items() if changed]
    return {
        kind: changed
        for kind, changed in sorted(kinds.items())
        if changed or any(kind.startswith(each) for each in broad)
    }


def pages(root: Path) -> Iterator[Path]:
    """Yield the pages that show results."""
    for pattern in PAGES:
        yield from (path for path in sorted(root.glob(pattern)) if "<!-- report:" in read_page(path))


def mark(root: Path) -> Stale:
    """Save what is stale, and mark it on all pages; DataError for a page that cannot be marked, and none is changed."""
    found = stale_results(root / REFERENCE, path_hashes(blobs(root)))
    marked, shown = root / REFERENCE / STALE, [*pages(root)]
    before = marked.read_bytes() if marked.is_file() else None
    save_text(marked, json.dumps(found, indent=1) + "\n")  # first: pages read it
    try:
        for page in shown:
            sync_readme(page, check=True)
    except BaseException:
        marked.unlink() if before is None else marked.write_bytes(before)
        raise
    for page in shown:
        sync_readme(page)
    return found


def check(root: Path) -> list[str]:
    """Return what is wrong for a release: stale results, marks that are not today's, and pages without these marks."""
    found = stale_results(root / REFERENCE, path_hashes(blobs(root)))
    wrong = [
        f"stale: {kind} of revision {revision[:7] or 'unknown'}: {listed(changed, 'path')}"
        for revision, kinds in found.items()
        for kind, changed in kinds.items()
        if changed
    ]
    marked = root / REFERENCE / STALE
    if not marked.is_file() or read_stale(marked) != found:
        wrong.append(f"{STALE} is not today's: run python scripts/stale.py")
    return wrong + [
        f"{page.relative_to(root)}: old tables" for page in pages(root) if not sync_readme(page, check=True)
    ]


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = CommandParser("stale", __doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a result is stale")
    options = parser.parsed(argv, needs_words=False)

    def work() -> int:
        if not (root / REFERENCE).is_dir():
            raise DataError(root / REFERENCE, None, "no results")
        if options.check:
            wrong = check(root)
            print("\n".join(wrong or ["no result is stale"]))
            return 1 if wrong else 0
        found = mark(root)
        count = sum(bool(changed) for kinds in found.values() for changed in kinds.values())
        print(f"{count} kinds of results of {len(found)} revisions are stale")
        return 0

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())
