#!/usr/bin/env bash
# Check the packages of .venv for known vulnerabilities with pip-audit (PyPI's advisories).
# Exit code: 0 no vulnerability, or the audit is skipped, with the reason; 1 a vulnerable package.
# Environment: AUDIT_STRICT=1 turns a skipped audit into exit code 1.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    echo "scripts/audit.sh: skipped: $1"
    exit "${AUDIT_STRICT:-0}"
}

python=.venv/bin/python
[ -x "$python" ] || skip "there is no .venv: run scripts/check.sh first"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
# pip-audit gets an environment of its own: the audit covers only the packages that the project needs.
"$python" -m venv "$tools/venv" >"$tools/log" 2>&1 || skip "no environment for pip-audit can be made"
"$tools/venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 pip-audit \
    >"$tools/log" 2>&1 || skip "pip-audit cannot be installed from this index"
"$python" -m pip freeze --exclude-editable --disable-pip-version-check >"$tools/installed"

status=0
timeout 300 "$tools/venv/bin/pip-audit" --requirement "$tools/installed" --no-deps --disable-pip --progress-spinner off \
    --timeout 15 >"$tools/report" 2>"$tools/log" || status=$?
if [ "$status" -eq 0 ]; then
    echo "scripts/audit.sh: no known vulnerability in $(wc -l <"$tools/installed") packages"
elif [ -s "$tools/report" ] && grep -q '^Found .* known vulnerabilit' "$tools/log"; then
    cat "$tools/log" "$tools/report"
    exit 1
else
    skip "the vulnerability service did not answer: $(tail -n 1 "$tools/log" | cut -c 1-160)"
fi
