"""Hydra with a loader that checks every file it loads and every config it composes.

In: folders of configs. Out: a `Hydra`. Each composition passes through `Loader`: that of a run, of every job of a sweep
and of --cfg. It ends in `composed.check`, before Hydra instantiates or starts anything that a config names.

    launchopt's folder and packages       loaded as they are
    an installed plugin                   imported, when a config names it (`plugged`)
    --config-dir, --config-path           each file is checked by `files.config_text`; Hydra parses the checked text
    model=PATH                            a config.json, whose numbers `model_files` reads
    hydra.searchpath                      refused
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.core_plugins import basic_launcher
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_app, create_config_search_path, get_args_parser
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from launchopt.errors import ConfigError, DataError, explained
from launchopt.files import is_there
from runner.config.composed import check
from runner.config.files import config_text
from runner.config.model_files import loaded, model_path
from runner.config.plugged import plugin_at
from runner.config.plugged import register as register_plugin
from runner.config.schema import register
from runner.config.tables import conf_folder

NAME = "launchopt"
REFERENCE = "${"  # begins a reference in every text of a config: Hydra writes folders into it as they are
MOST_LOADED = 400  # maximum of files and options that one config is composed of; an experiment takes about 60


class OwnFiles(FileConfigSource):
    """A folder of the user. The text that is checked is the text that is parsed: the file is read once."""

    def is_config(self, config_path: str) -> bool:
        """Return whether anything has the name of this file. `load_config` says what is not a regular file."""
        return os.path.lexists(Path(self.path, self._normalize_file_name(config_path)))

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the content of a file; DataError if it should not be loaded."""
        path = Path(self.path, self._normalize_file_name(config_path))
        if config_path.partition("/")[0] == "hydra":
            raise DataError(path, None, "an option of Hydra's own groups can start programs: refused")
        text = config_text(path)
        header = self._get_header_dict(text[:512])
        return ConfigResult(self.provider, f"file://{self.path}", OmegaConf.load(io.StringIO(text)), header)


class Files(CachingConfigRepository):
    """The sources of one composition. It counts what is loaded, and loads nothing from outside of the sources."""

    def __init__(self, delegate: ConfigRepository) -> None:
        # Not Hydra's own: it copies every option ever registered, a fifth of a composition, for a list that
        # `initialize_sources` replaces. Here that list stays, and the copy would not see the options that plugins add.
        self.delegate = delegate
        self.cache = {}
        self.loaded = 0
        self.models: dict[str, ConfigResult] = {}

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Refuse further sources: Hydra calls this only for hydra.searchpath."""
        where = ", ".join(each.path for each in config_search_path.get_path() if "searchpath" in each.provider)
        raise ConfigError("hydra.searchpath", where, explained("no folders by this key", "", ["--config-dir=DIR"]))

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return an option of a group, or None. Hydra calls this for each entry of each list of defaults."""
        self.loaded += 1
        if self.loaded > MOST_LOADED:
            raise ConfigError("defaults", config_path, f"over {MOST_LOADED} options in one config, or a circle of them")
        parts = config_path.split("/")
        is_outside = any(each[:1] in ("", ".") for each in parts)
        if (path := model_path(config_path)) and (is_outside or not self.config_exists(config_path)):
            return self._model(config_path, path)
        if any(each.startswith(".") for each in parts) or config_path.startswith("/"):
            group = "/".join(parts[: next((i for i, each in enumerate(parts) if each[:1] in ("", ".")), 0)])
            option = config_path.removeprefix(f"{group}/")
            raise ConfigError(group or "defaults", option, "outside of the folder of configs, or hidden: refused")
        if not self.config_exists(config_path) and (plugin := plugin_at(config_path)) is not None:
            register_plugin(plugin)
        return super().load_config(config_path)

    def _model(self, config_path: str, path: str) -> ConfigResult:
        """Return the model in a config.json, which is read once for each composition."""
        if config_path not in self.models:
            self.models[config_path] = loaded(path)
        return self.models[config_path]


class Loader(ConfigLoaderImpl):
    """A loader of which every composed config is checked."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        sources, ours = self.repository.sources, str(conf_folder())
        self.repository.sources = [
            OwnFiles(each.provider, each.path) if each.scheme() == "file" and each.path != ours else each
            for each in sources
        ]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in a worker of a launcher, which composes its jobs there."""
        self.__dict__.update(state)
        register()
        _refuse_resolvers()

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return the composed config; LaunchoptError if it has what only this program may set."""
        composed = super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        check(composed, len(overrides))
        return composed

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed, files = OverridesParser.create().parse_overrides(overrides), Files(self.repository)
        self._process_config_searchpath(config_name, parsed, files)
        return parsed, files


@contextmanager
def hydra_of(config_path: str | None = None, config_dir: str | None = None) -> Iterator[Hydra]:
    """Make Hydra, which `hydra.compose` uses during this block.

    config_path: a folder instead of conf/. config_dir: a folder beside it. DataError for a folder that does not exist,
    and for a current folder with REFERENCE in its name.
    """
    if REFERENCE in str(here := Path.cwd()):
        raise DataError(here, None, f"this folder has {REFERENCE} in its name, which Hydra reads: work in another one")
    register()
    _refuse_resolvers()
    version.setbase("1.3")
    main = conf_folder() if config_path is None else _folder("--config-path", config_path)
    search_path = create_config_search_path(str(main) if main else "pkg://runner.conf")
    if config_dir is not None:
        where = f"file://{_folder('--config-dir', config_dir)}"
        search_path.prepend(provider="command-line", path=where, anchor=SearchPathQuery(provider="schema"))
    hydra, everywhere = Hydra(NAME, Loader(search_path)), GlobalHydra.instance()
    before, everywhere.hydra = everywhere.hydra, hydra
    try:
        yield hydra
    finally:
        everywhere.hydra = before


def start(words: Sequence[str], task: TaskFunction, refuse: Callable[[DictConfig, OSError], None]) -> None:
    """Do what the words ask Hydra for: run `task` once or in a sweep, or print something and run nothing.

    refuse: called instead of `task` for a job of a sweep whose folder cannot be made.
    """
    parser = get_args_parser()
    asked = parser.parse_args(list(words))
    named = {"config_name": asked.config_name or "config", "overrides": asked.overrides}
    if asked.hydra_help:
        with hydra_of() as hydra:
            hydra.hydra_help(named["config_name"], parser, asked)
        return
    with hydra_of(asked.config_path, asked.config_dir) as hydra:
        if asked.cfg:
            hydra.show_cfg(**named, cfg_type=asked.cfg, package=asked.package, resolve=asked.resolve)
        elif asked.shell_completion:
            hydra.shell_completion(**named)
        elif asked.info:
            hydra.show_info(asked.info, **named)
        else:
            how = {"run": asked.run or not asked.multirun, "multirun": asked.multirun, "mode": hydra.get_mode(**named)}
            with _jobs(refuse):
                _run_app(**how, **named, hydra=hydra, task_function=task)


@contextmanager
def _jobs(refuse: Callable[[DictConfig, OSError], None]) -> Iterator[None]:
    """Make Hydra's launcher continue after a job whose folder cannot be made. It would end the sweep."""
    hydras: Any = basic_launcher
    whole = hydras.run_job

    def run_job(**job: Any) -> JobReturn:
        try:
            return cast(JobReturn, whole(**job))
        except OSError as error:  # an error of the task itself is kept in what `whole` returns
            refuse(job["config"], error)
            return JobReturn(status=JobStatus.COMPLETED, _return_value=math.inf)  # an optimizer goes elsewhere

    hydras.run_job = run_job
    try:
        yield
    finally:
        hydras.run_job = whole


def _folder(option: str, named: str) -> Path:
    if not (is_there(Path(named)) and Path(named).is_dir()):
        raise DataError(named, None, f"no such folder; allowed after {option}: a folder with configs")
    return Path(named).resolve()


def _refuse_resolvers() -> None:
    for name in ("oc.create", "oc.decode"):
        OmegaConf.register_new_resolver(name, _refuse, replace=True)


def _refuse(*_: Any) -> None:
    """Stand for the resolvers that turn text into settings: their names can be put together from pieces."""
    raise ConfigError("oc.create, oc.decode", "...", "builds settings from text, which can name code: refused")
