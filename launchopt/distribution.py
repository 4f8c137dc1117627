"""The version of this package, the modules that are missing, and the commands that install it and its extras."""

from __future__ import annotations

import shlex
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
    """Return the command that installs this package with `extras`: a checkout from its folder, else by name."""
    names, checkout = f"[{','.join(extras)}]" if extras else "", Path(__file__).parents[1]
    if not (checkout / "pyproject.toml").is_file():
        package, option = f"{NAME}{names}", ""
    else:
        package, option = f"{'.' if _is_here(checkout) else checkout}{names}", "-e "
    return f"pip install {option}" + (f"'{package}'" if names else shlex.quote(package))


def _is_here(folder: Path) -> bool:
    try:
        return folder.samefile(Path.cwd())
    except OSError:  # the working folder is gone
        return False
