"""The Hydra application: command lines, processes and folders of results. It imports no CUDA."""

import _signal  # type: ignore[import-not-found]  # `runner.ending.signals` says why not `signal`
import os
import sys


def _is_program() -> bool:
    """Return whether this process is `python -m runner`, `python -m runner.NAME` or `launchopt`, and no child of it."""
    if sys.argv[:1] == ["-m"]:  # Python loads this package before the program that -m names
        return any(each.split(".")[0] == "runner" for each in sys.orig_argv)
    return [os.path.basename(each) for each in sys.orig_argv[1:2]] == ["launchopt"]  # noqa: PTH119 (pathlib takes 5 ms)


if _is_program():
    _held = _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP})
    from runner.ending import stand

    stand()
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _held)
    from runner.ending.limits import require

    require(is_run=False)

# Users run the commands of `profiles` as `python -m runner.nsys`, `python -m runner.trace` and so on.
__path__.append(os.path.join(os.path.dirname(__file__), "profiles"))  # noqa: PTH118, PTH120
