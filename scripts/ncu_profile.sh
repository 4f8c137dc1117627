#!/usr/bin/env bash
# Profile some kernel launches of one run with Nsight Compute and print the limit of each.
# Input: options that select launches, and Hydra overrides. Output: a table on stdout; one folder with profile.ncu-rep,
# profile.csv, profile.parquet, ncu.log and the folder of the run.
set -euo pipefail
tool=ncu
here=${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}
# shellcheck source=scripts/lib.sh
. "${here:-./}lib.sh"

usage() {
    printf '%s\n' \
        "Usage: scripts/ncu_profile.sh [options] [hydra overrides...]" \
        "                 e.g. --launches 2 mode=batched workload=gemv_micro workload.commands=4096" \
        "Runs 'python -m runner' under ncu, which replays the first kernels launched in a launchopt range. The warm-up run" \
        "has no ranges. Keep the job small: ncu observes all launches, and serialises them." \
        "" \
        "  --launches N    number of kernels to profile        (default: 3)" \
        "  --skip N        matching kernels to skip first      (default: 0)" \
        "  --range NAME    only launches of this range, as scripts/nsys_profile.sh lists them:" \
        "                  'batched 64x1x8192 fp32'            (default: any)" \
        "  --kernel REGEX  only kernels with a matching name   (default: any)" \
        "  --bench PART    profile 'launchopt bench PART' instead; takes no overrides" \
        "" \
        "  NCU_OUT         folder for the files    (default: outputs/ncu/<UTC time>-<pid>)" \
        "  NCU_TIMEOUT_S   time limit in seconds   (default: 600)" \
        "  PYTHON          interpreter             (default: python, else python3)" \
        "" \
        "Exit code: the profiled program's; 2 wrong usage, 3 no ncu, 4 counters not permitted, 124 time limit," \
        "130 Ctrl-C."
}

counters_refused() { # counters_refused: true if ncu's log says that this user may not read counters
    grep -qs ERR_NVGPUCTRPERM "$out/ncu.log"
}

number() { # number OPTION VALUE MINIMUM: fail unless VALUE is an integer from MINIMUM to 999999
    if ! [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ ]] || (($2 < $3)); then
        fail 2 "$1 $2: a whole number from $3 to 999999"
    fi
}

launches=3 skip=0 range='' kernel='' bench=''
while [[ ${1-} == -* ]]; do
    case $1 in
    -h | --help) usage && exit 0 ;;
    --launches | --skip | --range | --kernel | --bench) (($# >= 2)) || fail 2 "$1: needs a value" ;;
    *) fail 2 "$1: no such option; --launches, --skip, --range, --kernel and --bench come before the overrides" ;;
    esac
    case $1 in
    --launches) number "$1" "$2" 1 && launches=$2 ;;
    --skip) number "$1" "$2" 0 && skip=$2 ;;
    --range) range=$2 ;;
    --kernel) kernel=$2 ;;
    --bench) bench=$2 ;;
    esac
    shift 2
done
[[ -z $bench ]] || (($# == 0)) || fail 2 "$1: --bench takes no overrides"
for argument in "$@"; do
    [[ $argument != *hydra.run.dir=* ]] || fail 2 "$argument: set by this script, to a folder beside the profile"
done
refuse_overrides "$@"
prepare Nsight-Compute nsight-compute
claim 'profile.*'

# ncu marks a push/pop range by a slash at the end. A backslash escapes ncu's special characters in a name. The default
# includes every range of the domain.
include='regex:launchopt@.+/'
[[ -z $range ]] || include="launchopt@$(sed 's/[][@,/*+]/\\&/g' <<<"$range")/"
select=(--nvtx --nvtx-include "$include" --launch-skip "$skip" --launch-count "$launches")
[[ -z $kernel ]] || select+=(--kernel-name "regex:$kernel")
sections=(--section SpeedOfLight --section MemoryWorkloadAnalysis --section LaunchStats --section Occupancy)
sections+=(--metrics dram__bytes_read.sum)

program=(-m runner "$@" "$(run_dir "$out/run")")
[[ -z $bench ]] || program=(-m runner.bench "$bench" --device cuda --repeats 1 --output "$out/run")

code=0
# A child process of the program makes the launches. ncu leaves the GPU's clocks as a run has them.
limited ncu --target-processes all "${select[@]}" "${sections[@]}" --clock-control none \
    --log-file "$out/ncu.log" --export "$out/profile" "$python" "${program[@]}" || code=$?
if counters_refused; then
    fail 4 "ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM): run it as root, or let an administrator set" \
        "'options nvidia NVreg_RestrictProfilingToAdminUsers=0' in /etc/modprobe.d/ and reload the driver;" \
        "in a container add the capability SYS_ADMIN. nsys and timing=cupti need no such right."
fi
if [[ ! -s $out/profile.ncu-rep ]]; then
    [[ ! -s $out/ncu.log ]] || grep -E '^==(ERROR|WARNING)==' "$out/ncu.log" >&2 || true
    ((code)) || code=1
    fail "$code" "ncu left no report in $out: no kernel of the run matched, or the run ended before one"
fi
import_code=0
limited ncu --import "$out/profile.ncu-rep" --csv --page raw --print-units base >"$out/profile.csv" || import_code=$?
if ((import_code)); then
    ((code)) || code=$import_code
    fail "$code" "ncu could not read $out/profile.ncu-rep (exit code $import_code)"
fi
echo "profile: $out"
table_code=0
"$python" -m runner.ncu "$out/profile.csv" --output "$out/profile.parquet" || table_code=$?
((code)) || code=$table_code
exit "$code"
