"""A checkout with the pages that goal_pages.py writes, and results as reference.py leaves them on a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchopt.recording.manifest import SCHEMA_VERSION
from scripts import goal_pages
from scripts.reference_goals import PEERS, RUN, WATERFALL_PARTS
from scripts.reference_many_gpus import MANY
from scripts.reference_part import Part
from support.paths import ROOT
from support.results.summary_rows import repeats, write

REVISION, CODE = "a1" * 20, "c0de"
GPU = "NVIDIA H100 80GB HBM3"
LAYER = {"workload": "layer", "model": "llama", "layers": 16, "dtype": "bf16", "requests": 1, "tokens": 100}
LAYER |= {"weight_bytes": 247_160_000_000, "gpu": GPU, "ordering": "per_request"}
PAGES = (goal_pages.README, goal_pages.PAGE, goal_pages.STACKS, goal_pages.ADVICE_PAGE, goal_pages.GPUS_PAGE)
PAGES = (*PAGES, *goal_pages.WEIGHT_PAGES.values(), *goal_pages.BENCHES.values())
OWN_BLOCKS = {"split": goal_pages.SPLIT_PAGE}  # of pages that show other results, too
OWN_BLOCKS |= {block: page for name, page in goal_pages.WEIGHT_PAGES.items() for block in (name, f"{name}_kernels")}


def checkout_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pages of the repository, and the results of the README."""
    root = tmp_path / "checkout"
    for name in PAGES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text((ROOT / name).read_text())
    for page in PAGES:  # a page may show results that this checkout does not have yet
        shown = (root / page).read_text().replace("outputs/reference/goals/advice", "outputs/reference/readme/advice")
        (root / page).write_text(shown)
    for shown in ("readme", "gpu"):
        (root / "outputs/reference" / shown).symlink_to(ROOT / "outputs/reference" / shown)
    pages = OWN_BLOCKS | {"gpus": goal_pages.GPUS_PAGE}
    for name, page in (*pages.items(), (MANY, goal_pages.GPUS_PAGE), (MANY, goal_pages.SPLIT_PAGE)):
        blank(root / page, name)
    known = {REVISION: {"commit": 500, "date": "2026-11-27", "code_sha1": CODE}}
    monkeypatch.setattr(goal_pages.revisions, "history_of", lambda root, named: known)
    return root


def blank(page: Path, block: str) -> None:
    """Leave out what a page shows of results that this checkout does not have."""
    found = re.sub(rf"(<!-- {block} -->).*(<!-- /{block} -->)", r"\1\n\2", page.read_text(), flags=re.DOTALL)
    page.write_text(found)


def manifest(part: Part, **more: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "run_id": part.folder, "overrides": [], **more}
    about["started_utc"] = "2026-11-27T01:02:03+00:00"
    about["environment"] = {"git_revision": REVISION, "git_dirty": None, "code_sha1": CODE, "device": {"name": GPU}}
    return about | {"part": {"commands": [*part.commands], "exit_code": 0, "before": {"at_once": 4}}}


def measured(new: Path, parts: tuple[Part, ...], change: Callable[[dict[str, Any]], None] = lambda about: None) -> Path:
    """Write what reference.py leaves on a GPU; `change` alters each manifest."""
    rates = {"ceilings": {"read_gb_per_s": 3000.0}, "ceilings_after": {"read_gb_per_s": 3100.0}}
    for part in parts:
        names = [goal_pages.FUSED, goal_pages.LOOPED, "engine", "graph", "torch_compile", "megakernel", "baseline"]
        place, more = new / part.folder / RUN, rates
        if part in WATERFALL_PARTS:
            names = ["baseline", "coalesced", "engine"]
            place, more = new / part.folder, {"waterfall": [names]}
        stream = LAYER | {"run_id": part.folder, "tpot_p50_ms": 1.02}
        rows = [row for at, name in enumerate(names) for row in repeats(*[100.0 + at] * 5, mode=name, **stream)]
        write(place, rows)
        about = manifest(part, **more)
        change(about)
        (place / "manifest.json").write_text(json.dumps(about))
        for name, us in zip(PEERS, (1300.0, 1200.0), strict=True):
            if any("peer_torch" in command for command in part.commands):
                (new / part.folder / name).mkdir()
                (new / part.folder / name / "manifest.json").write_text(json.dumps(about))
                ways = [{"way": "graph", "us": us + 9}, {"way": "compiled_graph", "us": us}]
                (new / part.folder / name / "peer_torch.json").write_text(json.dumps({"results": ways}))
    return new
