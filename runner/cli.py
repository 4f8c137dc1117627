"""Entry from the command line: checks of the words before Hydra reads them, and short messages for Hydra's errors.

In: the words after `launchopt run`. Out: the exit code. This module refuses words that would run arbitrary code:
`_target_`, which Hydra would import and call, and --experimental-rerun, which reads a pickle. `config.files` checks the
user's own config files. None of our settings names code (`config.schema`).

Hydra prints a traceback for input that it did not expect (`workload=null`), and turns an exception of a callback into a
warning. Here both become a short message. Mistakes of this program keep their traceback. HYDRA_FULL_ERROR=1 shows every
traceback.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, RangeSweep
from hydra.errors import CompactHydraException, HydraException
from omegaconf.errors import OmegaConfBaseException

from launchopt.arrivals.lines import shown
from launchopt.errors import ConfigError, LaunchoptError
from runner import app
from runner.config.files import check_config_files
from runner.renamed import current_words

FULL_ERROR = "HYDRA_FULL_ERROR"
HINT = f"\nSet the environment variable {FULL_ERROR}=1 for a complete stack trace."
MOST_CHARACTERS = 16_384  # maximum of one word; a sweep over a thousand values has fewer
LINE_CHARACTERS = 400  # maximum of one line of a message
MOST_JOBS = 100_000  # maximum jobs of one sweep
RERUN = "--experimental-rerun"
HYDRA_EXIT_CODE = 1  # the exit code of Hydra itself


def run(arguments: Sequence[str] | None = None) -> int:
    """Check the words, run `app.main`, and return the exit code. `arguments` are by default those of the process."""
    words = current_words(sys.argv[1:] if arguments is None else arguments)
    try:
        check_words(words)
        check_config_files(words)
        check_sweep(words)
        if os.environ.get(FULL_ERROR) == "1":
            return app.main(words)
        with _full_errors():
            return app.main(words)
    except LaunchoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as raised:
        cause = _behind(raised)
        if os.environ.get(FULL_ERROR) == "1" or not _is_about_input(cause):
            raise cause from None
        print(*_message(cause, words), HINT, sep="\n", file=sys.stderr)
        return HYDRA_EXIT_CODE


def check_words(words: Sequence[str]) -> None:
    """Raise ConfigError for a word that must not reach Hydra."""
    for word in words:
        key, _, value = word.partition("=")
        if len(word) > MOST_CHARACTERS:
            raise ConfigError(_plain(key), "...", f"{len(word):,} characters; at most {MOST_CHARACTERS:,}")
        if "_target_" in word:
            raise ConfigError(_plain(key), _plain(value), "names code to be run: no setting takes _target_")
        if len(key) > len("--") and RERUN.startswith(key):
            raise ConfigError(RERUN, _plain(value), "reads a pickle, which can run any code: refused")


def check_sweep(words: Sequence[str]) -> None:
    """Raise ConfigError for a sweep of more than MOST_JOBS jobs: Hydra lists all of them before it runs the first."""
    jobs, parser = 1, OverridesParser.create()
    for word in words:
        try:
            override = parser.parse_overrides([] if word.startswith("-") else [word])
        except (HydraException, ValueError):  # Hydra reports this error itself
            return
        jobs *= max([1, *(_choices(each.value()) for each in override)])
        if jobs > MOST_JOBS:
            key, _, value = word.partition("=")
            raise ConfigError(_plain(key), _plain(value), f"over {MOST_JOBS:,} jobs")


def _plain(text: str) -> str:
    """Return the text for a message: cut, and with its control characters escaped."""
    return shown(text)[1:-1]


def _choices(value: object) -> int:
    """Return the number of values of a sweep; 1 for a value that is no sweep."""
    if isinstance(value, RangeSweep):
        start, stop, step = (float(each or 0) for each in (value.start, value.stop, value.step))
        count = (stop - start) / step if step else 0.0
        return math.ceil(min(count, MOST_JOBS + 1)) if count > 1 else 1  # nan: Hydra reports it
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


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
    """Yield the module of each frame of a traceback, without those of `run` and `app.main`."""
    here = {(__name__, run.__name__), (app.__name__, app.main.__name__)}
    while trace is not None:
        code, name = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if (name, code.co_name) not in here:
            yield name
        trace = trace.tb_next


def _message(error: Exception, words: Sequence[str]) -> list[str]:
    """Return the lines of an error, as Hydra prints them."""
    if isinstance(error, CompactHydraException):
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
        text = f"{error}\n{cause}" if cause else str(error)
    elif isinstance(error, OmegaConfBaseException):
        text = str(error)
    else:
        text = f"Hydra cannot read this: {' '.join(words)}\n{type(error).__name__}: {error}"
    return [_line(line) for line in text.splitlines()]


def _line(text: str) -> str:
    """Return the line, cut, with control characters escaped: they could move the cursor of a terminal."""
    clean = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
    return clean if len(clean) <= LINE_CHARACTERS else clean[: LINE_CHARACTERS - 3] + "..."
