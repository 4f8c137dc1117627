# shellcheck shell=bash disable=SC2154 # `tool` is the sourcing script's
# Functions that the profiler scripts share. They source this file.
# Input: `tool`, nsys or ncu; from the environment TOOL_OUT and TOOL_TIMEOUT_S (in capitals), and PYTHON.
# Output: `timeout_s`, `python`, `checkout` and `out` for the caller. No process is left at the end.

fail() { # fail EXIT_CODE LINE...
    local code=$1
    shift
    printf '%s\n' "$@" >&2
    exit "$code"
}

# A profiler starts its agent and the profiled program in sessions of their own, so no process group holds them all.
# Each inherits the environment: this variable marks the processes of this run, and no others.
marker="LAUNCHOPT_PROFILER_RUN=$$-$RANDOM-$RANDOM"

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
    printf '\n%s\n' "interrupted: ending $tool and the run" >&2
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
        echo "$tool did not finish within ${timeout_s} s and was ended; ${tool^^}_TIMEOUT_S sets the limit" >&2
        code=124
    fi
    end_started 2 # the agent is known to spin on after the command is done
    return "$code"
}

refuse_overrides() { # refuse_overrides OVERRIDE...: what cannot be profiled
    local argument
    for argument in "$@"; do
        case $argument in
        -m | --mu* | *hydra.mode=[Mm]*)
            fail 2 "$argument: one run at a time; a profile of a sweep would mix its runs" \
                "call this script once for each set of overrides"
            ;;
        timing=cupti | timing=torch | timing.kind=cupti | timing.kind=torch)
            fail 2 "$argument: CUPTI has room for one tracer, and here that is $tool; use timing=events or timing=host"
            ;;
        esac
    done
}

prepare() { # prepare PRODUCT PACKAGE: sets timeout_s, python, checkout, out; makes no folder
    local limit_name=${tool^^}_TIMEOUT_S out_name=${tool^^}_OUT
    timeout_s=${!limit_name:-600}
    [[ $timeout_s =~ ^[1-9][0-9]{0,8}$ ]] || fail 2 "$limit_name=$timeout_s: a whole number of seconds above 0"
    command -v "$tool" >/dev/null || fail 3 \
        "$tool not found: install $1 (developer.nvidia.com/${1,,}, or the apt package $2)" \
        "and put $tool on the PATH"
    python=${PYTHON:-$(command -v python || echo python3)}
    python=$(command -v "$python") || fail 2 "PYTHON=$python: no such interpreter"
    # Absolute before the cd below. Not resolved: a virtual environment is known by its link's path.
    [[ $python == /* ]] || python=$PWD/$python
    checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    out=${!out_name:-$checkout/outputs/$tool/$(date -u +%Y%m%dT%H%M%SZ)-$$}
}

claim() { # claim GLOB: make `out`, which must not hold such files yet; then work in the checkout, signals trapped
    local file
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    for file in "$out"/$1; do
        [[ -e $file ]] && fail 2 "${tool^^}_OUT=$out: holds a profile already; name another folder"
    done
    cd "$checkout" || exit
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM
    trap 'interrupted 129' HUP
}

run_dir() { # run_dir FOLDER: the override that puts a run there, quoted for Hydra
    printf "hydra.run.dir='%s'" "${1//\'/\\\'}"
}

nsys_run() { # nsys_run FOLDER OVERRIDE...: profile.nsys-rep and profile.sqlite in FOLDER; the run's exit code
    local folder=$1 code=0 export_code=0
    shift
    # cuda is asked for on any machine: without a driver nsys records NVTX alone and says nothing. Nodes of CUDA graphs,
    # not whole graphs, or else the kernels in them would go uncounted. CPU sampling off: it makes reports of hundreds
    # of MB.
    limited nsys profile -t cuda,nvtx --cuda-graph-trace=node -s none --cpuctxsw=none -o "$folder/profile" \
        "$python" -m runner "$@" || code=$?
    if [[ ! -s $folder/profile.nsys-rep ]]; then
        ((code)) || code=1
        fail "$code" "nsys left no report in $folder"
    fi
    limited nsys export --type sqlite --quiet true --output "$folder/profile.sqlite" "$folder/profile.nsys-rep" ||
        export_code=$?
    if ((export_code)); then
        ((code)) || code=$export_code
        fail "$code" "nsys could not export $folder/profile.nsys-rep (exit code $export_code)"
    fi
    return "$code"
}
