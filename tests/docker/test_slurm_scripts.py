"""SLURM's job scripts, with stand-ins for srun and scontrol; `make slurm-test` runs them on a real SLURM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_options import option_names

from penstock.bench.commands import cache as command_cache
from penstock.bench.commands import train as command_train
from penstock.pipelines.errors import EXIT_CACHE, EXIT_DATA, EXIT_RESOURCE, EXIT_TIMEOUT, EXIT_USAGE, EXIT_WORKER

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = ROOT / "docker" / "slurm"
GPU_START = Path(__file__).resolve().parents[1] / "studies/gpu/start.sh"
TRAIN, CACHE = JOBS / "train.sbatch", JOBS / "cache.sbatch"

# srun runs its command once per task, one after another, and exits with the highest exit code; penstock logs its
# arguments and whether it is srun's direct child.
SRUN = """#!/usr/bin/env bash
echo "srun $*" | tr -d '\\n' | tr -s ' ' >>"$LOG"; echo >>"$LOG"
while [[ $1 == -* ]]; do shift; done
worst=0
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$((task % 2)) SRUN=$$ "$@" || code=$?
    ((${code:-0} <= worst)) || worst=$code
done
exit "$worst"
"""
PENSTOCK = """#!/usr/bin/env bash
own=$([[ $PPID == "$SRUN" ]] && echo execed)
echo "penstock $own rank=${RANK-} of=${WORLD_SIZE-} local=${LOCAL_RANK-} at=$MASTER_ADDR:$MASTER_PORT: $*" >>"$LOG"
codes=($CODES)
exit "${codes[${RANK:-0}]}"
"""
SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$LOG"
exit "$SCONTROL_CODE"
"""


def submit(
    folder: Path, script: Path, *arguments: str, codes: str = "0", scontrol: int = 0, **environment: str
) -> tuple[int, list[str]]:
    """Return (exit code, log lines of the stand-ins) of a job script; `codes` are the exit codes of its ranks."""
    for name, text in (("srun", SRUN), ("penstock", PENSTOCK), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    log = folder / "log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    slurm = {"SLURM_JOB_ID": "10042", "SLURM_JOB_NAME": "run", "SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "3"}
    own = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LOG": str(log),
        "CODES": codes,
        "SCONTROL_CODE": str(scontrol),
        "PENSTOCK": "penstock",
    }
    done = subprocess.run(
        ["bash", str(script), *arguments],
        cwd=ROOT,
        env={**kept, **slurm, **own, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, log.read_text().splitlines() if log.exists() else [done.stderr]


def requeued(lines: list[str]) -> list[str]:
    return [line.removeprefix("scontrol requeue ") for line in lines if line.startswith("scontrol")]


def directives(script: Path) -> dict[str, str]:
    """Return the options on a script's #SBATCH lines. SLURM reads them up to the first command."""
    found, commands = {}, False
    for line in script.read_text().splitlines():
        if line.startswith("#SBATCH"):
            assert not commands, f"{script.name}: SLURM does not see {line!r}, which follows a command"
            match = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line)
            assert match, line
            found[match[1]] = match[2] or ""
        commands = commands or bool(line and not line.startswith("#"))
    return found


def test_shellcheck_finds_nothing() -> None:
    beside = str(Path(sys.executable).parent)
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join((beside, os.environ["PATH"])))
    assert shellcheck, "shellcheck is missing: `make setup` installs it"
    command = [shellcheck, "--external-sources", *map(str, [*sorted(JOBS.iterdir()), GPU_START])]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.stdout, checked.returncode) == ("", 0)


@pytest.mark.parametrize("script", [TRAIN, CACHE], ids=lambda script: script.name)
def test_directives_make_a_job_that_can_be_requeued(script: Path) -> None:
    options = directives(script)
    assert options["requeue"] == ""
    assert options["open-mode"] == "append"  # keeps the log of earlier runs
    number, _, seconds = options["signal"].partition("@")
    assert number == "TERM"  # to the ranks, not to the script (as with "B:TERM")
    hours, minutes, rest = map(int, options["time"].split(":"))
    assert 0 < int(seconds) < hours * 3600 + minutes * 60 + rest
    assert os.access(script, os.X_OK)


def test_ranks_get_their_rank_and_replace_the_shell(tmp_path: Path) -> None:
    code, lines = submit(tmp_path, TRAIN, "data", "--epochs", "3", codes="0 0 0 0", SLURM_NTASKS="4")
    assert code == 0
    host = os.uname().nodename
    given = "train --resume --checkpoint run-10042.pt --checkpoint-every 1000 --workers 3 data --epochs 3"
    assert lines[1:] == [
        f"penstock execed rank={rank} of=4 local={rank % 2} at={host}:20042: {given}" for rank in range(4)
    ]
    assert set(re.findall(r" (--[a-z-]+)", given)) <= option_names(command_train.train)
    assert "--wait=900" in lines[0]


def test_a_task_of_an_array_has_no_rank(tmp_path: Path) -> None:
    code, lines = submit(tmp_path, CACHE, "data", "cache", SLURM_ARRAY_JOB_ID="10040", SLURM_ARRAY_TASK_COUNT="16")
    assert code == 0
    given = "cache build --shards 16 --workers 3 data cache"
    assert lines[1].startswith("penstock execed rank= of= local= at=")
    assert lines[1].endswith(given)
    assert set(re.findall(r" (--[a-z-]+)", given)) <= option_names(command_cache.build)


def test_a_container_is_a_prefix_of_the_command_or_options_of_srun(tmp_path: Path) -> None:
    (tmp_path / "apptainer").write_text('#!/usr/bin/env bash\n[[ $1 == exec ]] && shift 3\nexec "$@"\n')
    (tmp_path / "apptainer").chmod(0o755)
    code, lines = submit(tmp_path, TRAIN, "a b", PENSTOCK="apptainer exec --nv image.sif penstock")
    assert code == 0
    assert lines[1].startswith("penstock execed ")
    assert lines[1].endswith(" a b")
    options = "--container-image=image.sqsh --container-mounts=/data:/data"
    (tmp_path / "log").unlink()
    code, lines = submit(tmp_path, TRAIN, "data", SRUN_OPTIONS=options)
    assert code == 0
    assert lines[0].startswith(f"srun --wait=900 {options} bash -c")


def kernel_folder(folder: Path, **environment: str) -> str:
    """Return TRITON_CACHE_DIR of a rank, for a job with the temporary folder `folder`."""
    command = folder / "tell"
    command.write_text('#!/usr/bin/env bash\necho "$TRITON_CACHE_DIR" >"$TMPDIR/told"\n')
    command.chmod(0o755)
    code, _ = submit(folder, TRAIN, "data", PENSTOCK=str(command), TMPDIR=str(folder), **environment)
    assert code == 0
    return (folder / "told").read_text().strip()


def test_compiled_kernels_are_on_the_node_in_the_users_own_folder(tmp_path: Path) -> None:
    own = tmp_path / f"triton-{os.getuid()}"
    assert kernel_folder(tmp_path, TRITON_CACHE_DIR="") == str(own)
    assert own.stat().st_mode & 0o777 == 0o700
    assert kernel_folder(tmp_path, TRITON_CACHE_DIR="/scratch/kernels") == "/scratch/kernels"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change the owner of a folder")
def test_a_folder_of_another_user_is_not_trusted_with_code(tmp_path: Path) -> None:
    own = tmp_path / f"triton-{os.getuid()}"
    own.mkdir()
    os.chown(own, 12345, 12345)
    assert kernel_folder(tmp_path, TRITON_CACHE_DIR="") == ""


@pytest.mark.parametrize("code", [143, 138])
def test_a_job_stopped_by_a_signal_is_requeued(tmp_path: Path, code: int) -> None:
    ended, lines = submit(tmp_path, TRAIN, "data", codes=f"{code} {code}", SLURM_NTASKS="2", SLURM_RESTART_COUNT="99")
    assert (ended, requeued(lines)) == (code, ["10042"])


def test_only_one_task_of_an_array_is_requeued(tmp_path: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "10042", "SLURM_ARRAY_TASK_ID": "7"}
    assert requeued(submit(tmp_path, CACHE, "data", "cache", codes="143", **array)[1]) == ["10042_7"]


@pytest.mark.parametrize(
    "codes",
    [
        *(f"{code} {code}" for code in (0, 1, EXIT_USAGE, EXIT_DATA, EXIT_CACHE, EXIT_WORKER, EXIT_TIMEOUT)),
        f"{EXIT_RESOURCE} 1",  # a rank that lost its peers exits with 1
        "3 137",  # the remaining rank was killed for it
    ],
)
def test_jobs_with_errors_are_not_requeued(tmp_path: Path, codes: str) -> None:
    ended, lines = submit(tmp_path, TRAIN, "data", codes=codes, SLURM_NTASKS="2")
    assert (ended, requeued(lines)) == (max(map(int, codes.split())), [])


def test_restarts_are_counted(tmp_path: Path) -> None:
    ended, lines = submit(tmp_path, TRAIN, "data", codes="143", MAX_RESTARTS="2", SLURM_RESTART_COUNT="2")
    assert (ended, requeued(lines)) == (143, [])
    assert requeued(submit(tmp_path, TRAIN, "data", codes="143", MAX_RESTARTS="3", SLURM_RESTART_COUNT="2")[1])


def test_a_refused_requeue_is_not_a_success(tmp_path: Path) -> None:
    assert submit(tmp_path, TRAIN, "data", codes="143", scontrol=1)[0] == 1


def test_a_job_without_its_second_script_reports_it(tmp_path: Path) -> None:
    code, errors = submit(tmp_path, TRAIN, "data", JOBS=str(tmp_path / "elsewhere"))
    assert code != 0
    assert "job.sh" in errors[0]
