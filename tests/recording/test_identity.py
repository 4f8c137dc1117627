"""One seed, one stream: the hash says so, and says when anything that is asked for differs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.config.composing import planned

from launchopt.command import COMMAND_DTYPE, Dtype
from launchopt.recording.environment import _git, _processor, environment
from launchopt.recording.identity import DIGEST_BYTES, stream_hash
from launchopt.streams.gemm_stream import CommandOrder
from launchopt.streams.stream import BLOCK_RECORDS, Block, CommandStream
from launchopt.workloads.gemv import gemv

GEMV = "workload=gemv_256 workload.commands=5000 workload.replicas=64"
DECODE = "workload=decode model=tiny workload.requests=5 workload.prompt_tokens=6 workload.tokens=4"
SEEDED = {
    "scattered": f"{GEMV} workload.shuffle=true",
    "open loop": f"{GEMV} arrival=poisson arrival.rate_per_s=1000",
    "decode": DECODE,
    "decode, sampled": f"{DECODE} sampling=top_k",
    "decode, open loop": f"{DECODE} arrival=poisson arrival.rate_per_s=100",
    "layer": "workload=layer model=tiny workload.layers=2 workload.requests=3 workload.tokens=4",
    "layer, paged": "workload=layer model=tiny workload.layers=1 workload.kv=paged workload.tokens=4",
}
NOT_ASKED = ("enqueue_ns", "turn")


def hash_of(words: str, *more: str) -> str:
    return stream_hash(planned(*words.split(), *more, "workload.cache=hot").stream)


@pytest.mark.parametrize("name", SEEDED)
def test_one_seed_is_one_stream_and_another_is_another(name: str) -> None:
    first = hash_of(SEEDED[name], "seed=3")
    assert len(first) == 2 * DIGEST_BYTES
    assert hash_of(SEEDED[name], "seed=3") == first
    assert hash_of(SEEDED[name], "seed=4") != first


@pytest.mark.parametrize("words", [GEMV, "workload=decode model=tiny ordering=none"])
def test_commands_without_chance_are_the_same_for_every_seed(words: str) -> None:
    """What their operands hold follows from the seed, and is not asked for."""
    assert hash_of(words, "seed=3") == hash_of(words, "seed=4")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GEMV, f"{GEMV} workload.commands=5001"),
        (GEMV, f"{GEMV} workload.k=264"),
        (GEMV, f"{GEMV} workload.replicas=65"),
        (GEMV, f"{GEMV} workload.dtype=bf16"),
        (GEMV, f"{GEMV} arrival=constant arrival.rate_per_s=1000"),
        (DECODE, f"{DECODE} workload.tokens=5"),
        (DECODE, f"{DECODE} workload.replicas=2"),
        (DECODE, f"{DECODE} scheduler=continuous scheduler.chunk_tokens=4"),
    ],
)
def test_what_is_asked_for_counts(one: str, other: str) -> None:
    assert hash_of(one) != hash_of(other)


@pytest.mark.parametrize("setting", ["batching.max_batch=4", "mode=baseline", "repeats=7", "timing=host"])
@pytest.mark.parametrize("words", [GEMV, DECODE])
def test_how_it_is_run_does_not(words: str, setting: str) -> None:
    assert hash_of(words) == hash_of(words, setting)


class Recorded(CommandStream):
    """A stream of the given records, cut into blocks at `cut`."""

    def __init__(self, records: Any, cut: int, due_ns: Any = None) -> None:
        self._records, self._cut, self._due_ns = records, cut, due_ns

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Any:
        due_ns = [None, None] if self._due_ns is None else np.split(self._due_ns, [self._cut])
        for records, due in zip(np.split(self._records.copy(), [self._cut]), due_ns, strict=True):
            yield Block(records, due)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(COMMAND_DTYPE.names or ()), st.integers(0, 9), st.integers(0, 10), st.integers(0, 10))
def test_every_field_of_every_record_counts_but_times_and_the_rings_own(
    field: str, row: int, cut: int, other_cut: int
) -> None:
    records = next(iter(gemv(64, 1, 256, 10, Dtype.fp32, 4, CommandOrder(shuffle=True)).blocks())).records
    plain: Any = Recorded(records, cut)
    changed = records.copy()
    changed[field][row] += 1
    other: Any = Recorded(changed, other_cut)
    assert (stream_hash(plain) == stream_hash(other)) == (field in NOT_ASKED)


def test_the_order_counts_and_when_commands_are_due() -> None:
    records = next(iter(gemv(64, 1, 256, 10, Dtype.fp32, 4).blocks())).records
    due_ns = np.arange(10)
    asked: list[Any] = [
        Recorded(records, 5),
        Recorded(records[::-1], 5),
        Recorded(records, 5, due_ns),
        Recorded(records, 5, due_ns + 1),
    ]
    assert len({stream_hash(each) for each in asked}) == len(asked)


def test_results_carry_revision_and_whether_it_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the checkout; a copy without a history gives the revision in LAUNCHOPT_GIT_REVISION."""
    found = environment()
    if "git_revision" not in found:
        pytest.skip("not a checkout")
    assert len(found["git_revision"]) == 40
    assert isinstance(found["git_dirty"], bool)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "f" * 40)
    found = environment()
    assert (found["git_revision"], found["git_dirty"]) == ("f" * 40, None)
    assert len(found["code_sha1"]) == 40


@pytest.mark.parametrize(
    ("lines", "kind"),
    [("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nmodel\t: 9",
      "vendor_id AuthenticAMD, cpu family 25, model 1"),
     ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "CPU implementer 0x41, CPU part 0xd4f"),
     ("nothing of this kind", None)],
)  # fmt: skip
def test_the_type_of_a_processor_is_told_apart_where_its_name_is_not(
    lines: str, kind: str | None, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(lines)
    assert _processor(tmp_path / "cpuinfo").get("processor") == kind
    assert _processor(tmp_path / "missing") == {}


def test_changes_of_code_count_and_folders_of_results_do_not(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    package = tmp_path / "launchopt"
    package.mkdir()
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "manifest.json").write_text("{}")
    assert _git(package)["git_dirty"] is False
    (package / "new.py").write_text("")
    assert _git(package)["git_dirty"] is True
