"""The keys of every --json are those on docs/results.md. After an intended change, copy them from the failed test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pytest
from support.paths import ROOT, TESTS

from runner import budget, compare, prefixes, verdict
from runner.doctor.__main__ import main as doctor
from runner.profiles import trace
from runner.report import __main__ as report

PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- json keys -->\n", "<!-- /json keys -->"
RUNS = str(ROOT / "outputs" / "reference" / "gpu" / "strategies" / "decode_16")
BUDGET = ["model=llama_3_70b", "tokens_per_day=10e6", f"from={RUNS}"]
Main = Callable[[Sequence[str]], int]
CALLS: dict[str, tuple[Main, list[str]]] = {
    "report": (report.main, [RUNS]),
    "verdict": (verdict.main, [RUNS]),
    "compare": (compare.main, [f"{RUNS}:baseline", f"{RUNS}:graph"]),
    "budget": (budget.main, BUDGET),
    "prefixes": (prefixes.main, [str(TESTS / "corpus" / "prompts.jsonl")]),
    "doctor": (doctor, ["--no-floors"]),
    "trace": (trace.main, [str(TESTS / "corpus" / f"{name}.json") for name in ("kineto", "collectives")]),
}
# Objects whose keys are names from the data, or a calibration as `launchopt doctor --save` writes it.
OF_DATA = ("_by_name", "_by_kind", "other_events", "calibration", "not_measured")


def keys(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and the name of every key."""
    if isinstance(value, list):
        for each in value:
            yield from keys(each, f"{place}[]")
    if isinstance(value, dict):
        for name, inner in value.items():
            yield place, name
            if not name.endswith(OF_DATA):
                yield from keys(inner, f"{place}.{name}" if place else name)


def outline(content: dict[str, object]) -> str:
    """Return a line per place with its keys."""
    places: dict[str, list[str]] = {}
    for place, name in dict.fromkeys(keys(content)):
        places.setdefault(place or "top", []).append(name)
    return "".join(f"- `{place}`: {', '.join(names)}\n" for place, names in places.items())


@pytest.mark.parametrize("command", CALLS)
def test_the_page_has_the_keys_of_every_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, words = CALLS[command]
    assert main([*words, "--json"]) in (0, 1), "1: nothing here is wrong with the option"
    found = f"`launchopt {command}`:\n\n{outline(json.loads(capsys.readouterr().out))}"
    block = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert found in block, f"docs/results.md lacks:\n{found}"


def test_the_page_has_no_other_command() -> None:
    block = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert block.count("`launchopt ") == len(CALLS)
