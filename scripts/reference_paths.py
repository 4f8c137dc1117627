"""The code that each kind of reference result depends on: after a change to it, a result is stale.

A path stands for all files that begin like it: `launchopt/kernels/step` for step_gemm.cu and for all of steps/. Listed
is the code that runs during a measurement, and that of the command that is measured, such as advise or bench. How
results are stored, checked and shown is not listed: if that changed a figure, the tests on the tables would fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launchopt.recording.environment import code_sha1

HASH_DIGITS = 12
PRODUCING = tuple(  # not overload.py, which only judges what was measured
    f"launchopt/producing/{name}"
    for name in (
        *("blocks", "continuous", "driver", "early_records", "prepared_steps", "production", "request_steps"),
        *("routing", "split_driver"),
    )
)
LOOP = tuple(f"launchopt/{name}" for name in ("queue", "batching", "devices/loops", "workloads"))
LOOP = (*LOOP, *PRODUCING, "runner/worker")
CPU = (*LOOP, "launchopt/devices/cpu")
GPU = (*LOOP, *(f"launchopt/{name}" for name in ("timing", "devices/cuda", "devices/cublaslt", "kernels/common")))
GPU = (*GPU, *(f"launchopt/kernels/{name}" for name in ("gemv", "ops", "fused")))
STEPS = (
    *("launchopt/devices/steps", "launchopt/devices/feedback"),
    *(f"launchopt/kernels/{name}" for name in ("step", "attention", "tokens", "feedback")),
)
RESIDENT = ("launchopt/devices/resident", "launchopt/kernels/persistent")
MEGAKERNEL = tuple(f"launchopt/{name}" for name in ("devices/megakernel", "devices/instructions", "kernels/megakernel"))
# Triton and PyTorch with their modes, and the part of PyTorch that runs commands without steps.
TRITON = ("launchopt/devices/triton", "launchopt/modes/triton_", "launchopt/modes/fused_triton")
TORCH_COMMANDS = tuple(f"launchopt/devices/pytorch/{name}" for name in ("commands", "batches", "views"))
TORCH_COMMANDS = (*TORCH_COMMANDS, "launchopt/modes/torch_eager")
LIBRARIES = ("launchopt/devices/pytorch", "launchopt/modes/torch_", *TRITON)
EXPERTS = ("launchopt/streams/experts", "launchopt/kernels/expert", "launchopt/devices/steps")
QUANTISED = ("launchopt/weights", "launchopt/kernels/quantise")
PEERS = ("launchopt/devices/peers", "launchopt/kernels/all_reduce")
MODES = tuple(  # of our own: not those of PyTorch and Triton
    f"launchopt/modes/{name}"
    for name in (
        *("__init__", "base", "batched", "coalesced", "cublaslt_fp8", "engine", "expert_kernel", "fused_elementwise"),
        *("fused_epilogue", "fused_qkv", "graph", "grouped", "kernel", "megakernel", "multistream", "options", "pdl"),
        *("persistent", "pointer_array", "stack"),
    )
)
OURS = (*GPU, *MODES, *STEPS, *RESIDENT, *MEGAKERNEL)
ALL_MODES = (*OURS, *LIBRARIES)
ARRIVALS = ("launchopt/arrivals", "launchopt/prefixes")
# What writes the files of a run: not what describes the machine, tells results apart or reads them.
RECORDING = tuple(
    f"launchopt/recording/{name}"
    for name in ("columns", "kernels", "launch_rows", "recorder", "results", "row_writer", "spool", "summary")
)
# The modules of advise that choose a stack, and the check of the choice: not those that write the answer and its page.
ADVISE = (
    "scripts/advised.py",
    *(
        f"runner/advise/{name}.py"
        for name in (
            *("__main__", "batching", "candidates", "compiling", "cost", "floors", "halving", "prefixes", "question"),
            *("search", "trials"),
        )
    ),
)


def _bench(*files: str) -> tuple[str, ...]:
    return tuple(f"runner/bench/{name}.py" for name in (*files, "figures", "processes"))


# The folder of results, or the beginning of its path, and its code. The longest that fits holds.
_DEPENDS: Mapping[str, tuple[str, ...]] = {
    "readme": ALL_MODES,
    "goals": ALL_MODES,
    "waterfall": (*GPU, *MODES, *STEPS),
    "advised/gpu": (*ALL_MODES, *ADVISE),
    "advised/cpu2": (*CPU, *MODES, "launchopt/devices/steps", *ADVISE),
    "gpus": (*GPU, *MODES, *STEPS),
    "gpus/jobs_joblib": (*GPU, *MODES, "runner/run", "runner/parallel"),
    "gpus/split": (*GPU, *MODES, *STEPS, *PEERS),
    "many_gpus": (*GPU, *MODES, *STEPS, *PEERS, "runner/run", "runner/parallel", "runner/bench/collectives.py"),
    "quantised": (*GPU, *MODES, *STEPS, *QUANTISED, *TRITON),
    "experts": (*GPU, *MODES, *STEPS, *EXPERTS, *QUANTISED, *TRITON),
    "recorded": (*GPU, *MODES, "launchopt/traces"),
    "gpu": ALL_MODES,
    "gpu/timeout_bucket": (*GPU, *MODES, *ARRIVALS),
    **{
        f"gpu/{name}": (*GPU, *MODES, *ARRIVALS)
        for name in ("azure_llama_3_8b", "mooncake_llama_3_2_1b", "replay_qwen3_0_6b")
    },
    "gpu/prefixes": (*GPU, *MODES, *STEPS, *ARRIVALS),
    "gpu/trace_bert": (*GPU, *MODES, "launchopt/traces", *TORCH_COMMANDS),
    "gpu/resident": (*GPU, *RESIDENT, *MEGAKERNEL, *LIBRARIES),
    **{f"gpu/{name}": (*GPU, *MODES, *STEPS) for name in ("gpu_kernel_batcher", "decode_in_order", "qkv")},
    "gpu/ahead": (*GPU, *MEGAKERNEL),
    "gpu/calibration": ("launchopt/devices/floors.py", "launchopt/devices/cuda", "runner/doctor"),
    "gpu/cpp_loop": (*GPU, "scripts/cpp_loop"),
    **{
        f"gpu/bench/{suite}": (*OURS, *_bench(*files))
        for suite, files in {
            **{"resident": ("resident", "dispatch"), "stream": ("resident", "dispatch")},
            **{"megakernel": ("megakernel", "account"), "dispatch": ("dispatch",)},
            **{"tracing": ("tracing", "dispatch"), "copies": ("copies",), "pipeline": ("pipeline",)},
        }.items()
    },
    "gpu/bench/modes": (*ALL_MODES, *_bench("modes", "dispatch")),
    "gpu/bench/attention": ("launchopt/kernels/step", "launchopt/kernels/attention", "runner/bench/attention.py"),
    "gpu/bench/collectives": (*PEERS, "runner/bench/collectives.py", "runner/bench/peers.py"),
    "cpu": (*CPU, *MODES),
    **{
        f"cpu/bench/{suite}": (*CPU, *MODES, *RECORDING, *_bench(*files))
        for suite, files in {
            **{"ring": ("ring", "turn", "iceoryx", "peers"), "batcher": ("batcher",), "posting": ("posting",)},
            **{"recorder": ("recorder", "peers"), "pipeline": ("pipeline",)},
        }.items()
    },
    "reliability": (*LOOP, *RECORDING, "launchopt/reading", "runner/run", "runner/ending"),
}
DEPENDS = {kind: tuple(dict.fromkeys(paths)) for kind, paths in _DEPENDS.items()}
ALL_PATHS = sorted({path for paths in DEPENDS.values() for path in paths})


def kind_of(folder: str) -> str:
    """Return the key of DEPENDS for a folder of results, relative to outputs/reference; KeyError if none fits."""
    fitting = [each for each in DEPENDS if f"{folder}/".startswith(f"{each}/")]
    if not fitting:
        raise KeyError(f"{folder}: scripts/reference_paths.py does not list the code that it depends on")
    return max(fitting, key=len)


def path_hashes(blobs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the hash of each of ALL_PATHS, from the path and the git hash of each file of code."""
    listed = [*blobs]
    found = {path: [each for each in listed if each[0].startswith(path)] for path in ALL_PATHS}
    return {path: code_sha1(pairs)[:HASH_DIGITS] for path, pairs in found.items() if pairs}
