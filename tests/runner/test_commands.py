"""`launchopt` and its subcommands."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import launchopt
from launchopt import distribution
from runner import commands

# Tools that do something without words.
WITHOUT_WORDS = {"run", "doctor", "matrix", "bench"}


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of `launchopt WORDS`."""
    try:
        code = commands.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_alone_it_lists_every_subcommand_and_what_to_type_first(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "")
    lines = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert lines == [*commands.SUBCOMMANDS, "launchopt"]
    assert "  launchopt run workload=gemv_micro mode=batched\n" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("rport", "did you mean launchopt report?"),
        ("verdit", "did you mean launchopt verdict?"),
        ("rum", "did you mean launchopt run?"),
        ("nope", "launchopt lists all\n"),
        ("decode", "did you mean launchopt run workload=decode?"),
        ("xyz", "lists all"),
    ],
)
def test_an_unknown_subcommand_is_answered_with_the_nearest(
    word: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, word, "outputs")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: launchopt '{word}': no such command; ")
    assert wanted in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("--version",), ("run", "--version"), ("workload=decode", "--version")])
def test_the_version_is_ours(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, *words) == (0, f"launchopt {launchopt.__version__}\n", "")
    assert launchopt.__version__ == metadata.version("launchopt")


def test_the_package_has_no_other_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        launchopt.nope  # noqa: B018


@pytest.mark.parametrize(
    "words", [("mode=graph",), ("-m", "mode=graph,batched"), ("+x=1",), ("~model",), ("--cfg", "job")]
)
def test_settings_and_options_need_no_subcommand(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr("runner.cli.run", lambda given: called.append(tuple(given)) or 0)
    assert commands.main(words) == commands.main(["run", *words]) == 0
    assert called == [words, words]


@pytest.mark.parametrize("name", commands.SUBCOMMANDS)
def test_every_tool_prints_its_help_as_it_is_called(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"launchopt {name} " in out


@pytest.mark.parametrize("name", sorted(set(commands.SUBCOMMANDS) - WITHOUT_WORDS))
def test_a_tool_without_its_arguments_prints_how_to_call_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, name)
    assert (code, out) == (2, "")
    assert err.startswith(f"usage: launchopt {name} ")
    assert f"\n    launchopt {name} " in err, "an example"
    assert f"`launchopt {name} --help`" in err
    assert "error:" not in err


@pytest.mark.parametrize("words", ["runner report --help", "runner.report --help", "runner --help"])
def test_a_closed_pipe_ends_a_program_quietly(words: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


def test_every_module_of_a_subcommand_runs_alone() -> None:
    for module, _, function in commands.SUBCOMMANDS.values():
        assert callable(getattr(import_module(module), function))


def test_an_install_command_can_be_typed_in_a_checkout_and_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distribution.install_command("cuda13") == "pip install -e '.[cuda13]'"
    assert distribution.install_command() == "pip install -e ."
    checkout = Path.cwd()
    monkeypatch.chdir(tmp_path)
    assert distribution.install_command("report") == f"pip install -e '{checkout}[report]'"
    monkeypatch.setattr(distribution, "__file__", str(tmp_path / "launchopt" / "distribution.py"))
    assert distribution.install_command("cuda13") == "pip install 'launchopt[cuda13]'"
    assert distribution.install_command() == "pip install launchopt"
