"""`model=PATH`: a model from a config.json of Hugging Face, in place of the name of an option.

In: the path that Hydra asks for as the option of the group `model`. Out: the config of that model, made of checked
numbers. A value is a path if it has a slash, ends with `.json`, or is `.` or `..`. It starts where the user is.
"""

from __future__ import annotations

from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from launchopt.files import user_path
from launchopt.huggingface.config_json import read_model
from launchopt.streams.model import Model

GROUP = "model"
OR_PATH = "or the path of a config.json"  # behind the names of all options


def is_path(option: str) -> bool:
    """Return whether a value of `model` is a path, not a name."""
    return "/" in option or option.endswith(".json") or option in (".", "..")


def model_path(config_path: str) -> str | None:
    """Return the path in what Hydra wants to load, such as model/./my/config.json; None if that is a name."""
    group, _, option = config_path.partition("/")
    return option if group == GROUP and is_path(option) else None


def model_at(path: str) -> Model:
    """Return the model in a file or folder; DataError if there is none."""
    return read_model(user_path("model", path))


def loaded(path: str) -> ConfigResult:
    """Return the model in a file or folder as a config that Hydra has loaded."""
    return ConfigResult(
        provider="config.json",
        path=path,
        config=OmegaConf.structured(model_at(path)),
        header={"package": None},
        defaults_list=[],
    )
