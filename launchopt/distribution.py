"""The version of this package, the modules that are missing, and the commands that install it and its extras."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NAME = "launchopt"
UNKNOWN = "unknown"  # version of sources that are not installed


def version() -> str:
    """Return the installed version, such as 0.2.0; UNKNOWN for sources that are only on the path."""
    from importlib import metadata  # takes 20 ms

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def missing(*modules: str) -> list[str]:
    """Return those of `modules`, names to import, that are not installed. None is imported."""
    return [name for name in modules if find_spec(name) is None]


def install_command(*extras: str) -> str:
    """Return the command that installs this package with `extras`: in a checkout from its folder, else by name."""
    names = f"[{','.join(extras)}]" if extras else ""
    is_checkout = (Path(__file__).parents[1] / "pyproject.toml").is_file()
    package = f".{names}" if is_checkout else f"{NAME}{names}"
    quoted = f"'{package}'" if names else package
    return f"pip install -e {quoted}" if is_checkout else f"pip install {quoted}"
