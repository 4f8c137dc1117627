#!/usr/bin/env bash
# Installs the project with its development tools into .venv and runs every check: lint, types, known
# vulnerabilities of what is installed (skipped, and said, where the index or the service is out of reach), tests.
# Enters: PYTHON (default: the newest of python3.11 to 3.13 found, else python3). Needs no GPU, no torch.
set -euo pipefail
cd "$(dirname "$0")/.."

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
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
bash scripts/audit.sh
# A file of tests goes to one process, but for the longest ones, in the order of tests/conftest.py.
exec .venv/bin/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder "$@"
