"""Describes the driver and the settings of a GPU, which change its rates as much as its name does."""

from __future__ import annotations

import subprocess

import torch

_QUERY = {  # name in a record -> nvidia-smi's, in its units
    "driver": "driver_version",
    "gpu_power_limit_w": "power.limit",
    "gpu_clock_mhz": "clocks.sm",
    "gpu_max_clock_mhz": "clocks.max.sm",
}


def describe_gpu(device: str | None) -> dict[str, object]:
    """Return driver, power limit, and clocks now and at most; None where nvidia-smi does not say, {} without a GPU.

    device: of torch; None for its current one.
    """
    if not torch.cuda.is_available():
        return {}
    try:
        uuid = torch.cuda.get_device_properties(device).uuid
        command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(_QUERY.values())}"]
        command.append("--format=csv,noheader,nounits")
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        driver, *numbers = said.split(", ")
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
    """Return a number as nvidia-smi prints it; None for what it cannot tell, which is "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return None
