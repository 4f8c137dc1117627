#!/usr/bin/env bash
# Run the persistent kernel and the megakernel under NVIDIA's compute-sanitizer. It finds accesses outside of memory, races and
# missed barriers.
# Arguments: settings of one job. Default: five small jobs of mode=persistent and mode=megakernel.
# Environment: SANITIZER, the tool's path; TOOLS (default: memcheck racecheck synccheck); LIMIT_S, seconds per job and tool
# (default: 300).
# Output: one line per job and tool, with the number of commands that the mode's kernel ran. If it ran none, nothing was
# checked.
# Exit code: 0 nothing found; 1 something found, or nothing checked (for example without a GPU); 2 no tool. The times of
# these runs mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
[ -x "$sanitizer" ] || {
    echo "scripts/sanitize.sh: no compute-sanitizer: it comes with the CUDA toolkit; name it with SANITIZER=..." >&2
    exit 2
}
python=${PYTHON:-python3}
refills="mode=megakernel workload=decode model=tiny model.intermediate=8192 workload.tokens=3 workload.dtype=fp32"
jobs=(
    "mode=persistent workload=gemv_256 workload.commands=96 workload.cache=hot"
    "mode=megakernel workload=layer model=tiny workload.tokens=3 workload.dtype=fp32"
    "mode=megakernel workload=layer model=tiny workload.tokens=3 workload.dtype=fp16 workload.requests=2"
    "$refills" # the only job that refills the slots of the ring of weights
    "$refills workload.requests=16"
)
[ $# -eq 0 ] || jobs=("$*")
found=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Print how many commands the kernel of mode $2 ran, from the manifest in run folder $1.
commands_by_kernel() {
    "$python" - "$1" "$2" <<'EOF'
import sys
from pathlib import Path

from launchopt.modes import mode_class
from launchopt.recording.results import read_manifest

folder, mode = sys.argv[1:]
runs = [run for run in read_manifest(Path(folder))["runs"] if run["mode"] == mode]
print(sum(run["commands_by_strategy"].get(mode_class(mode).own_strategy, 0) for run in runs))
EOF
}

for job in "${jobs[@]}"; do
    # Check only that mode's kernel: the tool is slow.
    mode=$(grep -oE 'mode=(persistent|megakernel)' <<<"$job" | cut -d= -f2 || true)
    only=${mode:+--kernel-name kns=$mode}
    for tool in ${TOOLS:-memcheck racecheck synccheck}; do
        if [ "$tool" = racecheck ] && grep -qE 'dtype=(fp16|bf16)' <<<"$job"; then
            echo "$tool, $job: skipped: the tool fails in cuBLASLt's kernels of halves (2025.3, mode=baseline, too)"
            continue
        fi
        # racecheck understands the megakernel only as mode.racecheck=true compiles it; a job may name the key itself.
        more=
        if [ "$tool$mode" = racecheckmegakernel ] && [[ $job != *mode.racecheck=* ]]; then more=mode.racecheck=true; fi
        log=$folder/log run=$folder/run status=0
        rm -rf "$run"
        # shellcheck disable=SC2086 # settings are words
        timeout "${LIMIT_S:-300}" "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 $only \
            "$python" -m runner $job $more device=cuda timing=host repeats=1 watchdog_s=0 \
            hydra.run.dir="$run" >"$log" 2>&1 || status=$?
        summary=$(grep -E "ERROR SUMMARY|RACECHECK SUMMARY" "$log" | tail -n 1 | sed 's/^=* *//' || true)
        ran=
        [ -z "$mode" ] || ran=$(commands_by_kernel "$run" "$mode" 2>>"$log" || echo 0)
        echo "$tool, $job${more:+ $more}: ${summary:-no summary}${ran:+, $ran commands by the kernel}, exit code $status"
        if [ "$status" -ne 0 ] || [ -z "$summary" ] || [ "$ran" = 0 ]; then
            # Show what the tool found first, then the end of the run.
            { grep -m 60 '^=========' "$log" || true; grep -v '^=========' "$log" | tail -n 40 || true; } >&2
            found=1
        fi
    done
done
exit "$found"
