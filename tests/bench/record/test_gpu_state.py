"""The state of the GPU in a record, on a simulated machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock.bench.record.environment import cudnn_version, describe_environment, describe_gpu

UNKNOWN = {"driver": None, "gpu_power_limit_w": None, "gpu_clock_mhz": None, "gpu_max_clock_mhz": None}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with a GPU; returns the path of its nvidia-smi, which does not exist yet."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H100")
    properties = {None: SimpleNamespace(uuid="0-a"), "cuda:1": SimpleNamespace(uuid="1-b")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_driver_power_and_clocks_are_those_of_the_device_in_use(machine: Path) -> None:
    write_program(machine, 'test "$1" = --id=GPU-1-b && echo "580.159.04, 700.00, 1755, 1980"')
    about = describe_environment("cuda:1")
    expected = {
        "driver": "580.159.04",
        "gpu_power_limit_w": 700.0,
        "gpu_clock_mhz": 1755.0,
        "gpu_max_clock_mhz": 1980.0,
    }
    assert {name: about[name] for name in expected} == expected
    packages = about["packages"]
    assert isinstance(packages, dict)
    assert packages["cuDNN"] == "9.10.2"
    assert describe_environment("cpu")["driver"] is None  # for another device the program fails


@pytest.mark.parametrize("line", [None, "exit 3", "echo 580.1", "echo 1, 2, 3, 4, 5", "sleep 0"])
def test_values_that_nvidia_smi_does_not_report_are_none(machine: Path, line: str | None) -> None:
    if line is not None:
        write_program(machine, line)
    assert describe_gpu(None) == UNKNOWN


def test_a_single_value_may_be_unknown(machine: Path) -> None:
    write_program(machine, 'echo "580.1, [N/A], 1755, 1980"')
    assert describe_gpu(None) == {**UNKNOWN, "driver": "580.1", "gpu_clock_mhz": 1755.0, "gpu_max_clock_mhz": 1980.0}


@pytest.mark.parametrize(("number", "text"), [(91002, "9.10.2"), (90100, "9.1.0"), (8902, "8.9.2"), (None, None)])
def test_cudnn_has_its_usual_version_number(
    number: int | None, text: str | None, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    assert cudnn_version() == text


def test_without_a_gpu_nothing_is_described() -> None:
    assert describe_gpu(None) == {}
    assert cudnn_version() is None
