"""Puts the results of `reference.py --only readme` into the README: its first table and its picture.

    python scripts/reference.py --only readme           # on a GPU: measures, into outputs/new/readme
    python scripts/readme_figures.py                    # anywhere with the history: writes table and picture
    python scripts/readme_figures.py OTHER/readme

All results must be of one clean revision of the history, and of one GPU. They are copied to outputs/reference/readme,
with a list of the runs, the advice and the picture. The README and docs/which-strategy.md then show those. Read the
advice beside its new factors before you commit: a sentence of ADVICE may no longer hold.

Exit code 2: results are missing, or of several revisions or GPUs; nothing is changed.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.errors import DataError
from launchopt.files import save_json, save_text
from runner.provenance.origins import REVISIONS, Revisions, origin, origin_faults, part_of
from runner.reading import CommandParser, exit_code
from runner.report import __main__ as report
from runner.report import advice, which_strategy
from runner.report.blocks import sync_readme
from scripts import reference_kept, revisions
from scripts.reference_goals import GOALS
from scripts.reference_parts import README, README_PARTS

ROOT = Path(__file__).parents[1]
PLACE = f"outputs/reference/{README}"
PICTURE = "decode.svg"
PAGES = ("README.md", "docs/which-strategy.md")
DRAWN = ("decode_1", "decode_16", "decode_64")  # the panels of the picture
RUNS = {  # requests and other bases of the runs in the table
    "decode_1": (1, ["engine", "baseline"]),
    "qkv_1": (1, ["engine", "baseline"]),
    "ahead_1": (1, ["graph"]),
    "decode_4": (4, ["engine", "baseline"]),
    "decode_16": (16, ["engine", "baseline"]),
    "ahead_16": (16, ["graph"]),
    "decode_64": (64, ["engine", "baseline"]),
}
NOTES = [
    "`model=small_1024` is no published model: hidden size 1024 and 8 layers. Its launches are short, so launch costs "
    "weigh most.",
    '"Steps ahead" means `scheduler.ahead=true`: asynchronous scheduling.',
    "4 and 64 requests: no run has steps ahead.",
]
CAPTURE = "Capture the step in a CUDA graph, on top of what engines do anyway."
ADVICE = [
    {
        "requests": 1,
        "do": "Nothing to batch, so make launches cheaper: programmatic dependent launch, a CUDA graph. With a "
        "megakernel one launch is a whole step.",
        "gains": [["pdl", "engine"], ["graph", "engine"], ["megakernel", "graph"]],
    },
    {"requests": 4, "do": CAPTURE, "gains": [["graph", "engine"], ["engine", "baseline"]]},
    {
        "requests": 16,
        "do": "The same.",
        "gains": [["graph", "engine"], ["megakernel", "graph"], ["engine", "baseline"]],
    },
    {"requests": 64, "do": "The same.", "gains": [["graph", "engine"], ["engine", "baseline"]]},
]


def place(measured: Path, root: Path) -> None:
    """Copy the results below `measured` into a checkout, and refresh table and picture; DataError if they are wrong."""
    machine, listed = _checked(measured, root)
    target = root / PLACE
    with reference_kept.staging(root) as made:
        staged = made / README
        for name in RUNS:
            reference_kept.copy(measured / name, staged / name)
        _describe(staged)
        reference_kept.replace(staged, target, made / "replaced")
    listed_file = root / "outputs/reference" / REVISIONS
    save_text(listed_file, json.dumps(listed, indent=1) + "\n")
    for page in PAGES:
        _refresh(root / page, root, machine)


def _checked(measured: Path, root: Path) -> tuple[str, Revisions]:
    """Return the GPU of the results, and the revisions of all committed results and these."""
    if measured.is_dir():
        reference_kept.require_readable(measured)
    for part in README_PARTS:
        folder = measured / Path(part.folder).name
        if not (folder / "manifest.json").is_file():
            raise DataError(folder, None, "no results: run `python scripts/reference.py --only readme` on a GPU")
        made_by = part_of(folder / "manifest.json")
        if made_by.get("exit_code") != 0 or made_by.get("commands") != [*part.commands]:
            raise DataError(folder, None, f"not measured by this script: reference.py --only {part.folder}")
    origins = [origin(measured / name / "manifest.json") for name in RUNS]
    for what in ("machine", "revision"):
        values = sorted({str(getattr(found, what)) for found in origins})
        if len(values) > 1:
            raise DataError(
                measured, None, f"results of {len(values)} {what}s ({', '.join(values)}): measure all again"
            )
    named = revisions.named_below(root / "outputs/reference") | {str(origins[0].revision)}
    listed = revisions.history_of(root, named)
    if faults := sorted({fault for found in origins for fault in origin_faults(found, listed)}):
        raise DataError(measured, None, f"cannot be committed: {'; '.join(faults)}")
    return str(origins[0].machine), listed


def _describe(folder: Path) -> None:
    """Write the lists of runs and of advice, and draw the picture."""
    runs = [{"requests": n, "run": name, "bases": bases} for name, (n, bases) in RUNS.items()]
    save_json(folder / which_strategy.FILE, {"runs": runs, "notes": NOTES})
    save_json(folder / advice.FILE, {"runs": which_strategy.FILE, "advice": ADVICE})
    which_strategy.markdown(folder / which_strategy.FILE)
    advice.markdown(folder / advice.FILE)
    drawn = [str(folder / name) for name in DRAWN]
    with contextlib.redirect_stdout(io.StringIO()):
        code = report.main([*drawn, "--strategies", "--plot", str(folder / PICTURE), "--output", f"{folder}.md"])
    if code != 0:
        raise DataError(folder, None, "the picture cannot be drawn; see the line above")


def _refresh(page: Path, root: Path, machine: str) -> None:
    """Let a page show the new table and picture, and remove the picture that it showed before."""
    text = page.read_text(encoding="utf-8")
    shown = set(re.findall(rf"\((outputs/reference/\w+/{PICTURE})\)", text)) - {f"{PLACE}/{PICTURE}"}
    for name in (advice.FILE, which_strategy.FILE):
        # The headline of scripts/goal_pages.py, which has whole models, stays.
        marker = rf"(<!-- /?report:(?:\.\./)?)outputs/reference/(?!{GOALS}/)\w+/{name}"
        text = re.sub(marker, rf"\g<1>{PLACE}/{name}", text)
    alt = f"Speed-up of every mode over engine, for 1, 16 and 64 requests on an {machine}"
    text = re.sub(rf"!\[[^]]*\]\(outputs/reference/\w+/{PICTURE}\)", f"![{alt}]({PLACE}/{PICTURE})", text)
    save_text(page, text)
    sync_readme(page)
    for old in shown:
        (root / old).unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = CommandParser("readme_figures", __doc__)
    default = Path("outputs/new") / README
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", default=default, help=f"default: {default}")
    options = parser.parsed(argv, needs_words=False)

    def work() -> int:
        place(options.folder.absolute(), root)
        print(f"refreshed {', '.join(PAGES)} from {PLACE}")
        print("read the advice beside its new factors, run python scripts/stale.py, then commit")
        return 0

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())
