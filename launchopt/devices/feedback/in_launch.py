"""Source text and arguments of kernels that feed back results: constants, and struct Feedback.

Three kernels feed back results: the kernel of `devices.feedback.kernel`, the end of a step in a loop
(`devices.feedback.step_loop`), and the megakernel at the end of its own launch. All include
kernels/tokens/sampling.cuh. Only the code for one kind of sampling is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from launchopt import sampling as rules
from launchopt.command import Dtype
from launchopt.devices.feedback.host import PARTIAL_SUMS
from launchopt.kernels import source
from launchopt.kernels.shared import FEEDBACK, word_of
from launchopt.sampling import Sampling, SamplingKind
from launchopt.types import Table

if TYPE_CHECKING:
    from launchopt.devices.feedback.stages import FeedbackStages

FIELDS = FEEDBACK.names or ()  # fields of struct Feedback, one word each
# Words of struct Feedback that change with each launch.
ARGUMENTS, ROWS = word_of(FEEDBACK, "arguments"), word_of(FEEDBACK, "rows")


class FeedbackLayout(NamedTuple):
    """Sizes and addresses of the rows that are fed back."""

    hidden: int  # elements of a hidden vector
    vocab: int  # elements of a row of logits; not used without sampling
    most_rows: int  # largest number of rows in one launch
    embedding: int  # device address of [vocab, hidden] in storage dtype; not read without sampling
    row_bytes: int  # bytes from one row of the embedding to the next


@dataclass(frozen=True, slots=True)
class LaunchFeedback:
    """The parts with which a kernel feeds back its own results."""

    head: str  # text to put before the kernel's source
    words: Table  # struct Feedback
    stages: FeedbackStages  # memory for the arguments of each batch


def head_of(kind: SamplingKind) -> str:
    """Return the text to put before a source that includes tokens/sampling.cuh: `#define`s of KIND and constants."""
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
    """Return the source of kernels/feedback.cu for one dtype and kind. threads: per block, a multiple of 32."""
    return _defined({"DTYPE": int(dtype), "THREADS": threads}) + head_of(kind) + source("feedback")


def loop_source(dtype: Dtype, head: str, is_while: bool, threads: int = PARTIAL_SUMS) -> str:
    """Return the source of kernels/step_loop.cu. head: text of `head_of`. is_while: the loop is a conditional node."""
    return _defined({"DTYPE": int(dtype), "THREADS": threads, "WHILE": int(is_while)}) + head + source("step_loop")


def _defined(constants: dict[str, int | str]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def words_of(sampling: Sampling, layout: FeedbackLayout, ns: int = 0) -> Table:
    """Return the words of struct Feedback. Words that a launch or a program sets are 0.

    ns: device address of the counter of sampling ns, which only the megakernel uses.
    """
    values: dict[str, int | float] = {
        "pitch": layout.most_rows,
        "hidden": layout.hidden,
        "vocab": layout.vocab,
        "embedding": layout.embedding,
        "row_bytes": layout.row_bytes,
        "start": rules.generator_start(sampling.seed),
        "inverse_temperature": 1.0 / sampling.temperature,
        "k": min(sampling.top_k, rules.MOST_VOCAB),
        "p": sampling.top_p,
        "ns": ns,
    }
    feedback = np.zeros(1, FEEDBACK)
    for name, value in values.items():
        feedback[name] = value
    return feedback.view(np.int64)
