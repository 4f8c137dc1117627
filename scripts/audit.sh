#!/usr/bin/env bash
# Known vulnerabilities in what is installed in .venv, by pip-audit (PyPI's advisories).
# Enters: AUDIT_STRICT=1 makes a skipped audit an error. Out: exit code 1 for a vulnerable package; 0, and a line that
# says why, where pip-audit cannot be had or the service cannot be reached: no network is no finding.
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
# In a folder of its own, so that what is audited is what the project needs and no more.
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
