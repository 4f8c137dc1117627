"""A composed config may set for Hydra what a user needs, whatever file, group, package or word it comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hydra import compose
from omegaconf import OmegaConf
from support.config.override_sets import Outcome, taken
from support.thorough import some

from launchopt.errors import ConfigError
from runner.config import loading
from runner.config.loading import hydra_of

GLOBAL = "# @package _global_\n"
GOOD = {
    "settings": "repeats: 1\n",
    "folders": 'hydra: {run: {dir: here}, sweep: {dir: there, subdir: "${hydra.job.num}"}}\n',
    "names": "hydra: {verbose: [mine], job: {name: mine, chdir: false}, output_subdir: null}\n",
    "sweep": "hydra: {sweeper: {params: {seed: 3}}}\n",
}
MARK = "touched"
COPY = f"{{_target_: shutil.copyfile, src: /etc/hostname, dst: {MARK}}}"
LOG = f"{{version: 1, root: {{handlers: [x]}}, handlers: {{x: {{class: logging.FileHandler, filename: {MARK}}}}}}}"
EVIL = {
    "callback": f"hydra: {{callbacks: {{x: {COPY}}}}}\n",
    "our callback, changed": f"hydra: {{callbacks: {{precheck: {COPY}}}}}\n",
    "callback by interpolation": f'table: {COPY}\nhydra: {{callbacks: {{x: "${{table}}"}}}}\n',
    "callbacks by interpolation": f'table: {{x: {COPY}}}\nhydra: {{callbacks: "${{table}}"}}\n',
    "job_logging": f"hydra: {{job_logging: {LOG}}}\n",
    "hydra_logging": f"hydra: {{hydra_logging: {LOG}}}\n",
    "logging by interpolation": f'table: {LOG}\nhydra: {{job_logging: "${{table}}"}}\n',
    "env_set": "hydra: {job: {env_set: {LD_PRELOAD: ./x.so}}}\n",
    "env_copy": "hydra: {job: {env_copy: [HOME]}}\n",
    "sweeper": f"hydra: {{sweeper: {{params: {{seed: {COPY}}}}}}}\n",
    "sweeper by interpolation": f'table: {COPY}\nhydra: {{sweeper: {{params: {{seed: "${{table}}"}}}}}}\n',
    "sweeper's class": "hydra: {sweeper: {_target_: os.system}}\n",
    "launcher": "hydra: {launcher: {_target_: hydra_plugins.x.Y}}\n",
    "launcher by interpolation": f'table: {COPY}\nhydra: {{launcher: "${{table}}"}}\n',
    "overrides": "hydra: {overrides: {task: [+a=b]}}\n",
    "hydra's overrides": "hydra: {overrides: {hydra: [+hydra.callbacks.x.y=1]}}\n",
    "search path": "hydra: {searchpath: [file:///tmp]}\n",
    "output folder": "hydra: {runtime: {output_dir: /tmp}}\n",
    "another folder": "hydra: {output_subdir: ../../up}\n",
    "name": "hydra: {job: {name: ../../up}}\n",
    "loggers": "hydra: {verbose: {x: 1}}\n",
    "unknown": "hydra: {bogus: 1}\n",
    "pieces": "a: _target_\ntable: ${oc.create:{${a}:os.system}}\n",
    "pieces of a resolver": "a: create\ntable: ${oc.${a}:{x:1}}\n",
    "code elsewhere": f"table: {{x: [{COPY}]}}\n",
    "factory": "table: {(): os.abort}\n",
}


def by_group(folder: Path, text: str) -> list[str]:
    """Return the words that load `text` as an option of a group that exists."""
    return _option(folder / "mine/table", text, "table=x")


def by_unknown_group(folder: Path, text: str) -> list[str]:
    """The same for a group that only the user has."""
    return _option(folder / "mine/site", text, "+site=x")


def by_link_to_folder(folder: Path, text: str) -> list[str]:
    """The same through a symbolic link to a folder outside of the user's."""
    words = _option(folder / "mine/table", text, "table=x")
    (folder / "mine/table").rename(folder / "elsewhere")
    (folder / "mine/table").symlink_to(folder / "elsewhere")
    return words


def by_link_to_file(folder: Path, text: str) -> list[str]:
    """The same through a symbolic link to a file."""
    words = _option(folder / "mine/table", text, "table=x")
    (folder / "mine/table/x.yaml").rename(folder / "x.txt")
    (folder / "mine/table/x.yaml").symlink_to(folder / "x.txt")
    return words


def by_primary_config(folder: Path, text: str) -> list[str]:
    """The same as the primary config, which takes in ours."""
    (folder / "mine").mkdir()
    text = text.replace(GLOBAL, "")
    (folder / "mine/own.yaml").write_text(f"defaults: [config, _self_]\n{text}")
    return ["device=cpu", f"--config-dir={folder / 'mine'}", "--config-name=own"]


OWN = """
defaults:
- config_schema
- schema/workload@workload: gemv
- mode: batched
- arrival: closed
- schema/model@model: base
- schema/device@device: base
- schema/timing@timing: base
- schema/sampling@sampling: base
- _self_
workload: {name: mine, m: 8, k: 16, commands: 10, cache: hot}
model: {name: small_1024, hidden: 64, layers: 1, q_heads: 1, kv_heads: 1, head_dim: 64, intermediate: 64, gated: false}
scheduler: {kind: none}
device: {kind: cpu}
"""


def by_primary_folder(folder: Path, text: str) -> list[str]:
    """The same as the primary config of a folder that replaces ours."""
    (folder / "mine").mkdir()
    (folder / "mine/config.yaml").write_text(OWN + text.replace(GLOBAL, ""))
    return [f"--config-path={folder / 'mine'}"]


ROUTES = [by_group, by_unknown_group, by_link_to_folder, by_link_to_file, by_primary_config, by_primary_folder]


def _option(group: Path, text: str, word: str) -> list[str]:
    group.mkdir(parents=True)
    (group / "x.yaml").write_text(text)
    return ["device=cpu", f"--config-dir={group.parent}", word]


def outcome_of(words: list[str], folder: Path) -> Outcome:
    return taken(words, Path(mkdtemp(dir=folder)))


@pytest.mark.parametrize("case", some(GOOD))
@pytest.mark.parametrize("route", ROUTES)
def test_what_a_user_needs_is_accepted(route: Callable[[Path, str], list[str]], case: str, tmp_path: Path) -> None:
    outcome = outcome_of(route(tmp_path, GLOBAL + GOOD[case]), tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.stderr) == (None, 0, "")
    assert len(outcome.plans) == 1


def require_refused(outcome: Outcome) -> None:
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    assert outcome.stderr.count("\n") == 1
    assert len(outcome.stderr) < 400


@pytest.mark.parametrize("case", some(EVIL))
@pytest.mark.parametrize("route", some(ROUTES))
def test_what_runs_code_is_refused_by_every_route(
    route: Callable[[Path, str], list[str]], case: str, tmp_path: Path
) -> None:
    require_refused(outcome_of(route(tmp_path, GLOBAL + EVIL[case]), tmp_path))


@pytest.mark.parametrize("case", EVIL)
@pytest.mark.parametrize("options", some([[], ["-m"], ["--cfg", "job"]]), ids=" ".join)
def test_the_composed_config_counts_alone(
    options: list[str], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no check of the file's text saw it, and before anything is made."""
    monkeypatch.setattr(loading, "config_text", Path.read_text)
    require_refused(outcome_of([*options, *by_group(tmp_path, GLOBAL + EVIL[case])], tmp_path))


def test_a_job_of_a_sweep_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "config_text", Path.read_text)
    words = by_group(tmp_path, GLOBAL + EVIL["env_set"])
    (tmp_path / "mine/table/good.yaml").write_text(GLOBAL + GOOD["settings"])
    fine = ["-m", *words[:2], "table=good", "seed=1,2"]
    assert len(outcome_of(fine, tmp_path).plans) == 2
    require_refused(outcome_of(["-m", *words[:2], "table=good,x"], tmp_path))


WORDS = {
    "hydra.verbose=false": "+hydra.callbacks.x.y=1",
    "hydra.run.dir=here": "hydra.run.dir=here ++hydra.callbacks={a:{b:c}}",
    "hydra.job.name=mine": "+hydra.job.env_set.LD_PRELOAD=./x.so",
    "hydra.output_subdir=null": "hydra.output_subdir=.hydra",
    "hydra/job_logging=stdout": "hydra/job_logging=default",
    "hydra/job_logging=none": "++hydra.job_logging.handlers.x.filename=x",
    "hydra.sweep.dir=there": "hydra.searchpath=[file:///tmp]",
    "hydra.sweep.dir=here": "++hydra.searchpath=[file:///tmp]",
    "hydra.job.chdir=false": "hydra.job.env_copy=[HOME]",
    "workload=gemv_micro": "+workload@hydra.job.env_set=gemv_micro",
}


@pytest.mark.parametrize("fine", WORDS)
def test_words_count_as_files_do(fine: str, tmp_path: Path) -> None:
    assert outcome_of(["device=cpu", fine], tmp_path).exit_code == 0
    require_refused(outcome_of(["device=cpu", *WORDS[fine].split(" ")], tmp_path))


def test_hydra_writes_no_file_for_another_primary_config(tmp_path: Path) -> None:
    """Its folder `.hydra` and its log are defaults of Hydra. It would write them through links of others."""
    folder, outside = tmp_path / "here", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / ".hydra").symlink_to(outside)
    (folder / "config.log").symlink_to(outside / "log")
    (folder / "launchopt.log").symlink_to(outside / "log")
    words = by_primary_folder(tmp_path, f"hydra: {{run: {{dir: {folder}}}}}\n")
    assert outcome_of(words, tmp_path).exit_code == 0
    assert not list(outside.iterdir())
    assert len(list(folder.iterdir())) == 3


def test_a_secret_that_hydra_would_copy_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    outcome = outcome_of(["device=cpu", "hydra.job.env_copy=[SECRET]"], tmp_path)
    require_refused(outcome)
    assert "hunter2" not in outcome.stderr


@pytest.mark.parametrize("name", ["../mine/table/x", "x/../../mine/table/x", ".x", "/mine/table/x"])
def test_no_file_outside_of_the_folders_is_loaded(name: str, tmp_path: Path) -> None:
    words = by_group(tmp_path, GLOBAL + "repeats: 1\n")
    assert outcome_of(words, tmp_path).exit_code == 0
    (tmp_path / "mine/table/y.yaml").write_text(f"{GLOBAL}defaults: ['/{name}']\n")
    require_refused(outcome_of([*words[:2], "table=y"], tmp_path))
    require_refused(outcome_of([*words[:2], f"--config-name={name}"], tmp_path))


@pytest.mark.parametrize("option", ["--config-dir", "--config-path"])
@pytest.mark.parametrize("where", ["pkg://antigravity", "nowhere", "structured://"])
def test_only_folders_hold_configs(option: str, where: str, tmp_path: Path) -> None:
    outcome = outcome_of(["device=cpu", f"{option}={where}"], tmp_path)
    require_refused(outcome)
    assert f"{where}: no such folder" in outcome.stderr


def test_a_compare_of_nodes_as_they_stand_resolves_nothing() -> None:
    """An interpolation could give something else when Hydra resolves it."""
    asked: list[str] = []
    OmegaConf.register_new_resolver("asked", asked.append, replace=True)
    with hydra_of(), pytest.raises(ConfigError, match=r"^hydra.verbose=\$\{asked:1\}: allowed: true, false"):
        compose("config", ["hydra.verbose=${asked:1}"])
    assert asked == []
