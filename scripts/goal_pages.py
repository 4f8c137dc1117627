"""Puts the results of reference.py into the checkout and the pages; readme_figures.py does that for its part `readme`.

    python scripts/reference.py --only goals waterfall advised/gpu gpus --minutes 9    # on a GPU, until none is left
    python scripts/goal_pages.py                                   # anywhere with the history: writes the pages
    python scripts/goal_pages.py OTHER

Parts that are done are copied to folders of these names below outputs/reference, as reference_kept.py keeps them. Each
has a revision and a GPU of its own. A part that is not done is named, and an older result of it stays. README,
outputs/reference/STACKS.md and the pages which-strategy, advise, arrivals, tensor-parallel, quantised, experts and
strategies of docs then show all that is there. Read the advice beside its new factors before you commit: a sentence of
ADVICE may no longer hold.

Exit code 2: no part is done, or a result cannot be read or is of no clean revision of the history; nothing is changed.
Or a picture or page cannot be made from results that are in the checkout by then; a line says so. Once the cause is
mended, the same command makes all of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.errors import DataError, LaunchoptError
from launchopt.files import JsonObject, save_json, save_text
from launchopt.messages import say
from runner.provenance.origins import REVISIONS, Revisions, carriers, origin, origin_faults, part_of
from runner.reading import CommandParser, exit_code, sync_block
from runner.report import advice, advised, kernel_times, several_gpus, step_goals, waterfall, weight_goals
from runner.report.blocks import sync_readme
from runner.report.pictures import draw_scaling, draw_waterfalls
from scripts import reference_kept, reference_parts, reference_pictures, revisions
from scripts.reference_advised import ADVISED, ADVISED_PARTS
from scripts.reference_goals import (
    FUSED,
    GOAL_ROWS,
    GOALS,
    INDEPENDENT,
    LOOP,
    LOOPED,
    RUN,
    WATERFALL,
    WATERFALL_PARTS,
    Goal,
)
from scripts.reference_gpus import FIRST, GPUS, JOBS, SPLIT, SWEPT, page_rows, split_page_rows
from scripts.reference_many_gpus import (
    JOBS_A_GPU,
    MACHINES,
    MANY,
    MANY_PARTS,
    many_page_rows,
    many_split_rows,
    place_of,
)
from scripts.reference_part import Part
from scripts.reference_weights import EXPERTS, QUANTISED, traces, weight_rows

ROOT = Path(__file__).parents[1]
REFERENCE = "outputs/reference"
README, PAGE, STACKS = "README.md", "docs/which-strategy.md", f"{REFERENCE}/STACKS.md"
ADVICE_PAGE, GPUS_PAGE, SPLIT_PAGE = "docs/advise.md", "docs/arrivals.md", "docs/tensor-parallel.md"
WEIGHT_PAGES = {QUANTISED: "docs/quantised.md", EXPERTS: "docs/experts.md"}
BENCHES = {"gpu/bench/attention": "docs/strategies.md", "gpu/bench/collectives": SPLIT_PAGE}  # part -> page
PARTS = tuple(part for part in reference_parts.PARTS if part not in reference_parts.README_PARTS)
LEFT_OUT = ("advise", FIRST)  # folders that no page reads; FIRST: also of scripts/advised.py
# Parts of equal jobs: one manifest says what ran.
EQUAL = (f"{GPUS}/{SWEPT}", *(part.folder for part in MANY_PARTS if Path(part.folder).name.startswith("jobs_")))
JOBS_LEFT_OUT = tuple(str(job) for job in range(1, max(JOBS, JOBS_A_GPU * max(MACHINES))))
GPU = "NVIDIA H200"  # the goals are stated for it
SHOWN = ("llama_3_2_1b_1", "llama_3_2_1b_16")  # waterfalls on the takeaway page; the others stand in STACKS
FUSE = "Fuse the step, launch it with programmatic dependent launch, and capture it in a CUDA graph."
STEPS = [[FUSED, "engine"], ["torch_compile", "engine"], ["megakernel", "engine"]]
ADVICE = [
    {
        "work": "independent 64 x 8192 GEMVs",
        "run": f"{INDEPENDENT}/{RUN}",
        "do": "Batch them: one launch for a bucket of commands.",
        "gains": [["batched", "baseline"], ["graph", "baseline"], ["persistent", "baseline"]],
    },
    *(
        {"work": work, "run": f"{name}/{RUN}", "do": do, "gains": STEPS}
        for work, name, do in (
            ("Llama 3.2 1B, 1 request", "llama_3_2_1b_1", f"{FUSE} Or use a megakernel."),
            ("Llama 3.2 1B, 16 requests", "llama_3_2_1b_16", "The same."),
            ("Llama 3 8B, 16 requests", "llama_3_8b_16", FUSE),
        )
    ),
]
BASES = """\
- **Steps of requests** are compared with `engine`, so each factor is what a launch strategy adds to an engine whose
  CUDA graphs are off. vLLM and SGLang have them on by default: [what a graph alone
  brings](docs/which-strategy.md#what-each-choice-brings). **Independent commands** are compared with one launch for
  each, `baseline`.
"""


def place(measured: Path, root: Path) -> tuple[list[Part], dict[str, str]]:
    """Copy the parts that are done into a checkout, and refresh its pages.

    Returns these parts, and why each other one is not done. DataError if none is done, or if one cannot be committed
    or read; then the results of the checkout stay. DataError, too, if a picture or page cannot be made from the new
    ones.
    """
    if measured.resolve() == (root / REFERENCE).resolve():
        raise DataError(measured, None, "these are the committed results: name the folder of new ones")
    if measured.is_dir():
        reference_kept.require_readable(measured)
    lacking = {part.folder: why for part in PARTS if (why := _lack(part, measured))}
    done = [part for part in PARTS if part.folder not in lacking]
    if not done:
        raise DataError(measured, None, "no part is done: run `python scripts/reference.py --only goals waterfall`")
    listed = _checked(done, measured, root)
    _copy(done, measured, root)
    save_text(root / REFERENCE / REVISIONS, json.dumps(listed, indent=1) + "\n")
    try:
        reference_pictures.refresh(root / REFERENCE, [part.folder for part in done])
        refresh(root)
    except LaunchoptError:
        say(f"{root / REFERENCE} has the new results, but not all pictures and pages: mend this, and start again")
        raise
    return done, lacking


def _copy(parts: Sequence[Part], measured: Path, root: Path) -> None:
    """Replace the results of these parts in a checkout, after all are copied: one may be unreadable."""
    with reference_kept.staging(root) as made:
        new, old = made / "new", made / "old"
        for part in parts:
            left_out = (*LEFT_OUT, *(JOBS_LEFT_OUT if part.folder in EQUAL else ()))
            reference_kept.copy(measured / part.folder, new / part.folder, left_out)
        for part in parts:
            reference_kept.replace(new / part.folder, root / REFERENCE / part.folder, old / part.folder)


def _lack(part: Part, measured: Path) -> str:
    """Return why a part is not done, or nothing."""
    made_by = [part_of(path) for path in carriers(measured / part.folder)]
    if not made_by:
        return "not measured"
    if any(each.get("commands") != [*part.commands] for each in made_by):
        return "measured by other commands"
    return "" if all(each.get("exit_code") == 0 for each in made_by) else "failed"


def _checked(parts: Sequence[Part], measured: Path, root: Path) -> Revisions:
    """Return the revisions of all committed results and these; DataError if one of these is not clean."""
    origins = {path: origin(path) for part in parts for path in carriers(measured / part.folder)}
    named = {found.revision for found in origins.values() if found.revision}
    listed = revisions.history_of(root, revisions.named_below(root / REFERENCE) | named)
    for path, found in origins.items():
        if faults := origin_faults(found, listed):
            raise DataError(path.parent, None, f"cannot be committed: {'; '.join(faults)}")
    return listed


def refresh(root: Path) -> None:
    """Let the pages show all results of goals, waterfalls and advices that a checkout has."""
    place = root / REFERENCE
    rows = [row for row in GOAL_ROWS if (place / GOALS / row.name).is_dir()]
    advices = [each for each in ADVICE if (place / GOALS / each["run"]).is_dir()]
    names = dict.fromkeys(part.folder.split("/")[1] for part in WATERFALL_PARTS if (place / part.folder).is_dir())
    blocks: dict[str, dict[str, list[str]]] = {PAGE: {}, STACKS: {}}
    if rows:
        save_json(place / GOALS / step_goals.FILE, {"goals": [*map(_goal, rows)]})
        table = f"{GOALS}/{step_goals.FILE}"
        blocks[PAGE]["goals"] = [table]
        runs = [f"{GOALS}/{name}/{RUN}" for name in (*(row.name for row in rows), LOOP)]
        blocks[STACKS]["goals"] = [table, *(run for run in runs if (place / run).is_dir())]
    if names:
        shown = [name for name in SHOWN if name in names] or [*names][:1]
        for name in shown:
            _draw(place / WATERFALL / name)
        blocks[PAGE]["waterfall"] = [f"{WATERFALL}/{name}" for name in shown]
        blocks[STACKS]["waterfall"] = [WATERFALL]
    for page, of_page in blocks.items():
        for block, reports in of_page.items():
            text = "".join(_marked(root / page, place / each) for each in reports)
            sync_block(root / page, block, f"\n{text}", check=False)
        if of_page:
            sync_readme(root / page)
    if advices:
        save_json(place / GOALS / advice.FILE, {"advice": advices})
        _show_headline(root)
    _show_advised(root)
    gpus = place / GPUS
    _show_rows(root / GPUS_PAGE, GPUS, gpus / several_gpus.FILE, {"rows": page_rows(gpus)})
    _show_rows(root / SPLIT_PAGE, SPLIT, gpus / SPLIT / several_gpus.FILE, {"rows": split_page_rows(gpus / SPLIT)})
    _show_many(root / GPUS_PAGE, "", many_page_rows)
    _show_many(root / SPLIT_PAGE, SPLIT, many_split_rows)
    for name, page in WEIGHT_PAGES.items():
        _show_rows(root / page, name, place / name / weight_goals.FILE, {"goals": weight_rows(name, place / name)})
        times = {"traces": traces(name, place / name)}
        _show_rows(root / page, f"{name}_kernels", place / name / kernel_times.FILE, times)
    for folder, page in BENCHES.items():
        if (place / folder).is_dir():
            sync_readme(root / page)


def _show_advised(root: Path) -> None:
    """Let the page on advice show all advices that a checkout has, a table for each machine."""
    place, tables = root / REFERENCE, []
    done = [Path(part.folder) for part in ADVISED_PARTS if (place / part.folder / advised.ANSWER).is_file()]
    for machine in dict.fromkeys(folder.parent for folder in done):
        names = sorted((each.name for each in done if each.parent == machine), key=_by_requests)
        save_json(place / machine / advised.FILE, {"advised": [{"run": name} for name in names]})
        tables.append(place / machine / advised.FILE)
    if tables:
        shown = "".join(_marked(root / ADVICE_PAGE, table) for table in tables)
        sync_block(root / ADVICE_PAGE, ADVISED, f"\n{shown}", check=False)
        sync_readme(root / ADVICE_PAGE)


def _show_rows(page: Path, block: str, path: Path, content: Mapping[str, Sequence[JsonObject]]) -> None:
    """Save the rows of a table beside the runs, and let a page show them; without rows the page stays."""
    if any(content.values()):
        save_json(path, content)
        sync_block(page, block, f"\n{_marked(page, path)}", check=False)
        sync_readme(page)


def _show_many(page: Path, folder: str, rows_of: Callable[[Path, int], list[JsonObject]]) -> None:
    """Let a page show the tables of machines with four and eight GPUs. folder: of the runs, below that of a machine."""
    text = ""
    for machine in MACHINES:
        place = page.parents[1] / REFERENCE / place_of(machine)
        if rows := rows_of(place / folder, machine):
            table = place / folder / several_gpus.FILE
            save_json(table, {"rows": rows})
            draw_scaling(several_gpus.lines(table), table.with_suffix(".svg"))
            text += f"On a host with {machine} GPUs:\n\n{_marked(page, table)}"
        if folder and (bench := place / "collectives").is_dir():
            text += _marked(page, bench)
    if text:
        sync_block(page, MANY, f"\n{text}", check=False)
        sync_readme(page)


def _by_requests(name: str) -> tuple[str, int]:
    model, _, requests = name.rpartition("_")
    return model, int(requests)


def _goal(row: Goal) -> dict[str, object]:
    rivals = row.against or ("graph", LOOPED, "torch_compile", "megakernel")
    others = ["engine", *(mode for mode in rivals if mode != FUSED)]
    peers = [f"{row.name}/{name}" for name in row.peers]
    of_run = {"run": f"{row.name}/{RUN}", "mode": FUSED, "beside": others, "peers": peers}
    return {**of_run, "goal_us": row.goal_us, "floor_us": row.floor_us, "gpu": GPU}


def _draw(folder: Path) -> None:
    """Draw the waterfalls of a folder beside it."""
    draw_waterfalls(waterfall.read_waterfalls([folder]), folder.with_suffix(".svg"))


def _marked(page: Path, shown: Path) -> str:
    """Return the markers of a report, and above them the picture that lies beside it."""
    name = Path(os.path.relpath(shown, page.parent)).as_posix()
    has_picture = shown.with_suffix(".svg").is_file()
    about = "Several GPUs over one" if shown.name == several_gpus.FILE else f"What each choice brings: {shown.name}"
    picture = f"![{about}]({Path(name).with_suffix('.svg')})\n\n" if has_picture else ""
    return f"{picture}<!-- report:{name} -->\n<!-- /report:{name} -->\n\n"


def _show_headline(root: Path) -> None:
    """Let README and takeaway page show the advice of these results."""
    for page in (README, PAGE):
        text = (root / page).read_text(encoding="utf-8")
        marker = rf"(<!-- /?report:(?:\.\./)?){REFERENCE}/\w+/{advice.FILE}"
        save_text(root / page, re.sub(marker, rf"\g<1>{REFERENCE}/{GOALS}/{advice.FILE}", text))
        sync_readme(root / page)
    sync_block(root / README, "bases", BASES, check=False)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = CommandParser("goal_pages", __doc__)
    default = Path("outputs/new")
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", default=default, help=f"default: {default}")
    options = parser.parsed(argv, needs_words=False)

    def work() -> int:
        done, lacking = place(options.folder.absolute(), root)
        for folder, why in lacking.items():
            print(f"{folder}: {why}")
        print(f"refreshed the pages from {len(done)} parts; python scripts/stale.py marks what is older than the code")
        return 0

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())
