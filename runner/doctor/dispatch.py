"""Split what an operator costs the host into framework, library and driver, by differences of floors.

    driver      launches of the operator x CPU time of the launch of an empty kernel from compiled code
    library     of a GEMM: CPU time of cublasLtMatmul for the same GEMM from compiled code, less its launches
    framework   the rest: Python, dispatch and allocation

Nothing is traced, since a tracer makes each part longer. PyTorch and CuPy call cuBLAS, whose own time may differ from
that of cuBLASLt. `launchopt trace` cannot tell a library from the operator that calls it: its part `inner` has both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from launchopt.devices.launch_breakdown import Floor
from runner.screen.fitted import FittedTable, Heading
from runner.screen.pager import console

PREFIX = "dispatch_"
LAUNCH, GEMM = "null_launch_host_us", "lt_launch_host_us"
OURS = "cublasLtMatmul from compiled code"
GEMMS = ("torch_mm", "cupy_matmul")
PUBLISHED = "Published for an operator of PyTorch in eager mode: 10-30 us."


class Split(NamedTuple):
    """The us per call of one operator, and its parts."""

    operator: str
    launches: int
    whole_us: float
    framework_us: float
    library_us: float
    driver_us: float


def splits(floors: Mapping[str, Floor]) -> Iterator[Split]:
    """Yield the split of each operator that was measured; nothing without the floors of launches."""
    if LAUNCH not in floors or GEMM not in floors:
        return
    launch_us, gemm_us = floors[LAUNCH].value, floors[GEMM].value
    of_gemm = _launches(floors, "cublaslt")
    library_us = max(0.0, gemm_us - of_gemm * launch_us)
    for name, floor in floors.items():
        if not (name.startswith(PREFIX) and name.endswith("_us")):
            continue
        operator = name.removeprefix(PREFIX).removesuffix("_us")
        launches = _launches(floors, operator)
        own_us = library_us if operator in GEMMS else 0.0
        driver_us = launches * launch_us
        yield Split(operator, launches, floor.value, floor.value - own_us - driver_us, own_us, driver_us)
    driver_us = min(gemm_us, of_gemm * launch_us)
    yield Split(OURS, of_gemm, gemm_us, 0.0, library_us, driver_us)


def _launches(floors: Mapping[str, Floor], operator: str) -> int:
    """Return the launches of a call. An operator that was not counted has one; CuPy's GEMM has those of cuBLASLt."""
    counted = floors.get(f"{PREFIX}{operator}_launches")
    if counted is None and operator == "cupy_matmul":
        counted = floors.get(f"{PREFIX}cublaslt_launches")
    return 1 if counted is None else round(counted.value)


def print_dispatch(floors: Mapping[str, Floor]) -> None:
    """Print the splits as a table, if there are any."""
    rows = [
        (each.operator, str(each.launches), *(f"{us:.2f}" for us in each[2:]))
        for each in splits(floors)
        if each.operator != OURS or any(name.startswith(PREFIX) for name in floors)
    ]
    if not rows:
        return
    headings = [Heading("operator", is_text=True), Heading("launches", drops=1), Heading("us a call")]
    parts = [Heading(name) for name in ("framework", "library", "driver")]
    console().print(FittedTable([*headings, *parts], rows, "From Python to the launch call"))
    console().print(PUBLISHED, soft_wrap=True, markup=False)
