"""What to do for each number of requests, and what it gained, as a table of a page.

In: advice.json, `{"runs", "advice": [{"requests", "do", "gains": [[mode, base], ...]}, ...]}`. `runs` names a
which_strategy.json in the same folder. A gain is the factor of `mode` over `base` in every run that has both modes and
that number of requests: the smallest and the largest. An advice may name one run itself, and its work, in place of
requests: `{"work", "run", "do", "gains"}`; then the file needs no `runs`. Out: Markdown.
"""

from __future__ import annotations

from pathlib import Path

from launchopt.analysis.tables.columns import three_digits
from launchopt.analysis.tables.markdown import plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from runner.report.which_strategy import NO_BREAK, Modes, beside, factor_of, modes_of

FILE = "advice.json"
LEGEND = (
    '"graph 1.15x over coalesced" means that coalesced took 1.15 times as long (median wall time). A range is over all '
    "runs that have both modes. TPOT, which leaves out the first token, stands where it differs by more than 1%. "
)
OVER_ENGINE = (
    "`engine` launches a step without CUDA graphs: coalesced, merged, and fused at least as far as in vLLM. `baseline` "
    "launches each command alone."
)
OVER_COALESCED = (
    "Runs with `megakernel` use asynchronous scheduling (`scheduler.ahead`); so does the "
    "`graph` run that they are compared with. No engine launches each request alone, so every engine has the factor of "
    "`coalesced` over `baseline` already."
)
RULES = {"do this": "---", "factor in wall time": "---"}


def markdown(path: Path) -> str:
    """Return the legend and the table.

    Raises DataError for a file without advice, for a gain that no run has, and for a run with a wrong output.
    """
    try:
        content = read_json(path)
        named = "runs" in content
        listed = read_json(path.parent / content["runs"])["runs"] if named else []
        lines = [_cells(path, each, listed) for each in content["advice"]]
        is_over_engine = any(base == "engine" for each in content["advice"] for _, base in each["gains"])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of advice ({type(error).__name__}: {error})") from None
    first = {"requests in step": "---:"} if named else {"work": "---"}
    return f"{LEGEND}{OVER_ENGINE if is_over_engine else OVER_COALESCED}\n\n{plain(first | RULES, lines)}"


def _cells(path: Path, advice: JsonObject, listed: list[JsonObject]) -> list[str]:
    """Return the cells of one advice. listed: the runs of the file that `runs` names."""
    if "run" in advice:
        name, runs = str(advice["work"]), [modes_of(path.parent / advice["run"])]
    else:
        requests = int(advice["requests"])
        found = [each for each in listed if int(each["requests"]) == advice["requests"]]
        name, runs = str(requests), [modes_of(path.parent / each["run"], requests) for each in found]
    gains = (_gain(path, runs, mode, base) for mode, base in advice["gains"])
    return [name, str(advice["do"]), "<br>".join(gains)]


def _gain(path: Path, runs: list[Modes], mode: str, base: str) -> str:
    """Return the factor of `mode` over `base`: of one run, or from the smallest to the largest of several."""
    pairs = [(run[base], run[mode]) for run in runs if mode in run and base in run]
    factors = sorted(factor_of(*pair) for pair in pairs)
    if not factors:
        raise DataError(path, None, f"no run has both {mode} and {base}")
    shown = dict.fromkeys(f"{three_digits(factor)}x" for factor in (factors[0], factors[-1]))
    return f"{mode} {' to '.join(shown)} over {base}{beside(pairs)}".replace(" ", NO_BREAK)
