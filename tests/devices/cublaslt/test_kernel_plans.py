"""Plans of our own kernels have the layout that the driver reads. These tests need no GPU and no CuPy."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_kernels import Attribute, Config, FakeKernels, Launched, read_config

from launchopt.command import Dtype
from launchopt.devices.cublaslt import kernel_plans as kp
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.kernel_plans import KernelLaunch, KernelPlans, Launch
from launchopt.devices.cublaslt.launch_tables import KernelColumn, PlanColumn, PlanKind
from launchopt.errors import RunError

properties = settings(deadline=None, max_examples=50)
sizes = st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 65_535), st.integers(1, 65_535))
STREAM = 0x5EA1


def kernel(handle: int = 77) -> Any:
    return SimpleNamespace(kernel=SimpleNamespace(ptr=handle), max_dynamic_shared_size_bytes=0)


def test_structures_are_as_large_as_in_cuda_h() -> None:
    """ctypes lays them out by the C compiler's rules."""
    assert (ctypes.sizeof(Config), ctypes.sizeof(Attribute)) == (kp.CONFIG_BYTES, kp.ATTRIBUTE_BYTES)
    assert Config.stream.offset == lt.CONFIG_STREAM_BYTES
    assert Config.attributes.offset == kp.ATTRIBUTES_BYTES
    assert Config.attribute_count.offset == kp.ATTRIBUTE_COUNT_BYTES


def test_structures_are_as_in_the_bindings() -> None:
    """Their bytes equal those of NVIDIA's Python bindings, of which no function is called."""
    driver = pytest.importorskip("cuda.bindings.driver")
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    for axis, block in (("X", 4), ("Y", 5), ("Z", 6)):
        setattr(config, f"gridDim{axis}", block - 3)
        setattr(config, f"blockDim{axis}", block)
    config.sharedMemBytes, config.hStream = 512, driver.CUstream(STREAM)
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute.value, config.attrs, config.numAttrs = value, [attribute], 1
    plans = KernelPlans(Dtype.fp32)
    row = plans.row(kernel(), Launch((1, 2, 3), (4, 5, 6), 512, np.zeros(1, np.int64)), early=True)
    ours = read_config(row[KernelColumn.CONFIG])
    ours.stream = STREAM
    theirs = read_config(config.getPtr())
    for part in (slice(0, 28), slice(lt.CONFIG_STREAM_BYTES, kp.ATTRIBUTES_BYTES)):  # between them is padding
        assert bytes(ours)[part] == bytes(theirs)[part]
    assert ours.attribute_count == theirs.attribute_count == 1
    given, known = ours.attributes[0], Attribute.from_address(ctypes.addressof(theirs.attributes[0]))
    assert (given.id, bytes(given.value)[:4]) == (known.id, bytes(known.value)[:4])


@properties
@given(sizes, sizes, st.integers(0, 200_000), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.booleans())
def test_a_row_points_to_what_was_asked_for(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, words: list[int], early: bool
) -> None:
    plans, function = KernelPlans(Dtype.fp32), kernel(1 << 40)
    row = plans.row(function, Launch(grid, block, shared_bytes, np.array(words, np.int64)), early)
    config = read_config(row[KernelColumn.CONFIG])
    assert (config.grid_x, config.grid_y, config.grid_z) == grid
    assert (config.block_x, config.block_y, config.block_z) == block
    assert config.shared_bytes == shared_bytes
    assert config.stream is None  # written before each launch
    found = [(each.id, bytes(each.value)) for each in config.attributes[: config.attribute_count]]
    allowed = (1).to_bytes(4, "little").ljust(64, b"\0")
    assert found == ([(kp.PROGRAMMATIC_STREAM_SERIALIZATION, allowed)] if early else [])
    assert (row[KernelColumn.FUNCTION], row[PlanColumn.KIND], len(row)) == (
        1 << 40,
        PlanKind.KERNEL,
        len(PlanColumn),
    )
    pointers = (ctypes.c_int64 * (4 + len(words))).from_address(row[KernelColumn.PARAMETERS])
    assert pointers[0] == row[KernelColumn.OPERANDS]
    values = [ctypes.c_int64.from_address(pointer).value for pointer in pointers]
    assert values == [0, 0, 0, 0, *words]
    assert list(np.diff(list(pointers))) == [8] * (3 + len(words)), "the words are one struct, too"
    more = shared_bytes if shared_bytes > kp.LARGEST_STATIC_SHARED_BYTES else 0
    assert function.max_dynamic_shared_size_bytes == more, "beyond 48 KiB a kernel must be told"


def test_rows_stay_valid_while_others_are_made() -> None:
    plans = KernelPlans(Dtype.fp32)
    rows = [plans.row(kernel(i), Launch((i, 1, 1), (32, 1, 1), 0, np.array([i, -i]))) for i in range(1, 200)]
    for i, row in enumerate(rows, 1):
        assert read_config(row[KernelColumn.CONFIG]).grid_x == i
        values = (ctypes.c_int64 * 6).from_address(row[KernelColumn.OPERANDS])
        assert list(values) == [0, 0, 0, 0, i, -i]


def test_a_kernel_with_parameters_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(words=1)
    seen: list[Launched] = []
    monkeypatch.setattr(kp, "launch_address", lambda: fake.address)
    parameters = [np.int64(0), np.int32(-2), np.float32(1.5), np.uint64(2**64 - 1), np.float64(0.25)]
    launch = KernelLaunch(fake.kernel(seen.append), 96, parameters, SimpleNamespace(ptr=STREAM))
    launch(7, 2**62)
    launch(1, -3)
    assert [(each.grid, each.block, each.stream) for each in seen] == [
        ((7, 1, 1), (96, 1, 1), STREAM),
        ((1, 1, 1), (96, 1, 1), STREAM),
    ]
    assert [each.operands[0] for each in seen] == [2**62, -3]
    front = [each.to_bytes(8, "little", signed=True) for each in seen[0].operands[1:]]
    assert front[0] == np.int32(-2).tobytes() + bytes(4)
    assert front[1] == np.float32(1.5).tobytes() + bytes(4)
    assert front[2] == np.uint64(2**64 - 1).tobytes()
    assert seen[0].words.tobytes() == np.float64(0.25).tobytes()


def test_all_parameters_may_be_given_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(words=1)
    seen: list[Launched] = []
    monkeypatch.setattr(kp, "launch_address", lambda: fake.address)
    launch = KernelLaunch(fake.kernel(seen.append), 32, [np.int64(9)] * 5, SimpleNamespace(ptr=STREAM))
    launch.with_words(3, np.arange(5) + 2**40)
    assert seen[0].grid == (3, 1, 1)
    assert [*seen[0].operands, *seen[0].words.tolist()] == (np.arange(5) + 2**40).tolist()
    launch.with_words(3, np.arange(5), early=True)
    launch.with_words(3, np.arange(5))
    early = (kp.PROGRAMMATIC_STREAM_SERIALIZATION, (1).to_bytes(64, "little"))
    assert [each.attributes for each in seen] == [[], [early], []]
    for count in (4, 6):
        with pytest.raises(ValueError, match=f"{count} words for 5"):
            launch.with_words(1, np.zeros(count, np.int64))
    assert len(seen) == 3


class FakeOccupancy:
    """A stand-in for libcuda that keeps the kernel and the launch, a struct of cuda.h, of each call."""

    def __init__(self, clusters: int, status: int = 0) -> None:
        self.asked: list[tuple[int | None, tuple[int, ...], int, list[tuple[int, bytes]]]] = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_void_p)

        def answer(found: Any, handle: int | None, where: int) -> int:
            config = read_config(where)
            sizes = tuple(getattr(config, f"{what}_{axis}") for what in ("grid", "block") for axis in "xyz")
            attributes = [(each.id, bytes(each.value)) for each in config.attributes[: config.attribute_count]]
            self.asked.append((handle, sizes, config.shared_bytes, attributes))
            found[0] = clusters
            return status

        self.cuOccupancyMaxActiveClusters = kind(answer)


@pytest.mark.parametrize("size", [2, 4])
def test_how_many_clusters_there_are_at_once_the_driver_says(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, function = FakeOccupancy(66), kernel(1 << 40)
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", {"libcuda.so.1": fake}.__getitem__)
        assert kp.clusters_at_once(function, size, 288, 200_000) == 66
    dimensions = np.array([size, 1, 1], np.uint32).tobytes().ljust(64, b"\0")
    assert fake.asked == [(1 << 40, (size, 1, 1, 288, 1, 1), 200_000, [(4, dimensions)])]
    assert function.max_dynamic_shared_size_bytes == 200_000, "beyond 48 KiB a kernel must be told"


def test_an_id_of_clusters_is_as_in_the_bindings() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == kp.CLUSTER_DIMENSION


def test_where_the_driver_cannot_say_how_many_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda name: FakeOccupancy(0, status=912))
        with pytest.raises(RunError, match="cuOccupancyMaxActiveClusters failed with CUresult 912"):
            kp.clusters_at_once(kernel(), 2, 288, 0)


def test_what_the_driver_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(words=1, fail_at=1)
    monkeypatch.setattr(kp, "launch_address", lambda: fake.address)
    launch = KernelLaunch(fake.kernel(), 32, [np.int64(0)] * 5, SimpleNamespace(ptr=0))
    with pytest.raises(RunError, match="cuLaunchKernelEx failed with CUresult 1"):
        launch(1, 0)


def test_kernels_are_compiled_with_the_element_type_and_the_epsilon_of_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[tuple[str, ...]]()

    def module(code: str, options: tuple[str, ...]) -> Any:
        compiled.append(options)
        return SimpleNamespace(get_function=lambda name: kernel())

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=module))
    plans = KernelPlans(Dtype.fp16, 1e-6)
    plans.function("ops", "NORM", PDL=1)
    plans.function("ops", "ADD", PDL=1)
    KernelPlans(Dtype.bf16, 1).function("ops", "NORM")
    assert [options[1:] for options in compiled] == [
        ("-DDTYPE=1", "-DNORM_EPSILON=1e-06f", "-DPDL=1"),
        ("-DDTYPE=2", "-DNORM_EPSILON=1.0f"),
    ]
