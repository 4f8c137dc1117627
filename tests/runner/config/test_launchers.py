"""Launchers and sweepers that this program does not support are refused before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.config.override_sets import taken

from launchopt.errors import ConfigError
from runner.config import launchers
from runner.config.launchers import PACKAGES, PLUGINS, WORD, check_plugins
from runner.parallel import launching

LAUNCHERS = (
    "submitit_oar",
    "ray_aws",
    "rq",
    "nothing_known",
    "basic,joblib",
    "null",
)
OTHERS = [*(f"hydra/launcher={name}" for name in LAUNCHERS), "hydra/sweeper=optuna", "+hydra/launcher=rq"]


@pytest.mark.parametrize("words", [["-m", "hydra/launcher=basic", "hydra/sweeper=basic"], ["hydra/launcher=basic"]])
def test_the_basic_launcher_is_accepted(words: list[str], tmp_path: Path) -> None:
    outcome = taken([*words, "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code) == (None, 0)
    assert len(outcome.plans) == 1


@pytest.mark.parametrize("word", OTHERS)
@pytest.mark.parametrize("options", [["-m"], [], ["--cfg", "job"]])
def test_another_plugin_is_refused_in_one_line(word: str, options: list[str], tmp_path: Path) -> None:
    outcome = taken([*options, word, "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    key, _, value = word.lstrip("+").partition("=")
    kind = key.partition("/")[2]
    expected = f"no {kind} of this program; allowed: the {kind} basic, which is the default"
    assert outcome.stderr.startswith(f"error: {key}={value}: {expected}")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "extra"), [(name, package.extra) for name, package in PACKAGES.items()])
@pytest.mark.parametrize("options", [["-m"], [], ["--cfg", "job"]])
def test_a_launcher_that_is_not_installed_is_refused_with_what_to_type(
    options: list[str], name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "is_installed", lambda group, option: False)
    outcome = taken([*options, f"hydra/launcher={name}", "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    assert outcome.stderr == f"error: hydra/launcher={name}: is not installed; type: pip install 'launchopt[{extra}]'\n"


@pytest.mark.parametrize(("name", "module"), [("joblib", "joblib"), ("submitit_slurm", "submitit")])
def test_a_launcher_without_the_package_that_it_starts_is_refused(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{module}_launcher")
    monkeypatch.setattr(launching, "find_spec", lambda name: None)
    outcome = taken(["-m", f"hydra/launcher={name}", "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    wanted = f"is not installed; type: pip install 'launchopt[{module}]'"
    assert outcome.stderr == f"error: hydra/launcher={name}: {wanted}\n"


HOSTILE = (
    "hydra.launcher._target_=os.system",
    'hydra.launcher.pre_dispatch=\'__import__("os").system("id")\'',
    "hydra.launcher.require=sharedmem",
    "hydra.launcher.temp_folder=/etc",
    "+hydra.launcher.command=id",
    "hydra.launcher.pre_dispatch='${oc.env:HOME}'",
    "hydra.launcher.n_jobs='${oc.create:x}'",
)


@pytest.mark.parametrize(
    "word",
    [
        "hydra.launcher.submitit_folder=/etc",
        "hydra.launcher.name='$(id)'",
        "+hydra.launcher.setup=[id]",
        "+hydra.launcher.python=id",
        "hydra.launcher.nodes=2",
        "hydra.launcher.tasks_per_node=2",
        "+hydra.launcher.nothing_known=2",
    ],
)
@pytest.mark.parametrize("launcher", ["submitit_local", "submitit_slurm"])
def test_submitit_takes_no_text_and_runs_each_job_once(launcher: str, word: str, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["-m", f"hydra/launcher={launcher}", "hydra.launcher.timeout_min=9", "device=cpu", word]
    outcome = taken(words, tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("launcher", "word", "allowed"),
    [
        ("joblib", "n_jobs=0", "runs no job: use 2 for two at once, or -1 for one on each core"),
        ("joblib", "pre_dispatch=0", "must be a whole number of at least 1"),
        ("joblib", "batch_size=-2", "must be a whole number of at least 1"),
        ("joblib", "batch_size=2.5", "must be a whole number of at least 1"),
        ("joblib", "max_nbytes=nan", "must be a whole number of at least 1"),
        ("joblib", "timeout=0.0", "must be more than 0"),
        ("joblib", "timeout=nan", "must be more than 0"),
        ("submitit_local", "timeout_min=0", "must be more than 0"),
        ("submitit_slurm", "timeout_min=-1", "must be more than 0"),
    ],
)
def test_a_number_with_which_a_launcher_runs_no_job_is_refused(
    launcher: str, word: str, allowed: str, tmp_path: Path
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    outcome = taken(["-m", f"hydra/launcher={launcher}", "device=cpu", f"hydra.launcher.{word}"], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    assert outcome.stderr == f"error: hydra.launcher.{word}: {allowed}\n"


@pytest.mark.parametrize("jobs", [-1, 1, 2])
def test_joblib_takes_other_numbers_of_jobs_at_once(jobs: int, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["--cfg", "job", "hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}", "device=cpu"]
    outcome = taken(words, tmp_path)
    assert (outcome.fault, outcome.exit_code) == (None, 0), outcome.stderr


@pytest.mark.parametrize("word", ["pre_dispatch=4", "batch_size=2", "max_nbytes=1000000", "pre_dispatch='2*n_jobs'"])
def test_joblib_takes_numbers_for_settings_of_type_text(word: str, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["--cfg", "job", "hydra/launcher=joblib", f"hydra.launcher.{word}", "device=cpu"]
    outcome = taken(words, tmp_path)
    assert (outcome.fault, outcome.exit_code) == (None, 0), outcome.stderr


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("hydra/launcher=joblib", "launcher"),
        ("hydra.launcher.n_jobs=2 hydra/launcher=joblib", "launcher"),
        ("hydra.sweeper.max_batch_size=2", "sweeper"),
    ],
)
def test_a_launcher_or_a_sweeper_without_m_is_refused(words: str, kind: str, tmp_path: Path) -> None:
    if "joblib" in words:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    outcome = taken([*words.split(), "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    first = words.split()[0]
    wanted = f"a run without -m has no {kind}: add -m for a sweep, or leave this out"
    assert outcome.stderr == f"error: {first}: {wanted}\n"


@pytest.mark.parametrize(
    "word",
    [
        "hydra.launcher.partition='gpu; id'",
        "hydra.launcher.gres='gpu:1\\nid'",
        "hydra.launcher.setup=['id']",
        "+hydra.launcher.additional_parameters.nodelist='a b'",
        "+hydra.launcher.additional_parameters.wrap=id",
        "+hydra.launcher.additional_parameters.ntasks=2",
        "+hydra.launcher.additional_parameters={'x=1\\nid': 1}",
    ],
)
def test_slurm_takes_words_that_name_machines_and_no_others(word: str, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["hydra/launcher=submitit_slurm", "hydra.launcher.constraint='a100&ib'", "hydra.launcher.exclude='n[1-4]'"]
    fine = taken(["--cfg", "job", *words, "+hydra.launcher.additional_parameters.nodelist=n7", "device=cpu"], tmp_path)
    assert (fine.fault, fine.exit_code) == (None, 0), fine.stderr
    outcome = taken(["-m", *words, "device=cpu", word], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    assert outcome.stderr.count("\n") == 1
    assert "hydra.launcher." in outcome.stderr


@pytest.mark.parametrize(
    "text", ["", "a b", "a\nb", "a\n", "'a'", '"', "$(id)", "`id`", "a;b", "/etc", "a%j", "-x", "#"]
)
def test_a_word_that_reaches_a_shell_or_a_path_is_none(text: str) -> None:
    assert WORD.fullmatch(text) is None


@pytest.mark.parametrize("word", HOSTILE)
def test_a_launcher_of_a_package_takes_no_text_that_could_name_code(word: str, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    fine = taken(["--cfg", "job", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "device=cpu"], tmp_path)
    assert (fine.fault, fine.exit_code) == (None, 0)
    outcome = taken(["-m", "hydra/launcher=joblib", "device=cpu", word], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    assert outcome.stderr.count("\n") == 1


def composed(group: str, option: str, node: object) -> Any:
    """Return the part of the node `hydra` that names launcher and sweeper, with `node` as that of `group`."""
    choices = {each: plugin.option for each, plugin in PLUGINS.items()} | {group: option}
    nodes = {each.partition("/")[2]: {"_target_": plugin.target} for each, plugin in PLUGINS.items()}
    return OmegaConf.create({"runtime": {"choices": choices}, **nodes, group.partition("/")[2]: node})


@pytest.mark.parametrize("group", PLUGINS)
def test_a_composed_plugin_counts_by_its_class_and_settings(group: str) -> None:
    fine = {"_target_": PLUGINS[group].target} | dict.fromkeys(PLUGINS[group].settings)
    check_plugins(composed(group, "basic", fine))
    for option, node in (
        ("joblib", fine),
        ("rq", fine),
        ("basic", {"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"}),
        ("basic", fine | {"n_jobs": 4}),
        ("basic", {}),
        ("basic", None),
    ):
        with pytest.raises(ConfigError, match=r"of this program|not installed|could name code"):
            check_plugins(composed(group, option, node))
