"""The parts of goals and waterfalls: on little work a part runs on a CPU, and results become pages."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.goal_checkout import GPU, PAGES, REVISION, checkout_in, manifest, measured
from support.results.kernel_rows import traced_rows
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from launchopt.recording import results
from scripts import goal_pages
from scripts.reference_advised import ADVISED_PARTS
from scripts.reference_advised import CPU as ON_CPU
from scripts.reference_advised import GPU as ON_GPU
from scripts.reference_goals import GOAL_PARTS, GOAL_ROWS, RUN, WATERFALL_PARTS
from scripts.reference_gpus import BEFORE, GPU_PARTS, ONE, SPLIT_PARTS, SPLIT_STACKS, TWO
from scripts.reference_many_gpus import MANY, MANY_PARTS, place_of
from scripts.reference_weights import EXPERT_PARTS, EXPERT_SERIAL, EXPERT_STACK, QUANTISED_PARTS, TRACED_PARTS

SMALL = "workload.cache=hot workload.replicas=1 workload.tokens=2 repeats=2 verify_budget_s=0.1"
TINY = f"device=cpu model=tiny model.head_dim=64 {SMALL}"
FUSED = "engine+graph"  # of the stacks that a CPU can run


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return checkout_in(tmp_path, monkeypatch)


def test_a_part_of_the_goals_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", REVISION)
    reference: Any = importlib.import_module("scripts.reference")
    (run,) = (command for command in GOAL_PARTS[0].commands if "runner experiment" in command)
    commands = (f"{run.replace('device=cuda', '')} {TINY} 'against=[{FUSED}]'",)
    part = GOAL_PARTS[0]._replace(device="cpu", commands=commands)
    assert reference.main(["--output", str(tmp_path)], (part,)) == 0
    monkeypatch.setattr(goal_pages, "FUSED", FUSED)
    goals = {"goals": [goal_pages._goal(GOAL_ROWS[0]) | {"peers": []}]}
    (tmp_path / "goals/step_goals.json").write_text(json.dumps(goals))
    assert "| tiny, 1 request, CPU |" in goal_pages.step_goals.markdown(tmp_path / "goals/step_goals.json")


def test_results_become_pages(checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair")
    new = measured(tmp_path / "new", (*GOAL_PARTS[:2], *WATERFALL_PARTS[:2]))
    assert goal_pages.main([str(new)], checkout) == 0
    said = capsys.readouterr().out
    assert "goals/qwen3_0_6b_1: not measured\n" in said
    page, stacks = ((checkout / name).read_text() for name in PAGES[1:3])
    row = f"| llama, 1 request, {GPU} | 797.3 | 1,068.7 (1.34x) | 1,000.0 [1,000.0, 1,000.0] | yes | 1.25x |"
    for text in (page, stacks):
        assert row in text
        assert "| 1,300.0 / 1,200.0<br>torch_compile: TPOT 0.850x, wall time 0.867x: yes |" in text
        assert "waterfall/llama_3_2_1b_1/fusions_first: baseline to engine, 5 repeats:" in text
        assert "Not measured yet" not in text
        assert (
            f"Measured on {GPU}: 2026-11-27, revision a1a1a1a (commit 500). Up to 4 parts ran at a time, each" in text
        )
    assert "](../outputs/reference/waterfall/llama_3_2_1b_1.svg)" in page
    assert "<svg" in (checkout / "outputs/reference/waterfall/llama_3_2_1b_1.svg").read_text()
    readme = (checkout / "README.md").read_text()
    assert "megakernel\N{NO-BREAK SPACE}0.971x\N{NO-BREAK SPACE}over\N{NO-BREAK SPACE}engine" in readme
    assert "compared with `engine`" in readme
    assert len(readme) <= 11_000, "as test_readme allows"
    later = measured(tmp_path / "later", GOAL_PARTS[2:3])
    assert goal_pages.main([str(later)], checkout) == 0, "parts of another start are added"
    assert row in (checkout / goal_pages.STACKS).read_text()


def test_advices_stand_on_the_page_on_advice_by_machine(checkout: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    parts = [next(part for part in ADVISED_PARTS if f"/{machine}/" in part.folder) for machine in (ON_GPU, ON_CPU)]
    for part in parts:
        for place in (new / part.folder / name for name in ("sweep", "advise/round_1")):
            modes = [row for at, mode in enumerate(("graph", "engine")) for row in repeats(*[10.0 + at] * 5, mode=mode)]
            write(place, modes)
            (place / "manifest.json").write_text(json.dumps(manifest(part)))
        answer = {"advised": "graph", "requests": 1, "layers": 8, "budget_s": 55, "took_s": 54.1, "stacks": 9}
        answer |= {"lines": ["now: engine takes 11 ms", "do: mode=graph", "gain: 1.1x as fast as engine"]}
        (new / part.folder / "answer.json").write_text(json.dumps(answer))
    assert goal_pages.main([str(new)], checkout) == 0
    page = (checkout / goal_pages.ADVICE_PAGE).read_text()
    assert page.count("| graph | the same |") == 2
    assert page.index(f"{ON_GPU}/advised.json -->") < page.index(f"{ON_CPU}/advised.json -->")
    assert "Not measured yet" not in page.partition("<!-- advised -->")[2]
    assert not (checkout / "outputs/reference" / parts[0].folder / "advise").exists(), "no page reads advise's trials"


def test_what_two_gpus_gain_stands_on_the_page_on_several_gpus(checkout: Path, tmp_path: Path) -> None:
    new, parts = tmp_path / "new", (GPU_PARTS[1], GPU_PARTS[2])
    for part in parts:
        for side, scale in ((BEFORE, 1.0), (TWO, 2.0)):
            place = new / part.folder / side
            if part is parts[1]:
                place.mkdir(parents=True)
                times = {
                    "started_utc": "2026-11-27T10:00:00+00:00",
                    "ended_utc": f"2026-11-27T10:00:{40 / scale:02.0f}+00:00",
                }
                (place / "sweep.json").write_text(json.dumps({"status": "ok", "jobs": [{}] * 12, **times}))
            runs = [place] if part is parts[0] else [place / "0", place / "1"]
            for run in runs:
                write(run, repeats(*[10.0 / scale] * 3, mode="batched"))
                (run / "manifest.json").write_text(json.dumps(manifest(part)))
    assert goal_pages.main([str(new)], checkout) == 0
    page = (checkout / goal_pages.GPUS_PAGE).read_text()
    assert "| independent 64 x 8192 GEMVs |" in page
    assert "| 0.3 jobs/s | 0.6 jobs/s on 2 | 2.000x | 1.8x: in one run |" in page
    kept = checkout / "outputs/reference" / parts[1].folder / TWO
    assert [path.name for path in sorted(kept.iterdir())] == ["0", "sweep.json"], "one manifest says what ran"


def test_what_a_split_gains_stands_on_its_page(checkout: Path, tmp_path: Path) -> None:
    new, part = tmp_path / "new", SPLIT_PARTS[0]
    for side, scale in ((ONE, 1.0), (TWO, 1.5)):
        place = new / part.folder / side
        rows = [row for mode in SPLIT_STACKS for row in repeats(*[10.0 / scale] * 3, mode=mode)]
        write(place, [row | {"tokens_per_s": 100.0 * scale} for row in rows])
        (place / "manifest.json").write_text(json.dumps(manifest(part)))
    assert goal_pages.main([str(new)], checkout) == 0
    page = (checkout / goal_pages.SPLIT_PAGE).read_text()
    assert "| Llama 3 8B, 1 request, `engine+graph` | 100 tokens/s | 150 tokens/s on 2 | 1.500x | 1.7x: NO |" in page
    assert "Llama 3 8B, 16" not in page.partition("<!-- split -->")[2].partition("<!-- /split -->")[0]


def test_what_four_gpus_gain_stands_on_both_pages(checkout: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    parts = {part.folder: part for part in MANY_PARTS}
    for folder, runs in {
        "decode": {"one": 1.0, "two": 1.9, "four": 3.8},
        "split/llama_3_70b": {"16_requests/one": 1.0, "16_requests/four": 2.5},
    }.items():
        part = parts[f"{place_of(4)}/{folder}"]
        for name, scale in runs.items():
            place = new / part.folder / name
            rows = [row for mode in SPLIT_STACKS for row in repeats(*[10.0 / scale] * 3, mode=mode)]
            write(place, [row | {"tokens_per_s": 100.0 * scale} for row in rows])
            (place / "manifest.json").write_text(json.dumps(manifest(part)))
    assert goal_pages.main([str(new)], checkout) == 0
    page = (checkout / goal_pages.GPUS_PAGE).read_text().partition(f"<!-- {MANY} -->")[2]
    assert "On a host with 4 GPUs" in page
    assert "| Llama 3.2 1B, 16 requests a GPU | 100 tokens/s | 190 tokens/s on 2 | 1.900x | 1.95x: NO |" in page
    assert "| Llama 3.2 1B, 16 requests a GPU | 100 tokens/s | 380 tokens/s on 4 | 3.800x | — |" in page
    page = (checkout / goal_pages.SPLIT_PAGE).read_text().partition(f"<!-- {MANY} -->")[2]
    assert "| Llama 3 70B, 8 layers, 16 requests, `engine+graph` | 100 tokens/s | 250 tokens/s on 4 | 2.500x |" in page
    assert "Not measured yet" not in page


def failed(about: dict[str, Any]) -> None:
    about["part"]["exit_code"] = None


def other_command(about: dict[str, Any]) -> None:
    about["part"]["commands"] = ["python -m runner mode=batched"]


def dirty(about: dict[str, Any]) -> None:
    about["environment"]["git_dirty"] = True


@pytest.mark.parametrize(
    ("change", "said"),
    [(failed, "no part is done"), (other_command, "no part is done"), (dirty, "uncommitted changes")],
)
def test_other_results_change_nothing(
    change: Callable[[dict[str, Any]], None],
    said: str,
    checkout: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [(checkout / name).read_text() for name in PAGES]
    assert goal_pages.main([str(measured(tmp_path / "new", GOAL_PARTS[:1], change))], checkout) == 2
    assert said in capsys.readouterr().err
    assert [(checkout / name).read_text() for name in PAGES] == before
    assert not (checkout / "outputs/reference/goals").exists()


@pytest.mark.parametrize("content", ["", "[]", "3", '{"schem', '{"part": 3}', '{"part": {"commands": 3}}'])
def test_a_manifest_that_is_none_changes_nothing(
    content: str, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = measured(tmp_path / "new", GOAL_PARTS[:1])
    (new / GOAL_PARTS[0].folder / RUN / "manifest.json").write_text(content)
    assert goal_pages.main([str(new)], checkout) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (checkout / "outputs/reference/goals").exists()


def test_one_broken_part_of_several_changes_nothing(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = checkout / "outputs/reference" / GOAL_PARTS[0].folder / "older"
    older.mkdir(parents=True)
    new = measured(tmp_path / "new", GOAL_PARTS[:2])
    broken = new / GOAL_PARTS[1].folder / RUN / "summary.parquet"
    for content in (b"", b"PAR1PAR1PAR1", b"\x00" * 99):
        broken.write_bytes(content)
        assert goal_pages.main([str(new)], checkout) == 2
        assert "summary.parquet: cannot be read as Parquet" in capsys.readouterr().err
        assert [path.name for path in older.parent.iterdir()] == ["older"]
        assert [path.name for path in (checkout / "outputs").iterdir()] == ["reference"]


def test_a_truncated_answer_is_not_put_into_the_checkout(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = measured(tmp_path / "new", GOAL_PARTS[:1])
    (new / GOAL_PARTS[0].folder / RUN / "peer_torch.json").write_text('{"results": [')
    assert goal_pages.main([str(new)], checkout) == 2
    assert "peer_torch.json: cannot be copied" in capsys.readouterr().err
    assert not (checkout / "outputs/reference/goals").exists()


def test_a_picture_that_fails_leaves_the_new_results_and_a_second_start_makes_the_pages(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(reference: Path, changed: list[str]) -> None:
        raise DataError(reference / "report.png", None, "Chromium made no picture")

    pytest.importorskip("altair")
    new = measured(tmp_path / "new", (*GOAL_PARTS[:1], *WATERFALL_PARTS[:2]))
    with monkeypatch.context() as patched:
        patched.setattr(goal_pages.reference_pictures, "refresh", failing)
        assert goal_pages.main([str(new)], checkout) == 2
    said = capsys.readouterr()
    assert "has the new results, but not all pictures and pages" in said.out
    assert "Chromium made no picture" in said.err
    assert (checkout / "outputs/reference" / GOAL_PARTS[0].folder / RUN / "summary.parquet").is_file()
    assert goal_pages.main([str(new)], checkout) == 0
    assert (checkout / "outputs/reference/goals/step_goals.json").is_file()


def test_committed_results_are_not_put_over_themselves(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed = measured(checkout / "outputs/reference", GOAL_PARTS[:1])
    before = sorted(path for path in committed.rglob("*") if path.is_file())
    assert goal_pages.main([str(committed)], checkout) == 2
    assert "these are the committed results" in capsys.readouterr().err
    assert sorted(path for path in committed.rglob("*") if path.is_file()) == before


def test_every_advice_is_about_a_part() -> None:
    assert {f"goals/{str(each['run']).partition('/')[0]}" for each in goal_pages.ADVICE} <= {
        part.folder for part in GOAL_PARTS
    }


def test_goals_of_quantised_weights_and_of_experts_stand_on_their_pages(checkout: Path, tmp_path: Path) -> None:
    new, work = tmp_path / "new", {"dtype": "bf16", "weights": "fp8 per channel", "weight_bytes": 100 * 24_000_000}
    works = {
        QUANTISED_PARTS[0]: ("", ("pdl", "kernel"), work | {"commands": 100, "shapes": "6144x1x4096", "tokens": None}),
        EXPERT_PARTS[0]: (
            "0",
            (EXPERT_STACK, "grouped"),
            work | {"steps": 100, "step_tokens": 1, "active_experts": 8.0, "tokens": None},
        ),
    }
    for part, (job, modes, more) in works.items():
        place = new / part.folder / job
        rows = [row for at, mode in enumerate(modes) for row in repeats(*[1.0 + at] * 5, mode=mode, **more)]
        write(place, rows)
        (place / "manifest.json").write_text(json.dumps(manifest(part, ceilings={"read_gb_per_s": 3000.0})))
    assert goal_pages.main([str(new)], checkout) == 0
    pages = [(checkout / page).read_text() for page in goal_pages.WEIGHT_PAGES.values()]
    assert "| `pdl` | 8.000 | 11.73 (1.47x) | 10.00 [10.00, 10.00] | yes | 1.25x | kernel 20.00 |" in pages[0]
    assert (
        f"| `{EXPERT_STACK}` | 8.000 | 44.00 (5.50x) | 10.00 [10.00, 10.00] | yes | 1.25x | grouped 20.00 |" in pages[1]
    )


def test_the_kernels_of_traced_steps_stand_on_their_pages(checkout: Path, tmp_path: Path) -> None:
    new, part = tmp_path / "new", TRACED_PARTS[2]
    place, steps = new / part.folder, 3
    work = {"steps": steps, "step_tokens": 1, "active_experts": 2.0, "tokens": None, "dtype": "bf16", "traced": True}
    work |= {"weight_bytes": steps * 2 * (128 * 2048 + 2 * 1536 * 2048 + 2 * 2048 * 768)}
    rows, kernels = [], []
    for mode in (EXPERT_SERIAL, EXPERT_STACK):
        rows += repeats(1.0, 1.0, 1.0, mode=mode, **work)
        times = [(0.0, 8.0), (8.0, 20.0), (20.0, 26.0)]
        kernels += traced_rows(mode, times, repeats=3, steps=steps, gap_us=2.0, wait_us=9.0)
    write(place, rows)
    results.write_rows(place / "kernels.parquet", results.KERNELS, kernels, {})
    (place / "launches.parquet").touch()
    shapes = {"128x1x2048": steps, "1536x1x2048": 2 * steps, "2048x1x768": 2 * steps}
    about = manifest(part, ceilings={"read_gb_per_s": 3000.0}, stream={"shapes": shapes})
    (place / "manifest.json").write_text(json.dumps(about))
    assert goal_pages.main([str(new)], checkout) == 0
    page = (checkout / goal_pages.WEIGHT_PAGES["experts"]).read_text()
    assert "| gate/up, SiLU | 1 | 12.58 MB | 4.194 | 12.00 (12.00 to 12.00) | 7.806 |" in page
    kept = sorted(path.name for path in (checkout / "outputs/reference" / part.folder).iterdir())
    assert kept == ["kernels.parquet", "manifest.json", "summary.parquet"], "no page reads launches"
