"""What launches cost a day, in host hours and in idle GPU hours, under each mode.

    launchopt budget model=llama_3_70b tokens_per_day=10e6 from=outputs/reference/gpu/strategies
    launchopt budget launches_per_token=1200 launch_us=5 tokens_per_day=10e6            the textbook: 16.7 h

    model=NAME              model whose layers count: an option of conf/model, or the path of a config.json; default:
                            that of the runs
    tokens_per_day=X        generated tokens a day; 10e6 is 10 million
    from=RUN...             folders with results, which give the launches per token and their cost for each mode
    launches_per_token=X    replaces the measured number, for a mode that launches every command alone
    launches_per_layer=X    the same, per layer of the model
    launch_us=X             replaces the measured microseconds per launch
    gpu_hour_cost=X         adds the cost of the idle hours

In: the keys above, and every summary.parquet below the folders of `from`. Out: a table, and a line for each assumption,
in Markdown if the output is no terminal; with --json the same as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError, DataError, choices, explained, nearest
from runner.config.typed.renamed import current_words
from runner.ending import end
from runner.output_names import STDOUT
from runner.reading import CommandParser, add_json, exit_code, put_json
from runner.screen.pager import console, drawn

if TYPE_CHECKING:
    from launchopt.analysis.verdict.budget import Budget, BudgetLine
    from launchopt.analysis.verdict.budget_question import Ask
    from launchopt.streams.model import ModelShape

NUMBERS = ("tokens_per_day", "launches_per_token", "launches_per_layer", "launch_us", "gpu_hour_cost")
KEYS = ("model", "from", *NUMBERS)
HEADINGS = ("work", "mode", "launches a token", "us a launch", "host h a day", "GPU idle h a day", "cost a day")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: _budget(current_words(options.settings), options.json))


def _budget(settings: Sequence[str], output: Path | None) -> int:
    found = budget(settings)
    if output != STDOUT:
        _show(found)
    put_json(output, asdict(found))
    return 0


def budget(settings: Iterable[str]) -> Budget:
    """Return the budget of `settings` (key=value); ConfigError or DataError for impossible ones."""
    from launchopt.analysis.verdict.budget import measured, textbook

    ask, folders = read_settings(settings)
    if not folders:
        return textbook(ask)
    from launchopt.analysis.tables.rows import own_bases
    from launchopt.recording import results

    own = own_bases(results.read_manifests(folders))
    return measured(ask, results.read_summaries(folders), ", ".join(map(str, folders)), own)


def read_settings(settings: Iterable[str]) -> tuple[Ask, list[Path]]:
    """Return the budget's inputs, and the folders with measurements."""
    from launchopt.analysis.verdict.budget_question import Ask

    numbers: dict[str, float] = {}
    folders: list[Path] = []
    model: ModelShape | None = None
    is_listing = False  # True after from=: further words that are no key are folders
    for setting in settings:
        key, equals, value = setting.partition("=")
        if is_listing and key not in KEYS:
            folders.append(Path(setting))
            continue
        if not equals or key not in KEYS:
            problem = "no such setting" if equals else "not of the form KEY=VALUE"
            raise DataError(
                setting, None, explained(problem, choices(KEYS), [f"{key}=..." for key in nearest(key, KEYS)])
            )
        is_listing = key == "from"
        if key in numbers or (key == "model" and model is not None):
            raise ConfigError(key, value, "given twice")
        if key == "from":
            folders.append(_folder(value))
        elif key == "model":
            model = read_model(value)
        else:
            numbers[key] = _number(key, value)
    if "tokens_per_day" not in numbers:
        raise ConfigError("tokens_per_day", "", "missing: the number of tokens generated per day")
    ask = Ask(
        tokens_per_day=numbers["tokens_per_day"],
        model=None if model is None else model.name,
        layers=None if model is None else model.layers,
        linears=() if model is None else tuple(model.linear_sizes()),
        experts_per_token=0 if model is None or not model.experts else model.experts_per_token,
        launches_per_token=numbers.get("launches_per_token"),
        launches_per_layer=numbers.get("launches_per_layer"),
        launch_us=numbers.get("launch_us"),
        gpu_hour_cost=numbers.get("gpu_hour_cost"),
    )
    return ask, folders


def _folder(value: str) -> Path:
    if not value:
        raise ConfigError("from", "", "must be a folder with results")
    return Path(value)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(key, text, "must be a number, such as 5 or 10e6") from None


def read_model(name: str) -> ModelShape:
    """Return an option of conf/model, or of a plugin, or the model in a config.json.

    ConfigError or DataError for an unknown one.
    """
    from omegaconf import OmegaConf

    from launchopt.plugins.found import names, plugin_of
    from launchopt.streams.model import ModelShape
    from runner.config.model_files import is_path, model_at

    if is_path(name):
        return model_at(name).shape()

    checkout = Path(__file__).parent.parent / "conf" / "model"
    options = checkout if checkout.is_dir() else resources.files("runner.conf") / "model"
    known = {entry.name.removesuffix(".yaml"): entry for entry in options.iterdir() if entry.name.endswith(".yaml")}
    if name not in known and (plugin := plugin_of("model", name)) is not None:
        from runner.config.plugged import model_of

        return model_of(plugin).shape()
    if name not in known:
        every = {*known, *names("model")}
        raise ConfigError(
            "model",
            name,
            explained("no such model", choices(every), [f"model={each}" for each in nearest(name, every)]),
        )
    shape = OmegaConf.to_container(OmegaConf.create(known[name].read_text(encoding="utf-8")))
    assert isinstance(shape, dict)
    return ModelShape(**{each.name: shape[each.name] for each in fields(ModelShape) if each.name in shape})


def _cells(line: BudgetLine, has_cost: bool) -> list[str]:
    from launchopt.analysis.tables.columns import NOTHING

    at_most = "≤ " if line.idle_is_bound else ""
    idle = NOTHING if line.gpu_idle_hours is None else at_most + _shown(line.gpu_idle_hours)
    cost = [NOTHING if line.cost is None else at_most + _shown(line.cost)] if has_cost else []
    figures = (line.launches_per_token, line.launch_us, line.host_hours)
    return [line.work, line.mode, *map(_shown, figures), idle, *cost]


def _shown(value: float) -> str:
    """Return a figure as text. Below 1 it has three digits, which launches per token of a graph need."""
    from launchopt.analysis.tables.columns import number

    return number(value) if value >= 1 else f"{value:.3g}"


def _show(found: Budget) -> None:
    from launchopt.analysis.tables.columns import FULL, Column
    from launchopt.analysis.tables.markdown import body, escaped

    has_cost = any(line.cost is not None for line in found.lines)
    headings = HEADINGS if has_cost else HEADINGS[:-1]
    columns: list[Column[str]] = [Column(name, str, FULL, name in ("work", "mode")) for name in headings]
    cells = [_cells(line, has_cost) for line in found.lines]
    if not sys.stdout.isatty():
        print(body(columns, cells), "Assumptions:", sep="\n\n", end="\n\n")
        print("\n".join(f"- {escaped(assumption)}" for assumption in found.assumptions))
        return
    from rich.markup import escape

    screen = console()
    screen.print(drawn(columns, cells))
    for assumption in found.assumptions:
        screen.print(f"  {escape(assumption)}", style="dim")


def _parser() -> CommandParser:
    parser = CommandParser("budget", __doc__)
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="as above; from=RUN may be given several times"
    )
    add_json(parser)
    return parser


if __name__ == "__main__":
    end(main)
