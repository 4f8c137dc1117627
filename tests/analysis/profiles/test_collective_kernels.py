"""The collectives of a GPU are the kernels of a trace that count, by GPU and by group of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.results.kineto_events import call, kernel, written

from launchopt.analysis.collectives.gpus import UNNAMED, Group, TimedFile
from launchopt.analysis.collectives.kinds import Kind
from launchopt.analysis.profiles.collective_kernels import timed_file
from launchopt.analysis.profiles.launch_pairs import pair
from launchopt.traces.kineto import read_kineto

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def found(folder: Path, *events: Any) -> TimedFile:
    trace = read_kineto(written(folder, list(events)))
    return timed_file("trace", "source", trace, pair(trace))


def said(event: Any, **arguments: Any) -> Any:
    return {**event, "args": {**event["args"], **{key.replace("_", " "): value for key, value in arguments.items()}}}


def test_kernels_of_collectives_count_and_others_do_not(tmp_path: Path) -> None:
    (gpu,) = found(tmp_path, call(0, 1, 1), kernel(2, 3, 1, name=NCCL), kernel(9, 1, 2)).gpus
    own = gpu.groups[UNNAMED]
    assert (gpu.name, own.kinds, own.streams.tolist()) == ("GPU 0", (Kind.ALL_REDUCE,), [7])
    assert (own.starts_ns.tolist(), own.ends_ns.tolist(), own.is_timed.tolist()) == ([2000], [5000], [True])
    assert found(tmp_path, kernel(9, 1, 2)).gpus == ()


def test_a_kernel_that_was_recorded_twice_counts_once_and_one_with_a_wrong_end_has_no_times(tmp_path: Path) -> None:
    wrong, twice = kernel(10, 900, 1, name=NCCL), kernel(30, 5, 2, name=NCCL)
    (gpu,) = found(tmp_path, twice, twice, wrong).gpus
    own = gpu.groups[UNNAMED]
    assert (own.starts_ns.tolist(), own.is_timed.tolist()) == ([10_000, 30_000], [False, True])


def test_processes_that_each_see_a_gpu_0_have_one_each(tmp_path: Path) -> None:
    events = [
        event
        for process, late in ((1, 0), (2, 3))
        for event in (call(0, 1, 1, pid=process), kernel(5 + late, 9, 1, stream=process, name=NCCL))
    ]
    gpus = found(tmp_path, *events).gpus
    assert [gpu.name for gpu in gpus] == ["GPU 0, process 1", "GPU 0, process 2"]
    assert [gpu.groups[UNNAMED].starts_ns.tolist() for gpu in gpus] == [[5000], [8000]]


def test_the_profiler_of_pytorch_names_the_kind_and_the_group(tmp_path: Path) -> None:
    """RCCL has one kernel for all collectives. A list of ranks may be a text or a list."""
    about: dict[str, Any] = {"Process_Group_Name": "tp", "Process_Group_Ranks": "[0, 1]"}
    generic = kernel(5, 9, 1, name="ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)")
    gather = said(generic, Collective_name="_allgather_base", **about)
    reduction = said(kernel(20, 9, 2, name=NCCL), **(about | {"Process_Group_Ranks": [0, 1]}))
    other = said(kernel(40, 9, 3, name=NCCL), Collective_name="allreduce", Process_Group_Name="dp")
    (gpu,) = found(tmp_path, gather, reduction, other, kernel(60, 9, 4, name=NCCL), generic).gpus
    kinds = {group: calls.kinds for group, calls in gpu.groups.items()}
    reduce_one = (Kind.ALL_REDUCE,)
    assert kinds == {
        UNNAMED: reduce_one,
        Group("tp", "[0,1]"): (Kind.ALL_GATHER, *reduce_one),
        Group("dp", ""): reduce_one,
    }
    assert [group.members for group in gpu.groups] == [None, {0, 1}, None]
    assert Group("", "[0,1,2,...,9]").members is None
