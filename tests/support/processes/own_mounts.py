"""A command that sees mounts of its own, where that is allowed: tiny disks, read-only ones, a small /dev/shm."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

WAYS = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])


@functools.cache
def _way() -> tuple[str, ...]:
    """What to put before a command; empty where this system allows no mounts."""
    for way in WAYS if shutil.which("unshare") else ():
        probe = [*way, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        if subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0:
            return tuple(way)
    return ()


def in_own_mounts(mounts: str, *command: str, afterwards: str = "true") -> list[str]:
    """`command` between the shell's `mounts` and `afterwards`; ends as it did. Skips where nothing may be mounted."""
    if not _way():
        pytest.skip("this system lets its tests mount nothing")
    return [*_way(), "sh", "-c", f'{mounts} && {{ "$@"; code=$?; {afterwards}; exit $code; }}', "sh", *command]
