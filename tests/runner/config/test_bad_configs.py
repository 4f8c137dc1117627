"""Config files that nobody should take from a stranger: refused in a few words, and nothing in them runs."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.config.composing import CONF
from support.config.override_sets import taken
from support.results.mutations import mutated_text

from launchopt.errors import DataError
from runner.config.files import config_text

LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(9))])
DEEP = "a: " + "[" * 3000 + "]" * 3000
MARK = "ran"
SYSTEM = f"os.system, command: touch {MARK}"
BAD: dict[str, tuple[bytes, str]] = {
    "broken": (b"m: [1, 2\nk: 3\n", "evil.yaml:2: not YAML"),
    "tabs": (b"m:\n\t- 1\n", "evil.yaml:2: not YAML"),
    "latin": (b"name: \xe4\n", "not UTF-8 (byte 7)"),
    "utf16": ("name: x\n".encode("utf-16"), "not UTF-8 (byte 1)"),
    "control": (b"name: \x00\n", "not YAML"),
    "laughs": (LAUGHS.encode(), "over 10000 values"),
    "itself": (b"a: &a [*a]\n", "nested too deeply, or an alias within itself"),
    "deep": (DEEP.encode(), "nested too deeply"),
    "deep, open": (b"a: " + b"{[" * 51, "nested too deeply"),
    "not so deep": (b"a: " + b"{[" * 5, "evil.yaml:1: not YAML"),
    "deep blocks": (b"a:\n  " + b"- " * 1200 + b"1\n", "nested too deeply"),
    "long": (b"# " + b"x" * 70_000, "over 64 KiB"),
    "python": (f"m: !!python/object/apply:os.system ['touch {MARK}']\n".encode(), "python/object/apply:os.system"),
    "name": (b"m: !!python/name:os.system\n", "evil.yaml:1: a tag that is not plain YAML"),
    "tag": (b"m: !x 1\n", "a tag that is not plain YAML: !x"),
    "target": (f"# @package _global_\ntable: {{_target_: {SYSTEM}}}\n".encode(), "evil.yaml:2: names code"),
    "callback": (
        f"# @package _global_\nhydra:\n  callbacks:\n    x: {{_target_: {SYSTEM}}}\n".encode(),
        "evil.yaml:4: names code to be run: _target_",
    ),
    "logging": (
        b"# @package _global_\nhydra:\n  job_logging:\n    handlers: {x: {(): os.abort}}\n",
        "evil.yaml:4: names code to be run: ()",
    ),
    "environment": (
        b"# @package _global_\nhydra:\n  job: {env_set: {LD_PRELOAD: x}}\n",
        "evil.yaml:3: hydra.job.env_set",
    ),
    "handlers": (b"# @package _global_\nhydra:\n  job_logging: {root: {}}\n", "evil.yaml:3: hydra.job_logging"),
    "merged": (b"# @package _global_\nhydra: {<<: {searchpath: [x]}}\n", "evil.yaml:2: hydra.<<"),
    "package": (b"# @package hydra.job\nenv_set: {A: b}\n", "sets what Hydra itself runs"),
    "package, two blanks": (b"# @package  hydra.job.env_set\nA: b\n", "sets what Hydra itself runs"),
    "package, global": (b"# @package _global_.hydra.job\nenv_set: {A: b}\n", "sets what Hydra itself runs"),
    "package, another line end": (b"# @x y\r# @package hydra.job\rA: b\n", "sets what Hydra itself runs"),
    "defaults": (
        b"defaults:\n- /extra@_global_.hydra.job.env_set: e\n",
        "evil.yaml:2: defaults: /extra@_global_.hydra.job.env_set sets what Hydra itself runs",
    ),
    "defaults, one word": (b"x: &x [/extra/e@hydra.job]\ndefaults: *x\n", "evil.yaml:1: defaults: /extra/e@hydra.job"),
    "hidden": (b"defaults:\n- /.extra: e\n", "evil.yaml:2: defaults: /.extra is in a hidden folder"),
    "built": (b"m: ${oc.create:${oc.decode:x}}\n", "builds settings from text"),
    "plain": (b"m: 1\n", "workload=(settings of its own)"),
    "list": (b"- 1\n- 2\n", ""),
    "scalar": (b"x\n", ""),
    "nothing": (b"", ""),
    "schema": (
        b"defaults:\n  - /schema/workload/gemv@_here_\nm: many\n",
        "workload/evil.yaml: workload.m: Value 'many'",
    ),
    "unknown": (b"defaults:\n  - /schema/workload/gemv@_here_\nbogus: 1\n", "bogus"),
    "misplaced in mode": (
        b"# @package _global_\ndefaults:\n- /schema/workload/gemv@mode\n",
        ": Gemv is not a subclass of Mode\n",
    ),
    "misplaced as a number": (
        b"# @package _global_\ndefaults:\n- /schema/workload/gemv@seed\n",
        "seed: Value (settings) of type 'DictConfig'",
    ),
    "circle": (b"defaults:\n  - evil\n", ""),
    "elsewhere": (b"defaults:\n  - /../../../etc/passwd\n", "passwd"),
    "interpolated": (b"defaults:\n  - /schema/workload/gemv@_here_\nm: ${.k}\nk: ${.m}\n", "workload.m"),
}


def try_config(folder: Path, content: bytes) -> str:
    """Return the error for a workload file with this content; it must be refused."""
    group, cwd = folder / "user/workload", folder / "cwd"
    group.mkdir(parents=True)
    cwd.mkdir()
    (group / "evil.yaml").write_bytes(content)
    outcome = taken([f"--config-dir={folder / 'user'}", "device=cpu", "workload=evil"], cwd)
    assert outcome.fault is None
    assert outcome.plans == []
    assert outcome.left == []
    return outcome.stderr


@pytest.mark.parametrize("case", BAD)
def test_refused_in_a_few_words_and_nothing_runs(case: str, tmp_path: Path) -> None:
    content, words = BAD[case]
    assert words in try_config(tmp_path, content)


def test_a_good_one_is_planned(tmp_path: Path) -> None:
    (tmp_path / "user/workload").mkdir(parents=True)
    text = "defaults:\n  - /schema/workload/gemv@_here_\nname: mine\nm: 8\nk: 16\ncommands: 10\n"
    (tmp_path / "user/workload/mine.yaml").write_text(text)
    (tmp_path / "user/notes.txt").write_text("not looked at")
    outcome = taken([f"--config-dir={tmp_path / 'user'}", "device=cpu", "workload=mine"], tmp_path)
    assert outcome.exit_code == 0
    assert [plan.stream.commands for plan in outcome.plans] == [10]


def test_a_primary_config_of_ones_own_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"x: {{_target_: {SYSTEM}}}\n")
    outcome = taken([f"--config-path={tmp_path}"], tmp_path)
    assert outcome.exit_code == 2
    assert "config.yaml:1: names code to be run: _target_" in outcome.stderr


IRREGULAR = {
    "a named pipe, not a regular file": os.mkfifo,
    "a device, not a regular file": lambda path: path.symlink_to("/dev/zero"),
    "Is a directory": Path.mkdir,
    "No such file or directory": lambda path: path.symlink_to("absent"),
}


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize(
    ("name", "words"),
    [("workload/x.yaml", ["--config-dir={}", "workload=x"]), ("config.yaml", ["--config-path={}"])],
)
def test_anything_but_a_regular_file_is_named_as_what_it_is(
    name: str, words: list[str], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "user" / name
    path.parent.mkdir(parents=True)
    IRREGULAR[kind](path)
    (tmp_path / "cwd").mkdir()
    outcome = taken([each.format(tmp_path / "user") for each in words], tmp_path / "cwd")
    assert (outcome.exit_code, outcome.plans) == (2, [])
    assert outcome.stderr == f"error: {path}: cannot be read: {kind}\n"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("hydra/job_logging/x.yaml", "hydra/job_logging=x"),
        ("hydra.job/x.yaml", "+hydra.job=x"),
        ("any/hydra.job.yaml", "+any=hydra.job"),
    ],
)
def test_a_name_that_puts_a_file_below_hydras_settings_is_refused(name: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "user" / name).parent.mkdir(parents=True)
    (tmp_path / "user" / name).write_text("# @package _global_._name_\nenv_set: {A: b}\n")
    (tmp_path / "cwd").mkdir()
    outcome = taken([f"--config-dir={tmp_path / 'user'}", "device=cpu", word], tmp_path / "cwd")
    assert (outcome.fault, outcome.exit_code, outcome.plans) == (None, 2, [])
    assert outcome.stderr.count("\n") == 1


def test_files_of_other_groups_behind_links_and_on_a_search_path_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/x.yaml").write_text(f"x: {{_target_: {SYSTEM}}}\n")
    (tmp_path / "user").mkdir()
    (tmp_path / "user/any").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cwd").mkdir()
    for words in ([f"--config-dir={tmp_path / 'user'}", "+any=x"], [f"hydra.searchpath=[file://{tmp_path}/user]"]):
        outcome = taken(["device=cpu", *words], tmp_path / "cwd")
        assert (outcome.exit_code, outcome.plans, outcome.left) == (2, [], [])


def test_mutants_of_our_own_files(tmp_path: Path) -> None:
    """Each is refused or planned; what parses as a plan is one."""
    originals = sorted((CONF / "workload").glob("*.yaml"))
    for number in range(int(os.environ.get("LAUNCHOPT_MUTANTS", "15"))):
        generator = random.Random(number)
        folder = tmp_path / str(number)
        (folder / "user/workload").mkdir(parents=True)
        content = mutated_text(generator.choice(originals).read_bytes(), generator)
        (folder / "user/workload/evil.yaml").write_bytes(content)
        (folder / "cwd").mkdir()
        words = [f"--config-dir={folder / 'user'}", "device=cpu", "workload=evil"]
        assert taken(words, folder / "cwd").fault is None, (number, content)


def test_our_own_files_pass_what_a_users_must() -> None:
    for path in CONF.rglob("*.yaml"):
        config_text(path)


LISTS = {
    "one option": ["/table/decode"],
    "options of their own": [f"/table/x{number}" for number in range(1500)],
    "packages": [f"/workload@p{number}: gemv_micro" for number in range(1500)],
    "absent groups": [f"optional /g{number}: x" for number in range(1500)],
}


@pytest.mark.parametrize("case", LISTS)
def test_a_long_list_of_defaults_is_refused_at_once(case: str, tmp_path: Path) -> None:
    """Hydra takes over 100 s for 1,500 packages. A list of 100 entries is accepted by this check."""
    lines = [f"- {each}\n" for each in LISTS[case]]
    path = tmp_path / "x.yaml"
    path.write_text("defaults:\n" + "".join(lines[:100]))
    config_text(path)
    path.write_text("defaults:\n" + "".join((lines * 101)[:1500]))
    with pytest.raises(DataError, match=r"x\.yaml:2: defaults: over 100 entries"):
        config_text(path)


def test_settings_within_table_are_not_shown_as_objects(tmp_path: Path) -> None:
    (tmp_path / "user/table").mkdir(parents=True)
    (tmp_path / "user/table/x.yaml").write_text("defaults: [/workload@x: gemv_micro]\n")
    (tmp_path / "cwd").mkdir()
    outcome = taken([f"--config-dir={tmp_path / 'user'}", "device=cpu", "table=x"], tmp_path / "cwd")
    assert outcome.stderr == (
        "error: table=(settings of its own): holds no settings; allowed: the options of the group table\n"
    )


@pytest.mark.parametrize("links", [1, 50])
def test_a_circle_and_lists_that_multiply_are_refused(links: int, tmp_path: Path) -> None:
    """Hydra would follow a circle to the end of the stack, which took 26 s."""
    (tmp_path / "user/table").mkdir(parents=True)
    for number in range(10):
        next_one = f"- /table/x{(number + 1) % 10}@p: \n".replace(": ", "")
        (tmp_path / f"user/table/x{number}.yaml").write_text("defaults:\n" + next_one * links)
    (tmp_path / "cwd").mkdir()
    outcome = taken([f"--config-dir={tmp_path / 'user'}", "device=cpu", "table=x0"], tmp_path / "cwd")
    assert (outcome.fault, outcome.exit_code, outcome.plans) == (None, 2, [])
    assert "over 400 options in one config, or a circle of them" in outcome.stderr
