"""Checks of the GPU: driver, libraries, CUPTI, profilers, and its other users.

Reads NVML, files of the driver and the PATH, and yields a `Check` for each line. Starts nothing on the GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import psutil
from packaging.version import Version

from launchopt.devices import find_device
from launchopt.devices.cuda.info import DRIVER_OF_CUDA_13, GpuUsers, gpu_state, gpu_users
from launchopt.distribution import install_command, missing
from launchopt.errors import DeviceError
from launchopt.files import JsonObject
from launchopt.timing.nvml import NO_THROTTLING, reason_names
from runner.doctor.checks import Check, Status, gpu_package_check, requirements

TOOL_TIMEOUT_S = 5
SYS_ADMIN_BIT = 21  # CAP_SYS_ADMIN, <linux/capability.h>
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
PROFILERS = {
    "nsys": (
        "scripts/nsys_profile.sh",
        "apt install nsight-systems-cli, or https://developer.nvidia.com/nsight-systems",
    ),
    "ncu": ("scripts/ncu_profile.sh", "apt install nsight-compute, or https://developer.nvidia.com/nsight-compute"),
}


def gpu_checks(index: int, needed: bool) -> Iterator[Check]:
    """Yield every check of a GPU. needed: the user asked for a GPU."""
    driver, cuda = driver_versions()
    yield driver_check(driver, cuda, needed)
    yield gpu_package_check(requirements(), 12 if cuda is not None and cuda < (13, 0) else 13)
    yield cupti_check(_version("cupti-python"), cuda)
    yield _triton_check()
    try:
        found, _ = find_device("cuda", index)
    except DeviceError as error:
        yield Check("GPU", Status.MISSING, str(error), "device=cpu works without one", needed)
    else:
        yield Check("GPU", Status.OK, f"{found.name}, {found.memory_free_bytes / 1e9:,.1f} GB free", needed=needed)
        yield from state_checks(gpu_state(index), gpu_users(index))
    yield from tool_checks()
    yield counter_check(DRIVER_PARAMETERS, Path("/proc/self/status"))


def driver_versions() -> tuple[str | None, tuple[int, int] | None]:
    """Return the versions of the driver and of its newest CUDA, from NVML; None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        number = int(pynvml.nvmlSystemGetCudaDriverVersion())
    except pynvml.NVMLError:
        return None, None
    return driver, (number // 1000, number % 1000 // 10)


def driver_check(driver: str | None, cuda: tuple[int, int] | None, needed: bool) -> Check:
    """Check the version of the driver."""
    if driver is None or cuda is None:
        mend = "install NVIDIA's driver; in a container: --gpus all"
        return Check("driver, NVML", Status.MISSING, "NVML does not answer: no NVIDIA driver", mend, needed)
    found = f"{driver}, up to CUDA {cuda[0]}.{cuda[1]}; NVML answers"
    if int(driver.split(".")[0]) < DRIVER_OF_CUDA_13:
        mend = f"fine with the extra cuda12; CUPTI in process needs {DRIVER_OF_CUDA_13} or newer"
        return Check("driver, NVML", Status.WARNING, found, mend, needed)
    return Check("driver, NVML", Status.OK, found, needed=needed)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cupti_check(installed: str | None, cuda: tuple[int, int] | None) -> Check:
    """Check that cupti-python is no newer than the driver's CUDA."""
    wanted = "13.0" if cuda is None else f"{cuda[0]}.{cuda[1]}"
    mend = f"pip install 'cupti-python=={wanted}.*'"
    if installed is None:
        return Check("CUPTI", Status.MISSING, "cupti-python not installed (for timing=cupti)", mend)
    known = Version(installed)
    if cuda is not None and (known.major, known.minor) > cuda:
        return Check("CUPTI", Status.WARNING, f"cupti-python {installed}, newer than the driver's CUDA {wanted}", mend)
    return Check("CUPTI", Status.OK, f"cupti-python {installed}")


def _triton_check() -> Check:
    if missing("triton"):
        mend = install_command("torch")
        return Check(
            "Triton", Status.MISSING, "not installed (for modes fused_triton, triton_batched and triton_experts)", mend
        )
    return Check("Triton", Status.OK, _version("triton") or "version unknown")


def state_checks(state: JsonObject, users: GpuUsers) -> Iterator[Check]:
    """Check persistence mode, current clocks and throttling, and other users of the GPU."""
    if users.persistence is None:
        yield Check("persistence mode", Status.WARNING, "not reported by NVML")
    elif users.persistence:
        yield Check("persistence mode", Status.OK, "on")
    else:
        mend = "sudo nvidia-smi -pm 1, or each first process waits for the driver"
        yield Check("persistence mode", Status.WARNING, "off", mend)
    reasons = [
        name for name in reason_names(int(state.get("throttle_reasons", "0x0"), 16)) if name not in NO_THROTTLING
    ]
    parts = {"sm_clock_mhz": "SM {:,} MHz", "memory_clock_mhz": "memory {:,} MHz"}
    parts |= {"power_w": "{:,.0f} W", "temperature_c": "{} °C"}
    found = (
        ", ".join(form.format(state[name]) for name, form in parts.items() if name in state) or "not reported by NVML"
    )
    if reasons:
        mend = "let it cool, or look for a power limit: nvidia-smi -q -d PERFORMANCE,POWER"
        yield Check("clocks now", Status.WARNING, f"{found}; throttled: {', '.join(reasons)}", mend)
    else:
        yield Check("clocks now", Status.OK, f"{found}; not throttled")
    yield _users_check(users)


def _users_check(users: GpuUsers) -> Check:
    if users.others is None:
        return Check("other users of the GPU", Status.WARNING, "not reported by NVML")
    if not users.others:
        return Check("other users of the GPU", Status.OK, "none")
    found = ", ".join(f"{pid} {_name(pid)} ({_memory(used)})" for pid, used in users.others.items())
    return Check("other users of the GPU", Status.WARNING, found, "wait for them: times measured now are shared")


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "(name unknown)"


def _memory(used_bytes: int | None) -> str:
    return "memory unknown" if used_bytes is None else f"{used_bytes / 1e9:,.1f} GB"


def tool_checks(which: Callable[[str], str | None] = shutil.which) -> Iterator[Check]:
    """Check that nsys and ncu exist and start."""
    with ThreadPoolExecutor() as pool:
        found = {name: pool.submit(_tool_version, which(name)) for name in PROFILERS}
    for name, (use, mend) in PROFILERS.items():
        path, version = found[name].result()
        if path is None:
            yield Check(name, Status.MISSING, f"not on the PATH (for {use})", mend)
        elif version is None:
            yield Check(name, Status.WARNING, f"{path} does not start", f"run {path} --version, and see what it lacks")
        else:
            yield Check(name, Status.OK, f"{version}, {path}")


def _tool_version(path: str | None) -> tuple[str | None, str | None]:
    if path is None:
        return None, None
    try:
        call = [path, "--version"]
        done = subprocess.run(
            call, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return path, None
    number = re.search(r"\d{4}\.\d+(\.\d+)*", done.stdout)
    return path, number[0] if number else "version unknown"


def counter_check(parameters: Path, status: Path) -> Check:
    """Check that ncu may read the GPU's counters."""
    try:
        restricted = re.search(r"^RmProfilingAdminOnly:\s*1", parameters.read_text(), re.MULTILINE) is not None
    except OSError:
        return Check("counters for ncu", Status.WARNING, f"not known: {parameters} cannot be read")
    if not restricted:
        return Check("counters for ncu", Status.OK, "open to every user")
    if _is_admin(status):
        return Check("counters for ncu", Status.OK, "for administrators, and this process is one")
    mend = (
        "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d/, then reload the driver; "
        "in a container: --cap-add=SYS_ADMIN. timing=cupti and nsys do not need it"
    )
    return Check("counters for ncu", Status.WARNING, "for administrators only (RmProfilingAdminOnly: 1)", mend)


def _is_admin(status: Path) -> bool:
    try:
        capabilities = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return False
    return capabilities is not None and bool(int(capabilities[1], 16) >> SYS_ADMIN_BIT & 1)
