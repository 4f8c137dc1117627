"""Fakes of nsys, ncu and the Python interpreter for the profiler scripts, and an environment that uses them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT

SCRIPTS = ROOT / "scripts"
NOWHERE = "/nonexistent"  # an empty PATH would mean the working directory
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None or not Path("/proc/self/environ").exists(), reason="needs bash and /proc")

# Appends its arguments to $NOTES, then does what $FAKE says. `setsid` gives its agent a session of its own, so that a
# signal to the process group does not reach it. fail2: the second run fails. silent: no report.
FAKE_NSYS = """#!/bin/bash
echo "$@" >> "$NOTES"
while [[ $# -gt 0 ]]; do
    case $1 in -o | --output) out=$2 ;; esac
    shift
done
[[ $out == *.sqlite ]] && { touch "$out"; exit 0; }
[[ $FAKE == silent ]] && exit 0
echo report > "$out.nsys-rep"
case $FAKE in
agent) setsid bash -c 'trap "" TERM; echo $$ > "$NOTES.agent"; while :; do sleep 0.1; done' &
    while [[ ! -s $NOTES.agent ]]; do sleep 0.05; done ;;
hang) echo $$ > "$NOTES.pid"; exec sleep 300 ;;
fail2) [[ $out != */b-* ]] || exit 7 ;;
*) exit "$FAKE" ;;
esac
"""
# The same for ncu. refused: no permission for the counters, with ncu's message in the log. nothing: no launch matched.
FAKE_NCU = """#!/bin/bash
for argument in "$@"; do printf '<%s>' "$argument" >> "$NOTES"; done
echo >> "$NOTES"
while [[ $# -gt 0 ]]; do
    case $1 in --export) out=$2 ;; --log-file) log=$2 ;; --import) echo '"ID"'; exit "${FAKE_IMPORT:-0}" ;; esac
    shift
done
case $FAKE in
refused) echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" > "$log"; exit 1 ;;
nothing) echo "==WARNING== No kernels were profiled." > "$log"; exit 0 ;;
hang) echo $$ > "$NOTES.pid"; exec sleep 300 ;;
*) echo report > "$out.ncu-rep"; exit "$FAKE" ;;
esac
"""
# In place of the interpreter, so that no profile is read. The scripts call it only as `-m runner.SOMETHING`.
FAKE_PYTHON = '#!/bin/bash\necho "python $@" >> "$NOTES"\n'


class Bench:
    """A folder with the fakes, and an environment in which `script` uses them."""

    def __init__(self, folder: Path, script: str) -> None:
        self.notes, self.out, self.folder = folder / "notes", folder / "out", folder
        self.pid_file = Path(f"{self.notes}.pid")
        self._script = SCRIPTS / script
        for name, text in {"nsys": FAKE_NSYS, "ncu": FAKE_NCU, "fake_python": FAKE_PYTHON}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environ = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHON": str(folder / "fake_python"),
            "NOTES": str(self.notes),
            "NSYS_OUT": str(self.out),
            "NCU_OUT": str(self.out),
        }

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(BASH), str(self._script), *arguments],
            env=self.environ | environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell may have started pytest with SIGINT ignored, and bash cannot trap a signal that is ignored from
            # the start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **environ) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
