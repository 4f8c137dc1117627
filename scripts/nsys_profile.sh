#!/usr/bin/env bash
# Profiles one run of this project under Nsight Systems and prints what each NVTX range launched.
# Enters: Hydra overrides. Leaves: profile.nsys-rep and profile.sqlite in a folder of their own, a table on stdout.
set -euo pipefail

usage() {
    printf '%s\n' \
        "Usage: scripts/nsys_profile.sh [hydra overrides...]      e.g. workload=gemv_micro mode=batched" \
        "Runs 'python -m runner' once under nsys and prints a table of its NVTX ranges." \
        "" \
        "  NSYS_OUT        folder for the files    (default: outputs/nsys/<UTC time>-<pid>)" \
        "  NSYS_TIMEOUT_S  time limit in seconds   (default: 600)" \
        "  PYTHON          interpreter             (default: python, else python3)" \
        "" \
        "Exit code: the profiled program's; 2 wrong usage, 3 no nsys, 124 time limit, 130 Ctrl-C."
}

fail() { # fail EXIT_CODE LINE...
    local code=$1
    shift
    printf '%s\n' "$@" >&2
    exit "$code"
}

# nsys starts its agent and the profiled program in sessions of their own, reparented to init, so no process group
# holds them all. Each inherits the environment, though: this variable marks what this run started, and only that.
marker="LAUNCHOPT_NSYS_RUN=$$-$RANDOM-$RANDOM"

started_pids() {
    grep -lszxF -- "$marker" /proc/[0-9]*/environ | cut -d/ -f3 || true
}

signal_started() { # signal_started SIGNAL: false when nothing was left to signal
    local -a pids
    mapfile -t pids < <(started_pids)
    ((${#pids[@]})) || return 1
    kill -s "$1" "${pids[@]}" 2>/dev/null || true
}

end_started() { # end_started GRACE_S: leave it GRACE_S to end alone, then TERM, 5 s later KILL
    local tenth
    for ((tenth = 0; tenth < $1 * 10; tenth++)); do
        signal_started 0 || return 0
        sleep 0.1
    done
    signal_started TERM || return 0
    for ((tenth = 0; tenth < 50; tenth++)); do
        signal_started 0 || return 0
        sleep 0.1
    done
    signal_started KILL || true
}

# shellcheck disable=SC2329 # called by the traps
interrupted() { # interrupted EXIT_CODE
    trap '' INT TERM HUP
    printf '\n%s\n' "interrupted: ending nsys and the run" >&2
    end_started 0
    exit "$1"
}

limited() { # limited COMMAND...: run it marked and under the time limit; its exit code
    local code=0 began_s=$SECONDS
    # A job with its own process group, awaited with `wait`: the traps run at once and not when the command ends, and
    # SIGINT is not ignored in it, as it would be in a plain background job.
    set -m
    env "$marker" timeout -k 10 "$timeout_s" "$@" </dev/null &
    set +m
    wait $! || code=$?
    if ((code >= 124 && SECONDS - began_s >= timeout_s)); then
        echo "nsys did not finish within ${timeout_s} s and was ended; NSYS_TIMEOUT_S sets the limit" >&2
        code=124
    fi
    end_started 2 # the agent is known to spin on after the command is done
    return "$code"
}

[[ ${1-} == -h || ${1-} == --help ]] && usage && exit 0
for argument in "$@"; do
    case $argument in
    -m | --mu* | *hydra.mode=[Mm]*)
        fail 2 "$argument: one run at a time; a profile of a sweep would mix its runs" \
            "call this script once for each set of overrides"
        ;;
    esac
done
timeout_s=${NSYS_TIMEOUT_S:-600}
[[ $timeout_s =~ ^[1-9][0-9]{0,8}$ ]] || fail 2 "NSYS_TIMEOUT_S=$timeout_s: a whole number of seconds above 0"
command -v nsys >/dev/null || fail 3 \
    "nsys not found: install Nsight Systems (developer.nvidia.com/nsight-systems, or the apt package nsight-systems)" \
    "and put nsys on the PATH"
python=${PYTHON:-$(command -v python || echo python3)}
python=$(command -v "$python") || fail 2 "PYTHON=$python: no such interpreter"
# Absolute before the cd below. Not resolved: a virtual environment is known by its link's path.
[[ $python == /* ]] || python=$PWD/$python

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${NSYS_OUT:-$checkout/outputs/nsys/$(date -u +%Y%m%dT%H%M%SZ)-$$}
mkdir -p "$out"
out=$(cd "$out" && pwd)
for file in "$out"/profile.*; do
    [[ -e $file ]] && fail 2 "NSYS_OUT=$out: holds a profile already; name another folder"
done
cd "$checkout"

trap 'interrupted 130' INT
trap 'interrupted 143' TERM
trap 'interrupted 129' HUP
# cuda is asked for on any machine: without a driver nsys records NVTX alone and says nothing. Nodes of CUDA graphs, not
# whole graphs, or else the kernels in them would go uncounted. CPU sampling off: it makes reports of hundreds of MB.
code=0
limited nsys profile -t cuda,nvtx --cuda-graph-trace=node -s none --cpuctxsw=none -o "$out/profile" \
    "$python" -m runner "$@" || code=$?
if [[ ! -s $out/profile.nsys-rep ]]; then
    ((code)) || code=1
    fail "$code" "nsys left no report in $out"
fi
export_code=0
limited nsys export --type sqlite --quiet true --output "$out/profile.sqlite" "$out/profile.nsys-rep" ||
    export_code=$?
if ((export_code)); then
    ((code)) || code=$export_code
    fail "$code" "nsys could not export $out/profile.nsys-rep (exit code $export_code)"
fi
echo "profile: $out"
"$python" -m runner.nsys "$out/profile.sqlite" || export_code=$?
((code)) || code=$export_code
exit "$code"
