"""Describes the conditions of a measurement: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import psutil
import torch

from penstock.bench.record.commit import find_commit
from penstock.loaders.system.machine import available_cpus

_PACKAGES = (
    *("penstock-loader", "torch", "triton", "timm", "numpy", "simplejpeg", "PyTurboJPEG"),
    *("pillow", "pillow-simd", "h5py"),
    *("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12"),
)

_QUERY = {  # name in a record -> nvidia-smi's, in its units
    "driver": "driver_version",
    "gpu_power_limit_w": "power.limit",
    "gpu_clock_mhz": "clocks.sm",
    "gpu_max_clock_mhz": "clocks.max.sm",
}


def describe_environment(device: str = "cuda") -> dict[str, object]:
    """Return a JSON-serialisable description without host name, user, path or environment variables.

    device: the device in use; if it is not a GPU, the description names torch's default GPU.
    """
    on_gpu = device if torch.device(device).type == "cuda" else None
    versions = {name: package_version(name) for name in _PACKAGES} | {"cuDNN": cudnn_version()}
    return {
        "cpu": _cpu_name(),
        "cpus": available_cpus(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpu": _gpu_name(on_gpu),
        **describe_gpu(on_gpu),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name, version in versions.items() if version},
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "commit": find_commit(),
    }


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    if package == "torch":
        return torch.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu_name(device: str | None) -> str | None:
    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name(device)} x{torch.cuda.device_count()}, CUDA {torch.version.cuda}"


def describe_gpu(device: str | None) -> dict[str, object]:
    """Return driver, power limit, current and maximum clocks; None if nvidia-smi reports none, {} without a GPU.

    device: a device of torch; None for the current one.
    """
    if not torch.cuda.is_available():
        return {}
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(_QUERY.values())}"]
        command.append("--format=csv,noheader,nounits")
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        driver, *numbers = output.split(", ")
        values: list[object] = [driver, *map(_number, numbers)]
        return dict(zip(_QUERY, values, strict=True))
    except (OSError, AttributeError, RuntimeError, ValueError, subprocess.SubprocessError):
        return dict.fromkeys(_QUERY)


def cudnn_version() -> str | None:
    """Return the version of cuDNN that torch uses, such as "9.10.2"; None without it."""
    number = torch.backends.cudnn.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _number(text: str) -> float | None:
    """Parse a number from nvidia-smi; None for an unknown one, printed as "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return None
