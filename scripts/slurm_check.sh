#!/usr/bin/env bash
# Check hydra/launcher=submitit_slurm against a real Slurm of this machine: a private controller and two nodes of one core
# each, without accounting, systemd or cgroups. It starts them, runs tests/runner/parallel/test_slurm.py, stops them, and
# writes a log. Another Slurm of this machine is not touched. It installs nothing, and says what is missing.
# Argument: the log (default: outputs/slurm_check.log). Environment: PYTHON, the interpreter (default: .venv/bin/python).
# About 5 minutes on two cores. Tried as root.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
log=$(realpath -m "${1:-$checkout/outputs/slurm_check.log}")
cd "$checkout"
python=${PYTHON:-.venv/bin/python}
nodes=(a b)
PATH=$PATH:/usr/sbin

for program in munged slurmctld slurmd sbatch srun squeue scancel scontrol; do
    command -v "$program" >/dev/null && continue
    echo "scripts/slurm_check.sh: needs $program; on Debian, type: apt-get install slurmctld slurmd slurm-client munge" >&2
    exit 2
done
if ! "$python" -c 'import submitit, hydra_plugins.hydra_submitit_launcher' 2>/dev/null; then
    echo "scripts/slurm_check.sh: $python lacks submitit; type: pip install -e '.[dev]', or name another one with PYTHON=..." >&2
    exit 2
fi

folder=$(mktemp -d /tmp/launchopt-slurm-XXXXXX)
export SLURM_CONF=$folder/slurm.conf LAUNCHOPT_SLURM=$folder
mapfile -t ports < <("$python" - <<'PYTHON'
import contextlib, socket
with contextlib.ExitStack() as stack:
    for found in [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]:
        print(found.getsockname()[1])
PYTHON
)

ended() { # ended PID: whether a process is gone, or waits for its parent only
    ! grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null
}

stop() { # end the jobs, then the daemons in the opposite order of their start
    local file pid
    timeout 10 scancel --quiet --user="$(id -un)" 2>/dev/null || true
    for file in "$folder"/{slurmd-a,slurmd-b,slurmctld,munged}.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for ((tenth = 0; tenth < 50; tenth++)); do
            ended "$pid" && continue 2
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap stop EXIT

start() {
    local name index=1
    mkdir "$folder/state"
    chmod 755 "$folder"
    {
        echo "ClusterName=check"
        echo "SlurmctldHost=$(hostname)(127.0.0.1)"
        echo "SlurmctldPort=${ports[0]}"
        echo "SlurmUser=$(id -un)"
        echo "SlurmdUser=$(id -un)"
        echo "AuthType=auth/munge"
        echo "AuthInfo=socket=$folder/munge.socket,cred_expire=5" # a job of a lost node waits so long to begin again
        echo "CredType=cred/munge"
        echo "StateSaveLocation=$folder/state"
        for name in SlurmctldPidFile:slurmctld.pid SlurmctldLogFile:slurmctld.log SlurmdPidFile:slurmd-%n.pid \
            SlurmdLogFile:slurmd-%n.log SlurmdSpoolDir:spool-%n; do
            echo "${name%%:*}=$folder/${name#*:}"
        done
        # Without cgroups Slurm finds the processes of a job by their parents.
        echo "ProctrackType=proctrack/linuxproc"
        echo "TaskPlugin=task/none"
        echo "JobAcctGatherType=jobacct_gather/none"
        echo "AccountingStorageType=accounting_storage/none"
        echo "MpiDefault=none"
        echo "SelectType=select/cons_tres"
        echo "SelectTypeParameters=CR_CPU"
        echo "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0"
        echo "ReturnToService=1"
        echo "SlurmdTimeout=10"
        echo "KillWait=5"
        for name in "${nodes[@]}"; do
            mkdir "$folder/spool-$name"
            echo "NodeName=$name NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=${ports[index++]} CPUs=1 RealMemory=1000"
        done
        echo "PartitionName=all Nodes=ALL Default=YES State=UP"
    } >"$SLURM_CONF"
    (umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    slurmctld -c -f "$SLURM_CONF"
    for name in "${nodes[@]}"; do
        slurmd -N "$name" -f "$SLURM_CONF"
    done
    for ((tenth = 0; tenth < 200; tenth++)); do
        [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "${#nodes[@]}" ] && return
        sleep 0.1
    done
    tail -n 5 "$folder"/*.log >&2
    echo "scripts/slurm_check.sh: Slurm has not started within 20 s" >&2
    exit 1
}

about() { # the versions, as lines of the log
    "$python" - <<'PYTHON'
import platform
from importlib.metadata import version
names = ("hydra-core", "hydra-submitit-launcher", "submitit")
print(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names))
PYTHON
    echo "$(slurmctld -V), munge $(munged -V | grep -om1 '[0-9][0-9.]*[0-9]'), ${#nodes[@]} nodes of 1 core, no accounting"
    echo "launchopt $(git describe --always --dirty --abbrev=40 --exclude '*'), $(date -u +%Y-%m-%d)"
}

start
mkdir -p "$(dirname "$log")"
about >"$log"
code=0
PYTHONPATH=$checkout "$python" -m pytest -v --no-header --durations=0 --durations-min=1 -p no:cacheprovider \
    tests/runner/parallel/test_slurm.py 2>&1 | sed -e "s|$folder|FOLDER|g" -e "s|$checkout|CHECKOUT|g" | tee -a "$log" || code=$?
exit "$code"
