"""Processors, memory and processes that control groups leave of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.system import machine
from penstock.loaders.system.machine import control_groups


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content + "\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group file system, with this process only in the root group."""
    monkeypatch.setattr(machine, "CGROUP_ROOT", tmp_path / "fs")
    monkeypatch.setattr(machine, "CGROUP_OF_SELF", tmp_path / "self")
    (tmp_path / "fs").mkdir()
    return tmp_path / "fs"


def test_all_parent_groups_are_found_in_both_versions(root: Path) -> None:
    machine.CGROUP_OF_SELF.write_text("4:cpu,cpuacct:/job/step\n3:memory:/elsewhere\n0::/slice/job\n")
    assert list(control_groups("cpu")) == [
        *((root / "cpu" / part, False) for part in ("job/step", "job", ".")),
        *((root / part, True) for part in ("slice/job", "slice", ".")),
    ]
    write(root / "slice", {"job/cpu.max": "max 100000", "cpu.max": "150000 100000"})
    write(root / "cpu/job", {"cpu.cfs_quota_us": "120000", "cpu.cfs_period_us": "100000"})
    assert machine.cgroup_cpu_quota() == 1.2


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_quota_of_processors_is_read(root: Path, files: dict[str, str], cpus: float | None) -> None:
    write(root, files)
    assert machine.cgroup_cpu_quota() == cpus


def test_a_quota_below_one_processor_still_means_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for quota, expected in ((0.2, 1), (1.0, 1), (None, len(os.sched_getaffinity(0)))):
        monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda quota=quota: quota)
        assert machine.available_cpus() == expected


def test_the_limit_on_processes_of_a_group_is_read(root: Path) -> None:
    machine.CGROUP_OF_SELF.write_text("0::/above/own/absent\n")
    assert machine.process_headroom() is None
    write(root / "above", {"own/pids.max": "90", "own/pids.current": "7", "pids.max": "100", "pids.current": "60"})
    write(root, {"pids.max": "max", "pids.current": "7"})
    assert machine.process_headroom() == 40


@pytest.mark.parametrize("name", ["memory.events", "memory/memory.oom_control"])
def test_kills_for_memory_are_counted(root: Path, name: str) -> None:
    assert machine.oom_kills() == 0
    write(root, {name: "oom_kill_disable 0\nunder_oom 0\noom_kill 3"})
    assert machine.oom_kills() == 3


def test_the_tightest_group_limits_the_free_memory(root: Path) -> None:
    machine.CGROUP_OF_SELF.write_text("0::/job/step\n")
    for folder, limit, used in (("", "max", 0), ("job", "1000", 600), ("job/step", "5000", 600)):
        files = {"memory.max": limit, "memory.current": str(used), "memory.stat": "anon 500\ninactive_file 50"}
        write(root / folder, files)
    assert machine.memory_headroom() == 450
    assert machine.memory_limit() == 1000


def test_page_cache_counts_as_free_except_that_of_running_programs(root: Path) -> None:
    pages = "inactive_file 50000\nactive_file 130000\nfile_mapped 30000"
    write(root, {"memory.max": "1000000", "memory.current": "600000", "memory.stat": pages})
    assert machine.memory_headroom() == 550_000


def test_memory_is_read_in_version_1_and_with_paths_of_the_host(root: Path) -> None:
    machine.CGROUP_OF_SELF.write_text("5:cpu,cpuacct:/\n4:memory:/docker/not-visible-in-here\n")
    limits = {"memory.limit_in_bytes": "2000", "memory.usage_in_bytes": "700", "memory.stat": "total_inactive_file 100"}
    write(root / "memory", limits)
    assert machine.memory_headroom() == 1400


def test_without_control_groups_the_machines_memory_is_used(root: Path) -> None:
    assert machine.memory_limit() is None
    assert 1000 < machine.memory_headroom() < 1 << 50


LAUNCHERS = [
    ({}, 96, 96),
    *(({"LOCAL_WORLD_SIZE": ranks}, 96, workers) for ranks, workers in (("8", 12), ("200", 1), ("0", 96), ("x", 96))),
    ({"LOCAL_WORLD_SIZE": "8"}, 48, 12),  # torchrun --numa-binding=node: four ranks share 48
    ({"LOCAL_WORLD_SIZE": "8"}, 12, 12),  # --numa-binding=exclusive
    ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 11, 11),  # srun --cpus-per-task=11
    ({"SLURM_STEP_TASKS_PER_NODE": "8,4"}, 96, 12),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 96, 24),
    ({"MPI_LOCALNRANKS": "4"}, 96, 24),
    ({"LOCAL_RANK": "1"}, 96, 12),  # Lightning's launcher: one rank per GPU on 8 GPUs
    ({"LOCAL_RANK": "11"}, 96, 8),
]


@pytest.mark.parametrize(("names", "own", "workers"), LAUNCHERS, ids=str)
def test_ranks_share_the_processors_of_a_machine_within_their_own_limit(
    root: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, str], own: int, workers: int
) -> None:
    for name in (*machine._RANKS_HERE, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(own)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert machine.default_workers() == WorkerOptions().num_workers == workers


@pytest.mark.parametrize(
    "files",
    [
        {"cpuset.cpus.effective": "0-11,48-51"},
        {"cpuset/cpuset.effective_cpus": "3,8-22"},
        {"cpu.max": "1550000 100000", "cpuset.cpus.effective": ""},
    ],
    ids=str,
)
def test_ranks_share_the_resources_of_their_control_group(
    root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    write(root, files)
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert machine.default_workers() == 4
