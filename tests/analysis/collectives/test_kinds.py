"""Names of kernels, and what the profiler of PyTorch says beside them, give the kind of a collective."""

from __future__ import annotations

import pytest

from launchopt.analysis.collectives.kinds import Kind, kind_of
from launchopt.traces.events import Collective

KERNELS = {
    Kind.ALL_REDUCE: [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf16",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
        "void vllm::cross_device_reduce_2stage<half, 8>(vllm::RankData*)",
        "void c10d::symmetric_memory::(anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8>(float**)",
        "multimem_all_reduce_kernel",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<half>(Params)",
        "void transformer_engine::userbuffers_fp16_sum_inplace_gpu_rw<8>(int)",
        "void rdxn_on_stream_kernel<float, (rdxn_ops)2>(int)",
        "ALL_REDUCE",
        "REDUCE_ADD_NORM",
    ],
    Kind.ALL_GATHER: [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymDevKernel_AllGather_ST",
        "ncclSymkDevKernel_AllGather_ST(ncclSymDevArgs)",
        "multimem_all_gather_kernel",
        "void all_gather_kernel<bf16>",
        "void transformer_engine::userbuffers_fp16_sum_inplace_gpu_rw_ag",
        "void fcollect_on_stream_kernel<float>(int)",
        "ALL_GATHER",
    ],
    Kind.REDUCE_SCATTER: [
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
        "ncclSymDevKernel_ReduceScatter_LD_sum_bf16",
        "reduce_scatter_kernel",
        "void transformer_engine::userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
        "void reducescatter_on_stream_kernel<float>(int)",
    ],
    None: [
        "ncclDevKernel_SendRecv",
        "ncclDevKernel_Broadcast_RING_LL",
        "ncclDevKernel_Reduce_Sum_f32_RING_LL",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "void transformer_engine::userbuffers_pushsend",
        "void at::native::reduce_kernel<512, 1>",
        "void scatter_reduce<float>(float*)",
        "void gemm<Epilogue<AllReduceOp<float>>>(AllGatherParams)",
        "triton_red_fused_add_all_reduce_wait_tensor_0",
        "gemm",
    ],
}


@pytest.mark.parametrize(("kind", "kernel"), [(kind, name) for kind, names in KERNELS.items() for name in names])
def test_the_name_of_a_kernel_says_what_collective_it_is(kind: Kind | None, kernel: str) -> None:
    assert kind_of(kernel) is kind
    assert kind_of(kernel, Collective("", "tp", "[0,1]")) is kind


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("allreduce", Kind.ALL_REDUCE),
        ("allreduce_coalesced", Kind.ALL_REDUCE),
        ("barrier", Kind.ALL_REDUCE),
        ("_allgather_base", Kind.ALL_GATHER),
        ("all_gather_into_tensor_coalesced", Kind.ALL_GATHER),
        ("_reduce_scatter_base", Kind.REDUCE_SCATTER),
        ("broadcast", None),
        ("_reduce_oop", None),
        ("all_to_allv", None),
        ("send", None),
    ],
)
def test_the_profiler_of_pytorch_knows_better_than_the_name_of_the_kernel(said: str, kind: Kind | None) -> None:
    for kernel in ("ncclDevKernel_Generic_4(int)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"):
        assert kind_of(kernel, Collective(said, "", "")) is kind
