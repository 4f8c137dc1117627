"""Run commands with their own mounts: tiny or read-only disks, a small /dev/shm. Skip tests if mounts are forbidden."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

WAYS = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])


@functools.cache
def _way() -> tuple[str, ...]:
    """Return the words to put before a command; empty if this system allows no mounts."""
    for way in WAYS if shutil.which("unshare") else ():
        probe = [*way, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        if subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0:
            return tuple(way)
    return ()


def in_own_mounts(mounts: str, *command: str, afterwards: str = "true") -> list[str]:
    """Return a call that runs `command` between the shell's `mounts` and `afterwards`, with its exit code."""
    if not _way():
        pytest.skip("this system lets its tests mount nothing")
    return [*_way(), "sh", "-c", f'{mounts} && {{ "$@"; code=$?; {afterwards}; exit $code; }}', "sh", *command]
