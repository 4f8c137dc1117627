#!/usr/bin/env bash
# Check a launcher against the real thing on this machine, and write a log.
#     bash scripts/launcher_check.sh ray [LOG]      about 8 minutes on two cores
#     bash scripts/launcher_check.sh slurm [LOG]    about 6 minutes; tried as root
# slurm: starts a private controller and two nodes of one core each, without accounting, systemd or cgroups, runs
# tests/runner/parallel/test_slurm.py, and stops them. Another Slurm of this machine is not touched.
# More arguments go to pytest. It installs nothing, and says what is missing. LOG: outputs/launchers/NAME.log by default. Environment: PYTHON, the
# interpreter (default: .venv/bin/python).
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
name=${1:-}
log=${2:-outputs/launchers/$name.log}
shift $(($# < 2 ? $# : 2))
python=${PYTHON:-.venv/bin/python}
tests=tests/runner/parallel
PATH=$PATH:/usr/sbin

fail() { # fail CODE TEXT
    echo "scripts/launcher_check.sh: $2" >&2
    exit "$1"
}

case $name in
    ray) distributions="hydra-ray-launcher ray" extra=ray checks=("$tests/test_ray.py" "$tests/test_launchers.py" --thorough -k ray) ;;
    slurm) distributions="hydra-submitit-launcher submitit" extra=submitit checks=("$tests/test_slurm.py") ;;
    *) fail 2 "give the launcher to check: ray or slurm" ;;
esac

about() { # the versions, as lines of the log
    "$python" - hydra-core $distributions <<'PYTHON'
import platform, sys
from importlib.metadata import version
print(", ".join([f"Python {platform.python_version()}", *(f"{each} {version(each)}" for each in sys.argv[1:])]))
PYTHON
    [ "$name" = ray ] || echo "$(slurmctld -V), $(munged -V | head -n 1 | cut -d' ' -f1), ${#nodes[@]} nodes of 1 core, no accounting"
    echo "launchopt $(git describe --always --dirty --abbrev=40 --exclude '*'), $(date -u +%Y-%m-%d), $(nproc) cores"
}

run() { # the checks, without paths of this machine
    PYTHONPATH=$checkout "$python" -m pytest -v --no-header --durations=0 --durations-min=1 -p no:cacheprovider "${checks[@]}" "$@" 2>&1 |
        sed -u -e "s|${folder:-$checkout}|FOLDER|g" -e "s|$checkout|CHECKOUT|g"
}

check() { # write the log; the exit code of the checks
    local code=0
    mkdir -p "$(dirname "$log")"
    about >"$log"
    run "$@" | tee -a "$log" || code=$?
    return "$code"
}

nodes=(a b)
"$python" -m pytest --version >/dev/null 2>&1 || fail 2 "$python lacks pytest; type: pip install -e '.[dev,$extra]', or name another one with PYTHON=..."
for distribution in $distributions; do
    "$python" -c 'import sys; from importlib.metadata import version; version(sys.argv[1])' "$distribution" 2>/dev/null ||
        fail 2 "$python lacks $distribution; type: pip install -e '.[dev,$extra]', or name another one with PYTHON=..."
done
if [ "$name" = ray ]; then
    check "$@"
    exit
fi
for program in munged slurmctld slurmd sbatch srun squeue scancel scontrol sinfo; do
    command -v "$program" >/dev/null ||
        fail 2 "needs $program; on Debian, type: apt-get install slurmctld slurmd slurm-client munge"
done

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
    local node name index=1
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
        for node in "${nodes[@]}"; do
            mkdir "$folder/spool-$node"
            echo "NodeName=$node NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=${ports[index++]} CPUs=1 RealMemory=1000"
        done
        echo "PartitionName=all Nodes=ALL Default=YES State=UP"
    } >"$SLURM_CONF"
    (umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    slurmctld -c -f "$SLURM_CONF"
    for node in "${nodes[@]}"; do
        slurmd -N "$node" -f "$SLURM_CONF"
    done
    for ((tenth = 0; tenth < 200; tenth++)); do
        [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "${#nodes[@]}" ] && return
        sleep 0.1
    done
    tail -n 5 "$folder"/*.log >&2
    fail 1 "Slurm has not started within 20 s"
}

start
check "$@"
