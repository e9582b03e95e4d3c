"""Describes what a measurement was made on: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import psutil
import torch

from penstock.loaders.system.machine import available_cpus

_PACKAGES = (
    *("penstock-loader", "torch", "numpy", "simplejpeg", "PyTurboJPEG", "pillow", "pillow-simd", "h5py"),
    *("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12"),
)


def describe_environment(device: str = "cuda") -> dict[str, object]:
    """Return a JSON-serialisable description; it holds no host name, user, path or environment variable.

    device: the one that was used; of another kind than a GPU, the GPU that torch would take is named.
    """
    return {
        "cpu": _cpu_name(),
        "cpus": available_cpus(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpu": _gpu_name(device),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := package_version(name))},
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "commit": _commit(),
    }


def package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not there."""
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


def _gpu_name(device: str) -> str | None:
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(device if torch.device(device).type == "cuda" else None)
    return f"{name} x{torch.cuda.device_count()}, CUDA {torch.version.cuda}"


def _commit() -> str | None:
    """Return the commit of this source tree, with "+changes" if it differs; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
