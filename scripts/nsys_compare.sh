#!/usr/bin/env bash
# Profile one job in two modes under Nsight Systems and print the launches of both side by side.
# Input: two modes, and Hydra overrides. Output: a table on stdout; one folder with compare.parquet, a-MODE/ and b-MODE/.
# Each of the two holds profile.nsys-rep, profile.sqlite and the folder of the run.
set -euo pipefail
tool=nsys
here=${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}
# shellcheck source=scripts/lib.sh
. "${here:-./}lib.sh"

usage() {
    printf '%s\n' \
        "Usage: scripts/nsys_compare.sh MODE_A MODE_B [hydra overrides...]" \
        "                                e.g. batched graph workload=gemv_micro workload.commands=4096" \
        "Runs 'python -m runner' under nsys once with each mode, one after the other, and prints both side by side." \
        "The same mode twice is a sanity check. Times are traced: larger than without nsys, no headline times." \
        "" \
        "  NSYS_OUT        folder for the files              (default: outputs/nsys/<UTC time>-<pid>)" \
        "  NSYS_TIMEOUT_S  time limit of a step in seconds   (default: 600)" \
        "  PYTHON          interpreter                       (default: python, else python3)" \
        "" \
        "Exit code: that of the run that failed, the other is then not compared; 2 wrong usage, 3 no nsys," \
        "124 time limit, 130 Ctrl-C."
}

[[ ${1-} == -h || ${1-} == --help ]] && usage && exit 0
(($# >= 2)) || fail 2 "two modes are needed: scripts/nsys_compare.sh MODE_A MODE_B [hydra overrides...]"
modes=("$1" "$2")
shift 2
for mode in "${modes[@]}"; do
    [[ $mode =~ ^[a-z][a-z0-9_]*$ ]] ||
        fail 2 "MODE=$mode: the name of a mode; 'python -m runner mode=help' lists them"
done
for argument in "$@"; do
    case $argument in
    mode=* | *against=* | *hydra.run.dir=*)
        fail 2 "$argument: set by this script, which runs each of its two modes alone, in a folder of its own"
        ;;
    esac
done
refuse_overrides "$@"
prepare Nsight-Systems nsight-systems
claim '[ab]-*'
sides=("a-${modes[0]}" "b-${modes[1]}")
for index in 0 1; do
    folder=$out/${sides[index]}
    mkdir "$folder"
    code=0
    nsys_run "$folder" "mode=${modes[index]}" "$@" "$(run_dir "$folder/run")" || code=$?
    ((code == 0)) ||
        fail "$code" "mode=${modes[index]}: ended with exit code $code, so there is nothing to compare; see $folder"
done
echo "profiles: $out"
exec "$python" -m runner.nsys_compare --output "$out/compare.parquet" \
    "${modes[0]}=$out/${sides[0]}/profile.sqlite" "${modes[1]}=$out/${sides[1]}/profile.sqlite"
