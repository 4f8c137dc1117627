"""An installed sweeper of Hydra chooses jobs by the objective of those before; text of a config stays out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from support.processes.ended_runs import Keeper, Ran
from support.processes.plugged_site import seeing

# Three sizes of batches one after another. Hydra imports it without an entry in sys.modules, so it has no annotations
# that are texts.
SWEEPER = """
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class Sizes(Sweeper):
    def __init__(self, trials: int, kind: Any, params: Any = None, note: str = "") -> None:
        self.trials = trials

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        found = {}
        for at, size in enumerate([4, 8, 0][: self.trials]):
            (job,) = self.launcher.launch([[*arguments, f"batching.max_batch={size}"]], initial_job_idx=at)
            found[size] = float(job.return_value)
        best = min(found, key=found.get)
        Path(self.config.hydra.sweep.dir, "best.json").write_text(json.dumps([best, found]))

@dataclass
class Kind:
    _target_: str = "builtins.dict"
    seed: int = 1

@dataclass
class Settings:
    defaults: list = field(default_factory=lambda: [{"kind": "plain"}])
    _target_: str = "hydra_plugins.sizes.Sizes"
    trials: int = 3
    kind: Any = "???"
    note: str = "of the package"
    params: Any = None

ConfigStore.instance().store(group="hydra/sweeper", name="sizes", node=Settings, provider="sizes")
ConfigStore.instance().store(group="hydra/sweeper/kind", name="plain", node=Kind, provider="sizes")
"""
SMALL = "device=cpu workload.m=64 workload.k=64 workload.commands=20 mode=batched against=[baseline] hydra.sweep.dir=s"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """Call `python -m runner` where the sweeper is installed. One process answers all calls."""
    folder = tmp_path_factory.mktemp("sweepers")
    (folder / "hydra_plugins").mkdir()
    (folder / "hydra_plugins/sizes.py").write_text(SWEEPER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", seeing(folder)["PYTHONPATH"])
        keeper = Keeper(folder / "stderr")
    names = iter("abcdefgh")

    def run(words: str) -> Ran:
        (here := folder / next(names)).mkdir()
        return keeper.run(words, here)

    yield run
    keeper.close()


def test_each_job_returns_its_objective(runner: Callable[[str], Ran]) -> None:
    ran = runner(f"-m hydra/sweeper=sizes hydra.sweeper.kind.seed=2 {SMALL}")
    assert ran.exit_code == 2, "the last job has no usable size"
    best, found = json.loads((ran.folder / "s/best.json").read_text())
    jobs = json.loads((ran.folder / "s/sweep.json").read_text())["jobs"]
    assert [(each["status"], each["objective"]) for each in jobs] == [
        ("ok", found["4"]),
        ("ok", found["8"]),
        ("refused", None),
    ]
    assert 0 < found[str(best)] == min(found["4"], found["8"]) < found["0"] == float("inf")


@pytest.mark.parametrize("setting", ["hydra.sweeper.note=os.system", "+hydra.sweeper.found=os.system"])
def test_text_of_a_config_is_refused(setting: str, runner: Callable[[str], Ran]) -> None:
    ran = runner(f"-m hydra/sweeper=sizes {setting} {SMALL}")
    assert (ran.exit_code, (ran.folder / "s").exists()) == (2, False)
    assert ran.stderr.startswith(
        f"error: {setting.lstrip('+')}: text that could name code; allowed for hydra/sweeper=sizes"
    )
    assert ran.stderr.count("\n") == 1


def test_another_node_does_not_stand_for_the_settings_of_a_sweeper(runner: Callable[[str], Ran]) -> None:
    ran = runner(f"-m hydra/sweeper=sizes hydra.sweeper=${{model}} {SMALL}")
    assert (ran.exit_code, (ran.folder / "s").exists()) == (2, False)
    assert "hydra.sweeper=" in ran.stderr
    assert ran.stderr.count("\n") == 1
