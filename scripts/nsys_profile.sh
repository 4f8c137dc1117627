#!/usr/bin/env bash
# Profile one run of this project under Nsight Systems and print the launches of each NVTX range.
# Input: Hydra overrides. Output: a table on stdout; a folder with profile.nsys-rep and profile.sqlite.
set -euo pipefail
tool=nsys
here=${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}
# shellcheck source=scripts/lib.sh
. "${here:-./}lib.sh"

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

[[ ${1-} == -h || ${1-} == --help ]] && usage && exit 0
refuse_overrides "$@"
prepare Nsight-Systems nsight-systems
claim 'profile.*'
code=0
nsys_run "$out" "$@" || code=$?
echo "profile: $out"
table_code=0
"$python" -m runner.nsys "$out/profile.sqlite" || table_code=$?
((code)) || code=$table_code
exit "$code"
