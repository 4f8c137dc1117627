"""The CUDA source of devices/gpu_feedback.py: kernels/feedback.cu with the constants that it shares with the host.

In: a dtype and a kind of sampling. Out: a text for a compiler; of each kind only what it needs is compiled.
"""

from __future__ import annotations

from launchopt import sampling as rules
from launchopt.command import Dtype
from launchopt.feedback import PARTIAL_SUMS
from launchopt.kernels import source
from launchopt.sampling import SamplingKind


def source_of(dtype: Dtype, kind: SamplingKind, threads: int = PARTIAL_SUMS) -> str:
    """The CUDA source for one dtype and kind, with the constants of `sampling`. threads: of a block, whole warps."""
    constants = {
        "DTYPE": int(dtype),
        "KIND": kind.name.upper(),
        "THREADS": threads,
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
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + source("feedback")
