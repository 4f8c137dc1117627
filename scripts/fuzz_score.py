"""The score of a campaign of scripts/fuzz.py: the inputs tried so far, what they did, and the file that holds them.

In: trials, and the file of an earlier start. Out: counts and findings as JSON, which `launchopt reliability` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from support.results.hostile_commands import KINDS, Finding

from launchopt.analysis.tables.trials import FUZZ
from launchopt.devices.cpu.info import cpu_info
from launchopt.errors import DataError, printable
from launchopt.files import save_json
from launchopt.recording.environment import environment
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.reliability import read_trials

TEXT_CHARACTERS = 5000  # of a finding in the file


class Trial(NamedTuple):
    """One input, the commands that were started for it, and what it did."""

    what: str
    number: int
    started: list[str]
    found: list[Finding]


@dataclass
class Score:
    """The inputs tried so far, and what they did."""

    seed: int  # number of the first round
    what: Sequence[str]  # kinds of input, each of which every round tries
    next: int  # number of the next round
    started_utc: str
    environment: dict[str, Any]
    tried: Counter[str] = field(default_factory=Counter)
    started: Counter[str] = field(default_factory=Counter)  # commands
    findings: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None, seed: int, what: Sequence[str]) -> Score:
        """Return the score in a file, a new one if there is none.

        Raises DataError for a file that cannot be read or written, or that is of another campaign.
        """
        here = environment()
        if path is not None and not path.parent.is_dir():  # an error now, not after the first round
            raise DataError(path, None, f"{path.parent} is no folder")
        about = None if path is None else read_trials(path, FUZZ, "fuzz.py")
        if path is None or about is None:
            return cls(seed, what, seed, datetime.now(UTC).isoformat(timespec="seconds"), here)
        names = about.get("what") or [*about["tried"]]  # an older file does not say it
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(path, None, "not what scripts/fuzz.py writes: what")
        before = _identity(about["seed"], names, about["environment"])
        if before != (mine := _identity(seed, what, here)):
            other = "; ".join(f"{key} {before[key]}, not {mine[key]}" for key in mine if before[key] != mine[key])
            raise DataError(path, None, f"of another campaign ({other}); choose another --json")
        counts = (Counter(about[name]) for name in ("tried", "started"))
        return cls(seed, what, about["next"], about["started_utc"], here, *counts, about["findings"])

    def add(self, trial: Trial) -> None:
        """Count an input, and print what it did."""
        self.tried[trial.what] += 1
        self.started.update(trial.started)
        for kind, text in trial.found:
            text = printable(text[:TEXT_CHARACTERS])
            self.findings.append({"what": trial.what, "number": trial.number, "kind": kind, "text": text})
            print(f"{trial.what} {trial.number}: {kind}: {text}\n", flush=True)

    def harmful(self, name: str) -> int:
        """Return the number of inputs of a kind that did harm."""
        return len({each["number"] for each in self.findings if each["what"] == name})

    def counts(self) -> dict[str, int]:
        """Return the number of findings of each kind."""
        return {kind: sum(each["kind"] == kind for each in self.findings) for kind in KINDS}

    def write(self, path: Path | None) -> None:
        """Write the score as JSON, unless there is no file for it."""
        if path is not None:
            about = {"schema_version": SCHEMA_VERSION, "started_utc": self.started_utc, "seed": self.seed}
            about |= {"what": [*self.what], "next": self.next, "tried": self.tried, "started": self.started}
            about |= {"counts": self.counts(), "findings": self.findings, "environment": self.environment}
            save_json(path, about | {"processor": cpu_info().name})


def _identity(seed: int, what: Sequence[str], about: dict[str, Any]) -> dict[str, str]:
    """Return what a file and a start must agree on, so that the start goes on with the campaign of the file."""
    return {"seed": f"{seed}", "what": ", ".join(sorted(set(what))), "revision": str(about.get("git_revision"))}
