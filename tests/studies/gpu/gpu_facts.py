"""Describes this machine and its packages: `gpu_facts.py OUT.json`. It imports nothing that may be missing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_GPU = (
    *("name", "driver_version", "memory.total", "power.limit", "clocks.sm", "clocks.max.sm", "pcie.link.gen.current"),
    *("pcie.link.width.current", "compute_mode", "temperature.gpu"),
)
_PACKAGES = (
    *("torch", "torchvision", "triton", "numpy", "h5py", "simplejpeg", "msgspec", "isal", "filelock", "psutil"),
    *("rich", "typer", "jinja2", "pytest", "pytest-timeout", "timm", "pillow", "nvidia-nvjpeg", "cuda-toolkit"),
)
_TOOLS = ("make", "gcc", "g++", "cc", "nvcc", "ncu", "compute-sanitizer", "xz", "git")


def output_of(*command: str) -> str:
    """Return the output of a command, or why it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """Return the facts by name, for JSON."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "gpu": output_of("nvidia-smi", f"--query-gpu={','.join(_GPU)}", "--format=csv"),
        "cpu": cpu[:1],
        "cpus": [os.cpu_count(), len(os.sched_getaffinity(0))],
        "memory": output_of("free", "-m"),
        "disks": output_of("df", "-h", "/dev/shm", "/tmp"),
        "tools": {name: shutil.which(name) for name in _TOOLS},
        "system": [sys.version, platform.platform(), *platform.libc_ver()],
        "packages": {name: package_version(name) for name in _PACKAGES},
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH"),
        "nvjpeg": [line.strip() for line in output_of("ldconfig", "-p").splitlines() if "nvjpeg" in line],
    }


if __name__ == "__main__":
    found = json.dumps(facts(), indent=1)
    Path(sys.argv[1]).write_text(found)
    print(found)
