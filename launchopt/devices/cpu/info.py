"""Facts about this machine's processor: name, last-level cache, free memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError

# Environment variable: MiB of the last-level cache, for a virtual machine that reports the cache of its host.
CACHE_VARIABLE = "LAUNCHOPT_CPU_CACHE_MIB"
MOST_CACHE_MIB = 1 << 20
LARGEST_OF_FEW = 96 << 20  # the largest L3 that cores of one die share (AMD 3D V-Cache: 96 MiB for 8 cores or fewer)
CACHE_OF_CORE = 8 << 20  # more than a core's share of any larger L3 (Intel Xeon 6: 504 MB for 72 to 128 cores)
PACK_BYTES_PER_LAUNCH = 8 << 10  # a NumPy call costs about 2 us, a core copies about 4 GB/s


def cpu_info() -> DeviceInfo:
    """Return the facts about this machine's processor."""
    available = psutil.virtual_memory().available
    return DeviceInfo("cpu", 0, _model_name(), available, _cache_bytes(), "main memory", PACK_BYTES_PER_LAUNCH)


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {psutil.cpu_count()} cores"


def _cache_bytes(default: int = 32 << 20) -> int:
    """Return the bytes of the last-level cache: CACHE_VARIABLE, or as Linux reports, but at most these cores' share.

    A virtual machine reports its host's whole cache, which its few cores cannot own: 480 MB beside two cores.
    """
    if text := os.environ.get(CACHE_VARIABLE):
        if not (text.isascii() and text.isdecimal() and len(text) < 9 and 0 < int(text) <= MOST_CACHE_MIB):
            raise ConfigError(CACHE_VARIABLE, text, f"must be MiB of cache, from 1 to {MOST_CACHE_MIB}")
        return int(text) << 20
    return min(reported_cache_bytes(default), max(LARGEST_OF_FEW, (psutil.cpu_count() or 1) * CACHE_OF_CORE))


def reported_cache_bytes(default: int = 32 << 20) -> int:
    """Return the bytes of the last-level cache that Linux reports. A virtual machine reports the cache of its host."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes, default=default)
