#!/usr/bin/env bash
# Tests the jobs in this folder on a temporary SLURM with two nodes on this machine, in about three minutes
#
#   docker/slurm/try-slurm.sh          # needs Debian's slurm-wlm and munge; as root it installs them
#   PENSTOCK=/opt/venv/bin/penstock docker/slurm/try-slurm.sh
#
# Everything (configuration, key, sockets, logs, data) is in a temporary folder; clusters and services are not
# touched. Prints a line PASS or FAIL for each of: a run on two nodes, a stop by a signal, a preemption, a lost node,
# errors, a cache built by a job array. The losses are compared bit for bit.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PENSTOCK=${PENSTOCK:-$PWD/.venv/bin/penstock}
read -ra penstock <<<"$PENSTOCK"
# Two ranks, each with its own training process, on a machine that may have two processors.
export OMP_NUM_THREADS=1
unset "${!SLURM_@}" "${!SBATCH_@}" RANK WORLD_SIZE MASTER_ADDR MASTER_PORT JOBS CHECKPOINT MAX_RESTARTS SRUN_OPTIONS

here=$(mktemp -d "${TMPDIR:-/tmp}/try-slurm.XXXXXX")
chmod 755 "$here"
daemons=()
failures=0

cleanup() {
    local code=$?
    trap - EXIT INT TERM HUP
    if ((${#daemons[@]} > 1)); then
        scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || :;
        scancel --user="$(id -un)" 2>/dev/null || :;
        for _ in {1..50}; do [[ -n $(squeue --noheader 2>/dev/null) ]] || break; sleep 0.2; done
    fi
    # In reverse order: all others need munged.
    for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
        kill "${daemons[i]}" 2>/dev/null || :;
        wait "${daemons[i]}" 2>/dev/null || :;
    done
    if ((code && ${#daemons[@]})); then tail --lines=25 "$here"/log/* "$here"/*.log 2>/dev/null || :; fi
    rm -rf "$here"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

die() {
    echo "try-slurm: $*" >&2
    exit 1
}

install_slurm() {
    export PATH=$PATH:/usr/sbin
    local missing=()
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null || missing+=(slurm-wlm)
    command -v munged >/dev/null || missing+=(munge)
    ((${#missing[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        die "missing: sudo apt-get install --no-install-recommends ${missing[*]}"
    fi
    echo "try-slurm: apt-get install ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$here/apt.log" 2>&1 ||
        { cat "$here/apt.log" >&2; die "apt-get failed"; }
}

# start NAME COMMAND: starts a daemon that Ctrl-C does not reach, because jobs must end first.
start() {
    setsid "${@:2}" </dev/null >"$here/log/$1.out" 2>&1 &
    daemons+=($!)
}

until_true() { # SECONDS COMMAND...: succeeds if the command succeeds within that time
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.3
    done
}

start_slurm() {
    local user port host
    user=$(id -un) host=$(hostname -s) port=$((20000 + RANDOM % 10000))
    mkdir -p "$here"/{log,state}
    (umask 077 && head --bytes=1024 /dev/urandom >"$here/munge.key")
    export SLURM_CONF=$here/slurm.conf
    cat >"$SLURM_CONF" <<END
ClusterName=try
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# A requeued job waits as long as its old credential is valid.
AuthInfo=socket=$here/munge.socket,cred_expire=5
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool.%n
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
ReturnToService=1
SlurmdTimeout=10
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=node[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=2 Gres=gpu:1
PartitionName=main Nodes=node[1-2] Default=YES PriorityTier=1 GraceTime=60 MaxTime=10
PartitionName=urgent Nodes=node[1-2] PriorityTier=10 PreemptMode=OFF MaxTime=10
END
    # Replaces a GPU, so that the job's options need not be changed here.
    echo 'NodeName=node[1-2] Name=gpu File=/dev/null' >"$here/gres.conf"
    start munged munged --foreground --key-file="$here/munge.key" --socket="$here/munge.socket" \
        --pid-file="$here/munged.pid" --seed-file="$here/munged.seed" --log-file="$here/log/munged"
    until_true 20 test -S "$here/munge.socket" || die "munged does not start"
    start slurmctld slurmctld -D
    start node1 slurmd -D -N node1
    start node2 slurmd -D -N node2
    node2=${daemons[-1]}
    until_true 40 nodes_idle || die "the nodes do not come up"
}

nodes_idle() { [[ $(sinfo --noheader --partition=main --states=idle --format=%D 2>/dev/null) == 2 ]]; }
field() { scontrol show job "$1" --oneliner | grep -o "\b$2=[^ ]*" | head -n 1 | cut -d= -f2-; }
is() { [[ $(field "$1" "$2") == "$3" ]]; } # JOB FIELD VALUE
ended() { [[ $(field "$1" JobState) =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)$ ]]; }
completed() { until_true 300 ended "$1" && is "$1" JobState COMPLETED; }
says() { grep -qs -- "$2" "$here/$1.log"; } # NAME WORDS

# train NAME [sbatch's options] -- [penstock's]: submits the job; prints its number
train() {
    local name=$1 options=()
    shift
    while [[ $1 != -- ]]; do options+=("$1") && shift; done
    sbatch --parsable --job-name="$name" --output="$here/$name.log" --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 \
        --cpus-per-task=1 --time=5 --signal=TERM@60 "${options[@]}" docker/slurm/train.sbatch "$here/photos" \
        --checkpoint "$here/$name.pt" --json "$here/$name.json" --device cpu --epochs 3 --size 48 --batch-size 16 \
        --lr 0.02 --checkpoint-every 4 "${@:2}"
}

losses() { # NAME: losses of the last epoch, with all bits
    python3 -c 'import json, sys
epoch = json.load(open(sys.argv[1]))["epochs"][-1]
print(epoch["epoch"] + 1, repr(epoch["loss"]), repr(epoch["validation"]["loss"]))' "$here/$1.json"
}

verdict() { # WHAT COMMAND...: one line, and the log if it failed
    local what=$1 job=$2
    shift 2
    if "$@"; then
        echo "PASS $what"
    else
        echo "FAIL $what"
        failures=$((failures + 1))
        scontrol show job "$job" || :;
    fi
}

goes_on() { # NAME JOB: the job is requeued once, continues from the saved state, and ends with the same losses
    completed "$2" && is "$2" Restarts 1 && says "$1" 'resuming from' || return
    echo "     $(losses "$1")  (undisturbed: $(losses whole))"
    [[ $(losses "$1") == "$(losses whole)" ]]
}

crash_node2() { # kills its daemon, the parents of its tasks, and the tasks, without warning
    local pid tasks=() keepers=()
    for pid in /proc/[0-9]*; do
        if mine "$pid" "SLURM_CONF=$SLURM_CONF" && mine "$pid" SLURMD_NODENAME=node2; then
            tasks+=("${pid#/proc/}")
            keepers+=("$(ps -o ppid= -p "${pid#/proc/}" | tr -d ' ')")
        fi
    done
    kill -KILL "$node2" "${keepers[@]}" "${tasks[@]}" 2>/dev/null || :;
    wait "$node2" 2>/dev/null || :;
}
mine() { tr '\0' '\n' 2>/dev/null <"$1/environ" | grep -qx -- "$2"; }

stays_ended() { until_true 120 ended "$1" && is "$1" JobState FAILED && is "$1" ExitCode "$2" && is "$1" Restarts 0; }
saved() { until_true 120 test -s "$here/$1.pt"; }

install_slurm
"${penstock[@]}" synth "$here/photos" --images 128 --validation 32 --classes 4 --workers 1 >"$here/synth.log"
start_slurm

job=$(train whole --)
verdict "two nodes, one rank each: trained to the end" "$job" completed "$job"
echo "     epoch, loss, loss of validation: $(losses whole)"

job=$(train stopped --)
saved stopped && scancel --signal=TERM "$job"
verdict "stopped by SIGTERM: saved, requeued, continued" "$job" goes_on stopped "$job"

job=$(train preempted --)
saved preempted && sbatch --partition=urgent --nodes=2 --gpus-per-node=1 --output=/dev/null --wrap='sleep 1' >/dev/null
verdict "preempted by a job of higher priority: continued" "$job" goes_on preempted "$job"

job=$(train lost --)
saved lost && crash_node2
until_true 60 is "$job" Restarts 1 && start node2 slurmd -D -N node2 && scontrol update nodename=node2 state=resume
verdict "a node lost: continued from the last save" "$job" goes_on lost "$job"

job=$(train refused -- --checkpoint "$here/whole.pt" --lr 0.5)
verdict "an error (a checkpoint of another run): not requeued" "$job" stays_ended "$job" 2:0

job=$(MAX_RESTARTS=0 train capped --)
saved capped && scancel --signal=TERM "$job"
verdict "stopped more often than MAX_RESTARTS: not requeued" "$job" stays_ended "$job" 143:0

job=$(train cancelled --)
until_true 120 says cancelled 'starting anew' && scancel "$job"
cancelled() { until_true 120 is "$job" JobState CANCELLED && ! until_true 8 is "$job" JobState PENDING; }
verdict "cancelled by its user: not requeued" "$job" cancelled

job=$(sbatch --parsable --array=0-2 --cpus-per-task=1 --time=5 --output="$here/cache-%a.log" \
    docker/slurm/cache.sbatch "$here/photos/train" "$here/cache" --shards 6)
until_true 120 compgen -G "$here/cache/shard-00001*" >/dev/null && scancel --signal=TERM "${job}_1"
array_is_done() { [[ -z $(squeue --noheader --job="$job" 2>/dev/null) ]] && test -s "$here/cache/penstock-cache.json"; }
built() {
    until_true 300 array_is_done && is "${job}_1" Restarts 1 && is "${job}_0" Restarts 0 &&
        "${penstock[@]}" cache verify "$here/cache" --source "$here/photos/train" >/dev/null
}
verdict "a cache of six shards, by an array of three tasks, one stopped and requeued" "$job" built

((failures == 0)) || die "$failures of the above failed"
