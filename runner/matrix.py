"""Table of the workloads that each mode can run, by device and dtype. Each mode's own `refusal` gives the answers.

    launchopt matrix        the table, as Markdown

In: all modes and workloads, with those of plugins, and a small trace and list of our own for the workloads that read
one. Out: a table with a row per mode and device and a column per workload. A cell is `yes`, or the letter of a footnote
with the reason; if dtypes differ, one per dtype. A README has the table between `<!-- matrix -->` and `<!-- /matrix
-->`. This module loads neither CUDA nor torch: a mode answers without its device.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose
from omegaconf import OmegaConf

from launchopt.analysis.tables.columns import Column
from launchopt.analysis.tables.markdown import body, escaped
from launchopt.command import Dtype
from launchopt.devices.base import DeviceInfo
from launchopt.distribution import install_command
from launchopt.errors import DataError
from launchopt.modes import MODES, mode_class
from launchopt.scratch import scratch
from launchopt.workloads.base import Workload
from runner.config.loading import hydra_of
from runner.config.objects import to_config
from runner.config.plugged import usable_options
from runner.config.schema import Config
from runner.ending import end
from runner.plan.streams import stream_on
from runner.reading import CommandParser

KINDS = ("cpu", "cuda")
DTYPES = ("fp32", "fp16", "bf16")
MARKS = ("<!-- matrix -->", "<!-- /matrix -->")
LEGEND = (
    "`yes`: the mode runs the workload, in every dtype unless some are named. A letter: it does not, for the reason "
    "below. `trace`: a trace of one thread, whose GEMMs have one column. `list`: GEMMs of one column, without groups, "
    "some of which share a weight. A list with groups is one request. No weights are quantised."
)
_MEMORY_BYTES, _CACHE_BYTES, _PACK_BYTES = 8 << 30, 1 << 20, 1 << 20  # sizes of an imagined device

# (mode, workload, kind of device, dtype) -> the reason to refuse it; None: it runs
Answers = Mapping[tuple[str, str, str, str], str | None]


@dataclass(frozen=True, slots=True)
class Matrix:
    """The answers of every mode for every workload, device and dtype."""

    workloads: tuple[str, ...]
    answers: Answers
    # mode -> the pip extra that installs the mode's own packages; only modes that have such packages (`Mode.packages`)
    extras: Mapping[str, str]

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that were asked."""
        return tuple(dict.fromkeys(mode for mode, *_ in self.answers))

    def cell(self, mode: str, workload: str, kind: str) -> dict[str, str | None]:
        """Return the answers by dtype."""
        return {dtype: self.answers[mode, workload, kind, dtype] for dtype in DTYPES}


def build_matrix() -> Matrix:
    """Ask every mode about the smallest form of every workload."""
    options = usable_options()
    modes, workloads = [mode for mode in options["mode"] if mode in MODES], tuple(options["workload"])
    answers = {}
    with scratch() as folder:
        with hydra_of():
            configs = {workload: _config(workload, folder) for workload in workloads}
        for workload, config in configs.items():
            for dtype in DTYPES:
                config.workload.dtype = Dtype[dtype]
                for kind in KINDS:
                    stream = stream_on(config, _made_up(kind))
                    for mode in modes:
                        answers[mode, workload, kind, dtype] = mode_class(mode).refusal(kind, stream)
    extras = {mode: mode_class(mode).extra for mode in modes if mode_class(mode).packages}
    return Matrix(workloads, answers, extras)


def _config(workload: str, folder: Path) -> Config:
    kind = OmegaConf.get_type(compose("config", [f"workload={workload}"]).workload)
    assert kind is not None
    return to_config(compose("config", [f"workload={workload}", *smallest(kind, folder)]))


def smallest(kind: type[Workload], folder: Path) -> list[str]:
    """Return the overrides that make a workload small. A trace or list that it reads is written into `folder`."""
    files = {"trace": small_trace, "list": small_list}
    found = []
    for word in kind.smallest:
        needed = {name: write(folder) for name, write in files.items() if f"{{{name}}}" in word}
        found.append(word.format(**needed))
    return found


def small_trace(folder: Path) -> Path:
    """Write a trace of a few tokens through two linear layers into `folder`, and return its path."""
    layers = ((64, 128), (128, 64))
    gemms = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 1,
            "ts": 10 * at,
            "dur": 8,
            "args": {"Input Dims": [[1, k], [k, m]], "Input type": ["c10::Half", "c10::Half"]},
        }
        for at, (m, k) in enumerate(layers * 4)
    ]
    path = folder / "small.json"
    path.write_text(json.dumps({"traceEvents": gemms}))
    return path


def small_list(folder: Path) -> Path:
    """Write a list of GEMMs into `folder`, and return its path. Commands of its first two rows share their weights."""
    path = folder / "small.csv"
    path.write_text("m,n,k,count,weight\n64,1,128,8,first\n128,1,64,8,second\n64,1,64,4,\n")
    return path


def _made_up(kind: str) -> DeviceInfo:
    return DeviceInfo(kind, 0, "none", _MEMORY_BYTES, _CACHE_BYTES, "no memory", _PACK_BYTES)


def matrix_markdown(matrix: Matrix) -> str:
    """Return the table with its footnotes; ends with a newline."""
    reasons: dict[str, str] = {}  # reason -> letter of its footnote

    def letter(reason: str) -> str:
        return reasons.setdefault(reason, _letters(len(reasons)))

    def text(answers: Mapping[str, str | None]) -> str:
        marks = {dtype: "yes" if why is None else letter(why) for dtype, why in answers.items()}
        distinct = dict.fromkeys(marks.values())
        if len(distinct) == 1:
            return next(iter(distinct))
        alike = {mark: [dtype for dtype, other in marks.items() if other == mark] for mark in distinct}
        return "; ".join(f"{', '.join(dtypes)}: {mark}" for mark, dtypes in alike.items())

    lines = []
    for mode in matrix.modes:
        rows = {kind: [text(matrix.cell(mode, workload, kind)) for workload in matrix.workloads] for kind in KINDS}
        if rows["cpu"] == rows["cuda"]:
            rows = {"cpu, cuda": rows["cpu"]}
        lines += [[mode, kind, *cells] for kind, cells in rows.items()]
    heads = ["mode", "device", *matrix.workloads]
    columns: list[Column[object]] = [Column(head, str, frozenset(), is_text=True) for head in heads]
    notes = [f"{mark}: {reason}" for reason, mark in reasons.items()] + list(_extras(matrix))
    below = ["\n".join(f"- {escaped(note)}" for note in notes)] if notes else []
    return "\n\n".join([LEGEND, body(columns, lines), *below]) + "\n"


def _letters(index: int) -> str:
    """Return the name of a footnote: a, b, ..., z, aa, ab, ..."""
    more, last = divmod(index, len(string.ascii_lowercase))
    return (_letters(more - 1) if more else "") + string.ascii_lowercase[last]


def _extras(matrix: Matrix) -> Iterable[str]:
    for extra in dict.fromkeys(matrix.extras.values()):
        modes = [mode for mode, needed in matrix.extras.items() if needed == extra]
        yield f"{', '.join(modes)}: to install with `{install_command(extra)}`"


def sync_matrix(text: str, path: Path) -> str:
    """Return `text` with a current table between the marks, or unchanged without marks; DataError for a single mark."""
    start, end = (text.find(mark) for mark in MARKS)
    if start < 0 and end < 0:
        return text
    if start < 0 or end < start:
        line = text.count("\n", 0, max(start, end)) + 1
        raise DataError(path, line, f"{MARKS[0]} and {MARKS[1]} do not pair up")
    return f"{text[: start + len(MARKS[0])]}\n{matrix_markdown(build_matrix())}{text[end:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the matrix. `argv`: without the program's name; it may only ask for help."""
    CommandParser("matrix", __doc__).parsed(argv, needs_words=False)
    print(matrix_markdown(build_matrix()), end="")
    return 0


if __name__ == "__main__":
    end(main)
