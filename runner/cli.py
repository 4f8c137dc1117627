"""Entry from the command line: checks of the words before Hydra reads them, and short messages for Hydra's errors.

In: the words after `launchopt run`. Out: the exit code. `config.typed.words` refuses words that would run arbitrary
code: `_target_`, which Hydra would import and call, and --experimental-rerun, which reads a pickle. `config.loading`
checks the user's own config files, and every composed config. None of our settings names code (`config.schema`).

Hydra prints a traceback for input that it did not expect, and turns an exception of a callback into a warning. Here
both become one line (`config.typed.hydras_errors`) and exit code 2. Mistakes of this program keep their traceback.
HYDRA_FULL_ERROR=1 shows every traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from hydra.errors import CompactHydraException
from omegaconf.errors import OmegaConfBaseException

from launchopt.errors import LaunchoptError
from launchopt.messages import print_error
from runner import app
from runner.config import loading
from runner.config.typed.hydras_errors import for_user
from runner.config.typed.renamed import current_words
from runner.config.typed.words import check_settings, check_words, parted
from runner.ending.signals import signals

FULL_ERROR = "HYDRA_FULL_ERROR"


def run(arguments: Sequence[str] | None = None) -> int:
    """Check the words, run `app.main`, and return the exit code. `arguments` are by default those of the process."""
    words = current_words(sys.argv[1:] if arguments is None else arguments)
    settings: list[str] = []
    try:
        check_words(words)
        settings, options = parted(words)
        words = [*settings, *options]
        check_settings(settings)
        if os.environ.get(FULL_ERROR) == "1":
            return app.main(words)
        with _full_errors():
            return app.main(words)
    except LaunchoptError as error:
        signals.check_lost()
        return _reported(error)
    except Exception as raised:
        signals.check_lost()
        cause = _behind(raised)
        if os.environ.get(FULL_ERROR) == "1" or not _is_about_input(cause):
            raise cause from None
        return _reported(for_user(cause, settings))


def _reported(error: LaunchoptError) -> int:
    """Print an error as one line, and return its exit code."""
    print_error(error)
    return error.exit_code


@contextmanager
def _full_errors() -> Iterator[None]:
    """Make Hydra raise errors instead of printing them, also those of a callback."""
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Callback Precheck", UserWarning)
            yield
    finally:
        os.environ.pop(FULL_ERROR)
        if before is not None:
            os.environ[FULL_ERROR] = before


def _behind(error: Exception) -> Exception:
    """Return the exception of a callback if `error` is Hydra's warning about it, else `error` itself."""
    context = error.__context__
    return context if isinstance(error, UserWarning) and isinstance(context, Exception) else error


def _is_about_input(error: Exception) -> bool:
    """Return whether the input caused an error of Hydra; if not, this program has a mistake."""
    if isinstance(error, CompactHydraException | OmegaConfBaseException):
        return True
    return not any(name.startswith(("runner.", "launchopt.")) for name in _modules(error.__traceback__))


def _modules(trace: TracebackType | None) -> Iterator[str]:
    """Yield the module of each frame of a traceback, without those of `run`, of `app.main` and of the loader."""
    here = {(__name__, run.__name__), (app.__name__, app.main.__name__)}
    while trace is not None:
        code, name = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if (name, code.co_name) not in here and name != loading.__name__:
            yield name
        trace = trace.tb_next
