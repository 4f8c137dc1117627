"""What kernels that feed back are compiled with (kernels/tokens/sampling.cuh), and struct Feedback of a launch.

In: a dtype, and how is sampled. Out: texts for a compiler, of each kind only what it needs being compiled: of
devices/gpu_feedback.py's kernel, and what goes before kernels/megakernel.cu. And the words of struct Feedback
(kernels/tokens/feedback.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launchopt import sampling as rules
from launchopt.command import Dtype
from launchopt.devices.feedback.host import PARTIAL_SUMS
from launchopt.kernels import source
from launchopt.sampling import Sampling, SamplingKind

if TYPE_CHECKING:
    from launchopt.devices.feedback.stages import FeedbackStages

# Of struct Feedback, a word each.
FIELDS = (
    *("arguments", "rows", "pitch", "hidden", "vocab", "embedding", "row_bytes", "start"),
    *("inverse_temperature", "k", "p", "ns", "found"),
)
REALS = ("inverse_temperature", "p")
ARGUMENTS, ROWS = map(FIELDS.index, ("arguments", "rows"))  # which each launch has anew
FOUND = FIELDS.index("found")  # which each program of a whole step has


@dataclass(frozen=True, slots=True)
class LaunchFeedback:
    """How a launch feeds back what it has computed itself: what its source begins with, struct Feedback, and what it is
    told of each batch."""

    head: str
    words: NDArray[np.int64]
    stages: FeedbackStages


def head_of(kind: SamplingKind) -> str:
    """Return what stands before a source that includes tokens/sampling.cuh: KIND and the constants of `sampling`."""
    constants: dict[str, int | str] = {
        "KIND": kind.name.upper(),
        "PARTIAL_SUMS": PARTIAL_SUMS,
        "CAPACITY": 4 * PARTIAL_SUMS,
        "NO_ID": rules.NO_ID,
        "GOLDEN": f"{rules.GOLDEN}ull",
        "MIX_A": f"{rules.MIX_A}ull",
        "MIX_B": f"{rules.MIX_B}ull",
        "U_BITS": rules.U_BITS,
        "WEIGHT_BITS": rules.WEIGHT_BITS,
        "LEAST_EXPONENT": repr(rules.LEAST_EXPONENT),
        "LOG2_E": repr(rules.LOG2_E),
        "POWERS": ", ".join(map(repr, rules.POWERS)),
        "LAST_POWER": len(rules.POWERS) - 1,
    }
    return _defined(constants)


def source_of(dtype: Dtype, kind: SamplingKind, threads: int = PARTIAL_SUMS) -> str:
    """The CUDA source of kernels/feedback.cu for one dtype and kind. threads: of a block, whole warps."""
    return _defined({"DTYPE": int(dtype), "THREADS": threads}) + head_of(kind) + source("feedback")


def _defined(constants: dict[str, int | str]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def words_of(
    sampling: Sampling, hidden: int, vocab: int, most_rows: int, embedding: int, row_bytes: int, ns: int = 0
) -> NDArray[np.int64]:
    """Struct Feedback, but for what each launch has anew, or each program of a whole step. ns: an address, or 0."""
    values: dict[str, int | float] = {
        "pitch": most_rows,
        "hidden": hidden,
        "vocab": vocab,
        "embedding": embedding,
        "row_bytes": row_bytes,
        "start": rules.generator_start(sampling.seed),
        "inverse_temperature": 1.0 / sampling.temperature,
        "k": min(sampling.top_k, rules.MOST_VOCAB),
        "p": sampling.top_p,
        "ns": ns,
    }
    words = np.zeros(len(FIELDS), np.uint64)
    for name, value in values.items():
        words[FIELDS.index(name)] = np.float64(value).view(np.uint64) if name in REALS else value
    return words.view(np.int64)
