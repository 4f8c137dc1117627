"""Reading ncu's raw page."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.profiles import ncu
from launchopt.analysis.profiles.ncu import Kernel, read_kernels, short_name
from launchopt.errors import DataError

DURATION, RATE = "gpu__time_duration.sum", "dram__bytes.sum.per_second"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
FIXED = {"ID": "0", "Kernel Name": "gemv", "Block Size": "(128, 1, 1)", "Grid Size": "(64, 1, 512)"}

# As ncu 2022 to 2025 print it: what the program said first, thousands with commas, what was not available as n/a.
COLUMNS = {
    "ID": ("", "0", "1"),
    "Process ID": ("", "41", "41"),
    "Kernel Name": ("", "void gemv<float, (int)1>(Params<float>)", "splitKreduce_kernel"),
    "Block Size": ("", "(128, 1, 1)", "(64, 1, 1)"),
    "Grid Size": ("", "(64, 1, 512)", "(8, 5, 1)"),
    RATE: ("byte/second", "4,203,000,000,000.5", "n/a"),
    "dram__bytes_read.sum": ("byte", "1,030,000,500", "n/a"),
    MEMORY: ("%", "91.2", "8.4"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "90.9", ""),
    DURATION: ("ns", "245,312", "2,080"),
    "launch__registers_per_thread": ("register/thread", "40", "32"),
    "launch__waves_per_multiprocessor": ("", "10.1", "0.02"),
    "lts__t_sector_hit_rate.pct": ("%", "0.4", "50.1"),
    SM: ("%", "22.5", "2.3"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "88", "6.5"),
}


def quoted(*rows: Iterable[str]) -> list[str]:
    """Lines of CSV, every cell in quotes, as ncu writes them."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue().splitlines()


def page(units: dict[str, str], *rows: dict[str, str]) -> list[str]:
    """A raw page of the fixed columns and those of `units`."""
    names = [*FIXED, *units]
    cells = [[(FIXED | row)[name] for name in names] for row in rows]
    return quoted(names, [units.get(name, "") for name in names], *cells)


def one(units: dict[str, str], row: dict[str, str]) -> Kernel:
    (kernel,) = read_kernels(page(units, row), "x.csv")
    return kernel


def test_a_page() -> None:
    lines = ["==PROF== Connected to process 1", *quoted(COLUMNS, *zip(*COLUMNS.values(), strict=True)), "==PROF== End"]
    first, second = read_kernels(lines, "x.csv")
    assert first == Kernel(
        "0", "void gemv<float, (int)1>(Params<float>)", "64x1x512", "128x1x1",
        245.312, 1030.0005, 4203.0000000005, 90.9, 91.2, 22.5, 88.0, 0.4, 40, 10.1,
    )  # fmt: skip
    assert (second.duration_us, second.dram_gb_per_s, second.dram_percent) == (2.08, None, None)


@pytest.mark.parametrize(
    ("unit", "value", "us"),
    [
        *[("ns", "2,500", 2.5), ("nsecond", "2500", 2.5), ("us", "2.5", 2.5), ("usecond", "2.5", 2.5)],
        *[("ms", "1.5", 1500.0), ("msecond", "1.5", 1500.0), ("s", "2", 2e6), ("second", "4.0e-05", 40.0)],
    ],
)
def test_units_of_time(unit: str, value: str, us: float) -> None:
    assert one({DURATION: unit}, {DURATION: value}).duration_us == pytest.approx(us)


@pytest.mark.parametrize(
    ("unit", "value"),
    [("byte/second", "4,800,000,000,000"), ("Gbyte/second", "4,800"), ("Tbyte/s", "4.8"), ("byte/s", "4.8e12")],
)
def test_units_of_a_rate(unit: str, value: str) -> None:
    assert one({RATE: unit}, {RATE: value}).dram_gb_per_s == pytest.approx(4800.0)


@given(ns=st.integers(0, 10**15), share=st.floats(0, 100), registers=st.integers(0, 255))
def test_any_value_comes_back(ns: int, share: float, registers: int) -> None:
    units = {DURATION: "ns", MEMORY: "%", "launch__registers_per_thread": "register/thread"}
    kernel = one(units, {DURATION: f"{ns:,}", MEMORY: repr(share), "launch__registers_per_thread": str(registers)})
    assert kernel.duration_us == pytest.approx(ns / 1e3)
    assert kernel.memory_percent == share
    assert kernel.registers == registers


@given(st.text(), st.lists(st.lists(st.text(), max_size=6), max_size=6))
def test_any_other_text_is_a_data_error_or_holds_no_times(before: str, rows: list[list[str]]) -> None:
    lines = [*before.splitlines(), *quoted(["ID", "Kernel Name"]), *quoted(*rows)]
    with contextlib.suppress(DataError):
        assert all(kernel.duration_us is None for kernel in read_kernels(lines, "x.csv"))


@pytest.mark.parametrize(
    ("memory", "sm", "limit"),
    [
        *[("90", "20", "memory"), ("20", "90", "compute"), ("60", "60", "memory"), ("59.9", "20", "latency")],
        ("n/a", "20", "unknown"),
    ],
)
def test_the_nearest_limit(memory: str, sm: str, limit: str) -> None:
    assert one({MEMORY: "%", SM: "%"}, {MEMORY: memory, SM: sm}).limit == limit


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "x.csv: no table of kernels"),
        (["==ERROR== nothing"], "x.csv: no table of kernels"),
        (page({DURATION: "ns"}, {DURATION: "soon"}), r"x.csv:3: gpu__time_duration.sum: 'soon' is no number"),
        (page({DURATION: "ns"}, {DURATION: "inf"}), r"x.csv:3: .*'inf' is no number"),
        (page({DURATION: "fortnight"}, {DURATION: "1"}), r"x.csv:3: .*unit 'fortnight' is not known"),
        (page({}, FIXED)[0:1] + page({}, FIXED)[2:], "x.csv:2: no line of units"),
        (['"ID","Metric Name","Metric Value"', '"0","Duration","1"'], "x.csv:2: ncu's details page"),
        (['"ID","' + "a" * 200_000 + '"'], "x.csv:1: not CSV"),
    ],
)
def test_what_is_no_raw_page(lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_kernels(lines, "x.csv")


def test_the_number_of_kernels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "MOST_KERNELS", 2)
    assert len(read_kernels(page({}, {}, {}), "x.csv")) == 2
    with pytest.raises(DataError, match=r"x\.csv:5: more than 2 kernels"):
        read_kernels(page({}, {}, {}, {}), "x.csv")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void gemvNSP_kernel<float, float, (int)1>(cublasGemvParams<float>)", "gemvNSP_kernel"),
        ("void (anonymous namespace)::prefill<(bool)1>(const __half *)", "prefill"),
        ("void cutlass::Kernel2<cutlass::gemm<a, b<c>>>(T1::Params)", "cutlass::Kernel2"),
        ("splitKreduce_kernel", "splitKreduce_kernel"),
        ("(odd)", "(odd)"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@given(st.text() | st.text("ab:<>() "))
def test_a_short_name_has_no_arguments_unless_it_is_the_name(name: str) -> None:
    short = short_name(name)
    assert short == name or not set(short) & set("<( ")
    assert short or not name
