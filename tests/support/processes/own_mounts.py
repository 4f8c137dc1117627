"""Run commands with their own mounts: tiny or read-only disks, a small /dev/shm. Skip tests if mounts are forbidden."""

from __future__ import annotations

import functools
import shutil
import subprocess

WAYS = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])


@functools.cache
def own_mounts() -> tuple[str, ...]:
    """Return the words to put before a command; empty if this system allows no mounts."""
    for way in WAYS if shutil.which("unshare") else ():
        probe = [*way, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        if subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0:
            return tuple(way)
    return ()


def in_own_mounts(mounts: str, *command: str, afterwards: str = "true") -> list[str]:
    """Return a call that runs `command` between the shell's `mounts` and `afterwards`, with its exit code."""
    if not own_mounts():
        import pytest  # scripts/limits.py does without it

        pytest.skip("this system lets its tests mount nothing")
    return [*own_mounts(), "sh", "-c", f'{mounts} && {{ "$@"; code=$?; {afterwards}; exit $code; }}', "sh", *command]
