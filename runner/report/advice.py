"""What to do for each number of requests, and what it gained, as a table of a page.

In: advice.json, `{"runs", "advice": [{"requests", "do", "gains": [[mode, base], ...]}, ...]}`. `runs` names a
which_strategy.json in the same folder. A gain is the factor of `mode` over `base` in every run that has both modes and
that number of requests: the smallest and the largest. Out: Markdown.
"""

from __future__ import annotations

from pathlib import Path

from launchopt.analysis.tables.markdown import plain
from launchopt.errors import DataError
from launchopt.files import read_json
from runner.report.which_strategy import NO_BREAK, Modes, beside, factor_of, modes_of

FILE = "advice.json"
LEGEND = (
    '"graph 1.15x over coalesced" means that coalesced took 1.15 times as long (median wall time). A range is over all '
    "runs that have both modes. TPOT, which leaves out the first token, stands where it differs by more than 1%. Runs "
    "with `megakernel` use asynchronous scheduling (`scheduler.ahead`); so does the "
    "`graph` run that they are compared with. No engine launches each request alone, so every engine has the factor of "
    "`coalesced` over `baseline` already."
)
HEADINGS = {"requests in step": "---:", "do this": "---", "factor in wall time": "---"}


def markdown(path: Path) -> str:
    """Return the legend and the table.

    Raises DataError for a file without advice, for a gain that no run has, and for a run with a wrong output.
    """
    try:
        content = read_json(path)
        listed = [
            (int(run["requests"]), path.parent / run["run"]) for run in read_json(path.parent / content["runs"])["runs"]
        ]
        lines = []
        for each in content["advice"]:
            runs = [modes_of(folder, requests) for requests, folder in listed if requests == each["requests"]]
            gains = (_gain(path, runs, mode, base) for mode, base in each["gains"])
            lines.append([str(each["requests"]), str(each["do"]), "<br>".join(gains)])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of advice ({type(error).__name__}: {error})") from None
    return f"{LEGEND}\n\n{plain(HEADINGS, lines)}"


def _gain(path: Path, runs: list[Modes], mode: str, base: str) -> str:
    """Return the factor of `mode` over `base`: of one run, or from the smallest to the largest of several."""
    pairs = [(run[base], run[mode]) for run in runs if mode in run and base in run]
    factors = sorted(factor_of(*pair) for pair in pairs)
    if not factors:
        raise DataError(path, None, f"no run has both {mode} and {base}")
    shown = dict.fromkeys(f"{factor:#.3g}x" for factor in (factors[0], factors[-1]))
    return f"{mode} {' to '.join(shown)} over {base}{beside(pairs)}".replace(" ", NO_BREAK)
