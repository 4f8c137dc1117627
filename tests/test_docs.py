"""The pages are part of the product: their commands compose, their links lead to files, their words are ours."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.config.composing import configured
from support.doc_commands import FENCE, PAGES, Command, PagesFolder, commands_of
from support.paths import ROOT
from support.processes.ended_runs import Keeper

from launchopt.recording.summary_columns import SUMMARY

COMMANDS = [command for page in PAGES for command in commands_of(page)]
SHOWN = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "outputs/reference").glob("*.md"))]
RUNS = [each for each in COMMANDS if each.words[:1] == ["run"] and not {"--help", "mode=help"} & set(each.words)]
RUN_HERE = [each for each in COMMANDS if each.words and not each.mark]
MARK = re.compile(r"needs |\d+ (s|minutes?)\b|hours|installs |changes ")
# Words that the pages do not use, and their kind (what is said instead).
OLD_WORDS = {
    "remed(y|ies)(?!/)": "strategy",
    "predecessor": "gpu-kernel-batcher, or small_1024",
    "rehears": "warm-up run",
    "is told of|was told": "is notified",
    "putting away": "writing results",
    "by the latter|so many of|as without": "a sentence with a subject",
}


def names(command: Command) -> str:
    return f"{command.page.stem}: {command.text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_stand_in_fences_of_their_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^    (launchopt|python -m)", FENCE.sub("", text), re.MULTILINE)
    assert text.count("```") == 2 * len(FENCE.findall(text)), "a fence without a language"


def test_marks_say_what_a_command_needs_or_how_long_it_takes() -> None:
    marks = {command.mark for command in COMMANDS if command.mark}
    assert len(marks) > 5
    assert [mark for mark in marks if not MARK.match(mark)] == []


@pytest.mark.parametrize("command", RUNS, ids=names)
def test_every_run_composes(command: Command) -> None:
    words = [word for word in command.words[1:] if word not in ("-m", "$job")]
    if "--config-dir" not in words and not any(word.startswith("model=./") for word in words):
        configured(*(_first(word) for word in words if not word.startswith("hydra.")))


@pytest.fixture(scope="module")
def pages_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesFolder]:
    folder = tmp_path_factory.mktemp("pages")
    keeper = Keeper(folder / "stderr")
    (folder / "user").mkdir()
    yield PagesFolder(folder / "user", keeper)
    keeper.close()


@pytest.mark.parametrize("command", RUN_HERE, ids=names)
def test_every_command_without_a_mark_runs(command: Command, pages_folder: PagesFolder) -> None:
    ran = pages_folder.run(command)
    said = [line for line in ran.stderr.splitlines() if not line.startswith("all columns: ")]  # of a piped table
    assert (ran.exit_code, said) == (0, [])


def test_the_readme_shows_what_the_first_command_prints(pages_folder: PagesFolder) -> None:
    readme, first = ROOT / "README.md", next(each for each in RUN_HERE if each.page.name == "README.md")
    (shown,) = re.findall(r"^```text\n(device: .*?)^```$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert _labels(shown) == _labels(pages_folder.run(first).stdout)


def test_every_row_of_that_output_is_explained() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    shown = _labels((ROOT / "README.md").read_text(encoding="utf-8").partition("```text")[2].partition("```")[0])
    assert len(shown) > 10
    assert [label for label in shown[1:] if not re.search(rf"^\| [^|]*{re.escape(label)}", page, re.MULTILINE)] == []


def _labels(output: str) -> list[str]:
    """The labels of a result's rows."""
    return [line.strip().split("  ")[0] for line in output.splitlines() if re.match(r"  \w", line)]


def _first(word: str) -> str:
    """The first of the values of a sweep."""
    return word if "[" in word else word.split(",")[0]


@pytest.mark.parametrize("command", COMMANDS, ids=names)
def test_every_script_is_there(command: Command) -> None:
    for name in re.findall(r"scripts/\w+\.(?:py|sh)", command.text):
        assert (ROOT / name).is_file()


def test_the_page_of_scripts_lists_each_but_the_parts_of_the_reference_results() -> None:
    listed = set(re.findall(r"`(\w+\.(?:py|sh))`", (ROOT / "scripts/README.md").read_text(encoding="utf-8")))
    there = {path.name for path in (ROOT / "scripts").iterdir() if path.suffix in (".py", ".sh")}
    assert {name for name in there - listed if not name.startswith("reference_")} == set()
    assert listed - there == set()


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_pages_use_our_words(page: Path) -> None:
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = {word: instead for word, instead in OLD_WORDS.items() if re.search(word, text)}
    assert found == {}


def test_the_columns_that_the_page_on_results_explains_are_there() -> None:
    table = (ROOT / "docs/results.md").read_text(encoding="utf-8").split("## The columns to look at first")[1]
    names = [name for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", line)]
    assert len(names) > 20
    assert [name for name in names if not any(each.startswith(name) for each in SUMMARY.names)] == []


def test_the_page_on_models_names_every_built_in_model() -> None:
    page = (ROOT / "docs/models-and-traces.md").read_text(encoding="utf-8").partition("built-in models are ")[2]
    named = set(re.findall(r"`(\w+)`", page.partition("\n\n")[0]))
    assert {path.stem for path in (ROOT / "conf/model").glob("*.yaml")} - named == set()


def test_the_readme_has_as_many_questions_as_its_heading_says() -> None:
    numbers = dict(zip(("Nine", "Ten", "Eleven", "Twelve"), range(9, 13), strict=True))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^## (\w+) questions\n\n(.*?)\n\n", readme, re.MULTILINE | re.DOTALL)
    assert numbers[found[0]] == len(found[1].splitlines()) - 2


def test_the_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if not re.search(rf": ({page.relative_to(ROOT)})$", nav, re.MULTILINE)] == []


def test_one_version_stands_in_every_file() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest
    assert {newest[1], yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]} == {version}


def test_pre_commit_runs_what_the_checks_run() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    checks = (ROOT / "scripts/check.sh").read_text(encoding="utf-8").splitlines()
    for hook in local["hooks"]:
        assert any(line.startswith(hook["entry"]) for line in checks), hook["entry"]


def test_an_issue_asks_for_what_the_doctor_prints() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8"))
    labels = [part["attributes"]["label"] for part in form["body"]]
    assert any("launchopt doctor" in label for label in labels)
