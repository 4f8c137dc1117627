"""The error for a status of a compiled launch."""

from __future__ import annotations

from launchopt.devices.cublaslt.launch import KERNEL_STATUS
from launchopt.devices.cuda.errors import OUT_OF_MEMORY, StatusError, failure_of
from launchopt.devices.resident.ring import GAVE_UP_LINE, GONE


def test_a_failed_kernel_has_cuda_s_number_and_a_kernel_that_gave_up_its_line() -> None:
    failed = failure_of(OUT_OF_MEMORY * KERNEL_STATUS)
    assert isinstance(failed, StatusError)
    assert failed.code == OUT_OF_MEMORY
    assert f"CUresult {OUT_OF_MEMORY}" in str(failed)
    assert str(failure_of(GONE)) == GAVE_UP_LINE
