"""What a tired user types after `launchopt TOOL`: at most two lines say what is allowed and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.refusals import MOST_CHARACTERS

from runner import commands

MISTAKES = {
    "verdct r1": "no such command; launchopt lists all; did you mean launchopt verdict?",
    "run verdict nope": "nope: no such folder",
    # options
    "report --plt x.svg r1": "--plt: no such option; allowed: --check, ",
    "report --stratgies r1": "did you mean --strategies?",
    "verdict --jsn": "did you mean --json?",
    "compare a b --fail_on slower": "did you mean --fail-on?",
    "trace --outputs x.parquet": "did you mean --output?",
    "budget --bogus": "--bogus: no such option; allowed: --help, --json",
    "matrix --workload": "--workload: no such option; allowed: --help",
    "nsys --bogus": "allowed: --help, --output",
    "doctor --flors": "did you mean --floors or --no-floors?",
    "dataset --columns --tabel": "did you mean --table?",
    # words
    "matrix gemv": "gemv: not expected here",
    "doctor bogus": "bogus: not expected here",
    "compare a": "missing: B",
    "compare a b c": "c: not expected here",
    "nsys_compare a b": "'a': must be a mode and its profile, as MODE=FILE",
    "dataset r1": "missing: --output FILE.parquet",
    "report --html": "name a folder with results, or a README with --readme",
    # values
    "report --plot r1": "--plot: r1: the name must end in .svg or .png or .pdf",
    "report r1 --output x.txt": "--output: x.txt: the name must end in .md",
    "report --html outputs": "--html: outputs: the name must end in .html; without a name, put the option last",
    "report r1 --timeline x.txt": "--timeline: x.txt: the name must end in .json or .json.gz",
    "report r1 --timeline x.json --timeline-limit -1": "--timeline-limit: -1: must be a whole number of at least 1",
    "report r1 --slo-p99-us nan": "--slo-p99-us: nan: must be a number above 0",
    "verdict --json r1": "--json: r1: the name must end in .json; without a name, put the option last",
    "dataset r1 --output x.csv": "--output: x.csv: the name must end in .parquet",
    "compare a b --markdown x.txt": "the name must end in .md",
    "compare a b --fail-on sloer": "--fail-on: sloer: not one of its values; allowed: slower, undecided; did you",
    "compare a b --effect 5": "--effect=5: not above 0% and below 100%, such as 1% or 0.01; did you mean --effect 5%?",
    "doctor --device gpu": "--device: gpu: not one of its values; allowed: auto, cpu, cuda",
    "doctor --repeats 0": "--repeats: 0: must be a whole number from 1 to 1000",
    "doctor --index abc": "--index: abc: must be a whole number of at least 0",
    "doctor --save x.txt": "--save: x.txt: the name must end in .json",
    "tune outputs --save x.txt": "--save: x.txt: the name must end in .json",
    "bench rng": "no such part; allowed: ring, batcher,",
    "bench --repeats 0": "--repeats: 0: must be a whole number of at least 1",
    "budget tokens=1": "tokens=1: no such setting; allowed: from, gpu_hour_cost,",
    "budget r1": "r1: not of the form KEY=VALUE",
    "budget tokens_per_day=1 model=llama3": "no such model; allowed: ",
    "completion tcsh": "SHELL: tcsh: not one of its values; allowed: bash, zsh, fish, words",
    # folders
    "report outptus": "outptus: no such folder; did you mean outputs?",
    "verdict outptus": "outptus: no such folder; did you mean outputs?",
    "compare outptus outputs": "A=outptus: no such folder; allowed: FOLDER or FOLDER:MODE; did you mean outputs?",
    "dataset outptus --output x.parquet": "outptus: no such folder; did you mean outputs?",
    "nsys nope.sqlite": "nope.sqlite: no such file",
    "reliability nope": "nope: no such folder",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_answered_with_what_to_type(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outputs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["launchopt", *typed.split()])
    try:
        code: object = commands.main(typed.split())
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert MISTAKES[typed] in told.err
    assert told.err.startswith("error: ")
    assert told.err.count("\n") <= 2
    assert len(told.err) <= MOST_CHARACTERS
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_help_of_a_tool_is_asked_for_in_either_order(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        commands.main(["help", "verdict"])
    assert "--calibration" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["verdict"], ["report"], ["tune"], ["advise", "--model"], ["advise", "--output"], ["trace"]]
)
def test_an_empty_path_is_no_name_of_the_current_folder(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main([*words, ""])
    assert ended.value.code == 2
    assert "empty; must name a file or a folder" in capsys.readouterr().err
