# What the jobs beside it share: ranks of penstock are started, and a job that saved itself goes back into the queue
#
# shellcheck shell=bash
# A job sets `set -euo pipefail`, sources this file, calls `run_ranks train ...` and ends with `requeue_or_exit CODE`.
# All of these can be set in the environment of sbatch:

# The command, in words that hold no blanks. In a virtual environment: .venv/bin/penstock. In a container:
#   PENSTOCK='apptainer exec --nv --bind /data penstock.sif penstock'
: "${PENSTOCK:=.venv/bin/penstock}"
# More options of srun, in such words. With the container plugin pyxis:
#   PENSTOCK=penstock SRUN_OPTIONS='--container-image=penstock.sqsh --container-mounts=/data:/data,/runs:/runs'
: "${SRUN_OPTIONS:=}"
# How often a job may go back into the queue.
: "${MAX_RESTARTS:=100}"
# Where rank 0 will be: this script runs on the first node of the job. Where that name is not one of the fast network, set
# NCCL_SOCKET_IFNAME (GPUs) or GLOO_SOCKET_IFNAME (processors).
: "${MASTER_ADDR:=$(hostname)}"
# Jobs that share a node must not share a port.
: "${MASTER_PORT:=$((20000 + SLURM_JOB_ID % 10000))}"
export MASTER_ADDR MASTER_PORT
# Since SLURM 22.05 srun does not take this over from sbatch.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
# How long the ranks that are left may go on after the first has ended: rank 0 may still be saving, or a node was lost, for
# which SLURM itself puts the job back once it has noticed (SlurmdTimeout, 300 s as a rule; `scontrol show config`). Not
# --kill-on-bad-exit: it sends SIGTERM, and ranks that leave for it (143) would hide the error of the one that failed.
: "${LAST_RANK_SECONDS:=900}"

# penstock ARGUMENTS, one process a task; returns the highest exit code of all. Everything execs, so that the signals of
# SLURM arrive. srun starts the ranks by itself, without torchrun, which would turn every exit code into 1.
run_ranks() {
    local -a command options
    read -ra command <<<"$PENSTOCK"
    read -ra options <<<"$SRUN_OPTIONS"
    # Compiled kernels lie on the node, in a folder that is the user's own: in a home that all nodes share, hundreds of ranks
    # would write them at once.
    # A single task stays without RANK: in a job array `penstock cache build` takes its place from SLURM's variables.
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

# End the job with CODE; if it is that of a stop by a signal (128 + SIGTERM or SIGUSR1), put the job back into the queue,
# to go on from what was saved. Errors (2 usage, 3 data, 4 cache, ...) and a cancelled job stay ended. After the loss of a
# node SLURM itself puts the job back (--requeue).
requeue_or_exit() {
    local code=$1 job=$SLURM_JOB_ID
    case $code in
        143 | 138) ;;
        *) exit "$code" ;;
    esac
    if ((${SLURM_RESTART_COUNT:-0} >= MAX_RESTARTS)); then
        echo "job $job: stopped by a signal, restarted ${SLURM_RESTART_COUNT:-0} times (MAX_RESTARTS): it ends here" >&2
        exit "$code"
    fi
    # One task of an array has the number of the whole array, which would be put back as well.
    if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
        job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    echo "job $job: stopped by a signal: back into the queue" >&2
    scontrol requeue "$job"
    exit "$code"
}
