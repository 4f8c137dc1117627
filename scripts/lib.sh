# shellcheck shell=bash disable=SC2154 # the sourcing script sets `tool`
# Functions of the profiler scripts, which source this file.
# Input: the variable `tool`, nsys or ncu. Environment: NSYS_OUT or NCU_OUT, the folder of the files; NSYS_TIMEOUT_S or
# NCU_TIMEOUT_S, the time limit of one command in seconds; PYTHON, the interpreter.
# Output: the variables `timeout_s`, `python`, `checkout` and `out`. No process is left at the end.

fail() { # fail EXIT_CODE LINE...: print the lines to stderr and exit
    local code=$1
    shift
    printf '%s\n' "$@" >&2
    exit "$code"
}

# A profiler starts its agent and the profiled program in separate sessions, so they share no process group. They do
# inherit the environment. This variable therefore marks exactly the processes that this script started.
marker="LAUNCHOPT_PROFILER_RUN=$$-$RANDOM-$RANDOM"

started_pids() { # started_pids: print the pid of each marked process
    grep -lszxF -- "$marker" /proc/[0-9]*/environ | cut -d/ -f3 || true
}

signal_started() { # signal_started SIGNAL: signal the marked processes; false if there are none
    local -a pids
    mapfile -t pids < <(started_pids)
    ((${#pids[@]})) || return 1
    kill -s "$1" "${pids[@]}" 2>/dev/null || true
}

end_started() { # end_started GRACE_S: wait GRACE_S for the marked processes, then send TERM, and 5 s later KILL
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
interrupted() { # interrupted EXIT_CODE: end the marked processes and exit
    trap '' INT TERM HUP
    printf '\n%s\n' "interrupted: ending $tool and the run" >&2
    end_started 0
    exit "$1"
}

limited() { # limited COMMAND...: run a marked command under the time limit; return its exit code, or 124
    local code=0 began_s=$SECONDS
    # The command is a job with its own process group, and `wait` awaits it. Traps then run at once, not after the
    # command. A plain background job would ignore SIGINT.
    set -m
    env "$marker" timeout -k 10 "$timeout_s" "$@" </dev/null &
    set +m
    wait $! || code=$?
    if ((code >= 124 && SECONDS - began_s >= timeout_s)); then
        echo "$tool did not finish within ${timeout_s} s and was ended; ${tool^^}_TIMEOUT_S sets the limit" >&2
        code=124
    fi
    end_started 2 # the profiler's agent may keep running after the command has ended
    return "$code"
}

refuse_overrides() { # refuse_overrides OVERRIDE...: fail if a profiler cannot run with one of them
    local argument
    for argument in "$@"; do
        case $argument in
        -m | --mu* | *hydra.mode=[Mm]*)
            fail 2 "$argument: one run at a time; a profile of a sweep would mix its runs" \
                "call this script once for each set of overrides"
            ;;
        timing=cupti | timing=torch | timing.kind=cupti | timing.kind=torch)
            fail 2 "$argument: CUPTI accepts one tracer, and here that is $tool; use timing=events or timing=host"
            ;;
        esac
    done
}

prepare() { # prepare PRODUCT PACKAGE: set timeout_s, python, checkout and out; create nothing
    local limit_name=${tool^^}_TIMEOUT_S out_name=${tool^^}_OUT
    timeout_s=${!limit_name:-600}
    [[ $timeout_s =~ ^[1-9][0-9]{0,8}$ ]] || fail 2 "$limit_name=$timeout_s: a whole number of seconds above 0"
    command -v "$tool" >/dev/null || fail 3 \
        "$tool not found: install $1 (developer.nvidia.com/${1,,}, or the apt package $2)" \
        "and put $tool on the PATH"
    python=${PYTHON:-$(command -v python || echo python3)}
    python=$(command -v "$python") || fail 2 "PYTHON=$python: no such interpreter"
    # Make the path absolute, since `claim` changes the folder. Keep links: Python finds a virtual environment by the
    # path of its link.
    [[ $python == /* ]] || python=$PWD/$python
    checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    out=${!out_name:-$checkout/outputs/$tool/$(date -u +%Y%m%dT%H%M%SZ)-$$}
}

claim() { # claim GLOB: create `out`, fail if it holds such files, then go to the checkout and trap signals
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

run_dir() { # run_dir FOLDER: print the override that makes it the folder of a run, quoted for Hydra
    printf "hydra.run.dir='%s'" "${1//\'/\\\'}"
}

nsys_run() { # nsys_run FOLDER OVERRIDE...: write profile.nsys-rep and profile.sqlite; return the run's exit code
    local folder=$1 code=0 export_code=0
    shift
    # cuda works on any machine: without a driver nsys records NVTX alone, without a message. Tracing nodes of CUDA graphs
    # instead of whole graphs is what counts their kernels. CPU sampling would make reports of hundreds of MB.
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
