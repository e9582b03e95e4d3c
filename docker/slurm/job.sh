# Shared functions of the jobs in this folder: start ranks of penstock, and requeue a job that was saved
#
# shellcheck shell=bash
# A job sets `set -euo pipefail`, sources this file, calls `run_ranks train ...` and ends with `requeue_or_exit CODE`.
# All of these variables can be set in the environment of sbatch:

# The command, in words without blanks. In a virtual environment: .venv/bin/penstock. In a container:
#   PENSTOCK='apptainer exec --nv --bind /data penstock.sif penstock'
: "${PENSTOCK:=.venv/bin/penstock}"
# More options of srun, in words without blanks. With the container plugin pyxis:
#   PENSTOCK=penstock SRUN_OPTIONS='--container-image=penstock.sqsh --container-mounts=/data:/data,/runs:/runs'
: "${SRUN_OPTIONS:=}"
# How often a job may be requeued.
: "${MAX_RESTARTS:=100}"
# The host of rank 0: this script runs on the first node of the job. If that name does not belong to the fast network,
# set NCCL_SOCKET_IFNAME (GPUs) or GLOO_SOCKET_IFNAME (processors).
: "${MASTER_ADDR:=$(hostname)}"
# Jobs that share a node must not share a port.
: "${MASTER_PORT:=$((20000 + SLURM_JOB_ID % 10000))}"
export MASTER_ADDR MASTER_PORT
# Since SLURM 22.05, srun does not inherit this from sbatch.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
# How long the remaining ranks may run after the first one has ended: rank 0 may still be saving, or a node was lost.
# In that case, SLURM itself requeues the job once it detects this (SlurmdTimeout, usually 300 s; `scontrol show
# config`). Not --kill-on-bad-exit: it sends SIGTERM, and ranks that exit because of it (143) would hide the error of
# the one that failed.
: "${LAST_RANK_SECONDS:=900}"

# Runs penstock ARGUMENTS, one process per task; returns the highest exit code. Every step uses exec, so that SLURM's
# signals arrive. srun starts the ranks without torchrun, which would turn every exit code into 1.
run_ranks() {
    local -a command options
    read -ra command <<<"$PENSTOCK"
    read -ra options <<<"$SRUN_OPTIONS"
    # Compiled kernels are stored on the node, in a folder owned by the user: in a home shared by all nodes, hundreds
    # of ranks would write them at once. RANK is not set for a single task: in a job array, `penstock cache build`
    # gets its rank from SLURM's variables.
    # shellcheck disable=SC2016  # the variables are those of each task
    srun --wait="$LAST_RANK_SECONDS" "${options[@]}" bash -c '
        if ((SLURM_NTASKS > 1)); then
            export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
        fi
        kernels=${TMPDIR:-/tmp}/triton-$UID
        if [[ -z ${TRITON_CACHE_DIR:-} ]] && mkdir -p -m 700 "$kernels" && [[ -O $kernels ]]; then
            export TRITON_CACHE_DIR=$kernels
        fi
        exec "$@"' rank "${command[@]}" "$@"
}

# Ends the job with CODE. If a signal stopped it (128 + SIGTERM or SIGUSR1), the job is requeued and continues from
# the saved state. Jobs with errors (2 usage, 3 data, 4 cache, ...) and cancelled jobs are not requeued. After the
# loss of a node, SLURM itself requeues the job (--requeue).
requeue_or_exit() {
    local code=$1 job=$SLURM_JOB_ID
    case $code in
        143 | 138) ;;
        *) exit "$code" ;;
    esac
    if ((${SLURM_RESTART_COUNT:-0} >= MAX_RESTARTS)); then
        echo "job $job: stopped by a signal, restarted ${SLURM_RESTART_COUNT:-0} times (MAX_RESTARTS): not requeued" >&2
        exit "$code"
    fi
    # A task of an array has the number of the whole array, which would be requeued as well.
    if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
        job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    echo "job $job: stopped by a signal: requeued" >&2
    scontrol requeue "$job"
    exit "$code"
}
