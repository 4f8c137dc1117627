#!/usr/bin/env bash
# Install the project with its development tools into .venv and run every check: lint, types, the documentation, known
# vulnerabilities of the installed packages, tests. The vulnerability check is skipped, with a message, if it cannot reach its service.
# Environment: PYTHON, the interpreter (default: the first usable of python3.11, python3.12, python3.13 and python3).
# Arguments: --release, which comes first, also refuses results that are older than a change to the code that made them
# (scripts/stale.py); others are passed on to pytest. It needs neither a GPU nor PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # tests start several hundred processes: without bytecode each compiles 250 files, for 0.4 s

usable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

pick_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if usable "$name"; then
            echo "$name"
            return
        fi
    done
    echo "scripts/check.sh: needs Python 3.11 to 3.13; name one with PYTHON=..." >&2
    exit 2
}

[ -x .venv/bin/python ] || "$(pick_python)" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet # any broken link ends the checks; about 5 s
if [ "${1-}" = --release ]; then
    shift
    .venv/bin/python scripts/stale.py --check
fi
bash scripts/audit.sh
# One process runs all tests of a file, except the longest ones, in the order of tests/conftest.py.
exec .venv/bin/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder "$@"
