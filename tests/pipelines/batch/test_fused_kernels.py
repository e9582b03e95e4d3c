"""The fused kernels: interpreted on the CPU, bit-exact with the CPU path; and compiled for an H100."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's: pip install triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels are not compiled", allow_module_level=True)

import interpreted_kernels
import triton
from triton.backends.compiler import GPUTarget

from penstock.pipelines.batch import fused, fused_check, fused_kernels

BUILDS = Path(__file__).resolve().parents[3] / "build/triton"
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    """Return the faults by case; Triton's interpreter must be enabled before Triton is imported."""
    command = [sys.executable, interpreted_kernels.__file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", interpreted_kernels.CASES)
def test_interpreted_kernels_equal_the_cpu_path(case: str, interpreted: dict[str, str]) -> None:
    assert interpreted[case] == ""


class H100:
    """Stands in for Triton's driver: names the target to compile for, without a device to run on."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """Stands in for a kernel: compiles it as for a launch, but does not run it."""

    def __init__(self, kernel: Any, **options: bool) -> None:
        self.kernel, self.options = kernel, options
        self.found: list[Any] = []

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        assert grid > (0,)

        def launch(*arguments: Any, **options: Any) -> None:
            self.found.append(self.kernel.warmup(*arguments, grid=grid, **{**options, **self.options}))

        return launch


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(BUILDS))  # a second run takes no time
    monkeypatch.setattr(triton.runtime.driver, "_active", H100())


def compiled_for(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, **options: bool) -> dict[str, list[Any]]:
    """Return the launches of batches of several sizes, mixed and not mixed, by kernel."""
    kernels = {name: Compiled(getattr(fused_kernels, name), **options) for name in fused.BLOCKS}
    with monkeypatch.context() as patch:
        for name, kernel in kernels.items():
            patch.setattr(fused_kernels, name, kernel)
        for size in ((23, 31), (32, 48), (1, 1)):
            patch.setattr(fused_check, "_SIZE", size)
            images, plan = fused_check.make_test_batch()
            stage = fused.FusedStage(torch.zeros((3, 257), dtype=dtype), torch.device("cpu"))
            stage(images, plan._replace(mixing=None))
            if dtype != torch.uint8:
                stage(images, plan)
    return {name: kernel.found for name, kernel in kernels.items()}


# Fused products and sums; quotients, roots and powers that are not rounded as on the CPU.
INEXACT = re.compile(r"\bfma\.|\bdiv\.(?:full|approx)|\.approx|\.ftz")


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_compile_once_for_all_sizes_and_round_as_the_cpu_does(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compiled_for(dtype, monkeypatch)
    assert {name: len(set(kernels)) for name, kernels in found.items()} == {
        "make_tables": 1,
        "apply_round": 1,
        "finish": 1 + (dtype != torch.uint8),
    }
    for kernel in {kernel for kernels in found.values() for kernel in kernels}:
        assert (kernel.metadata.target.arch, kernel.metadata.enable_fp_fusion) == (90, False)
        assert kernel.asm["cubin"]
        assert INEXACT.findall(kernel.asm["ptx"]) == []
        assert kernel.metadata.shared <= 48 * 1024  # of any device
    if dtype == torch.bfloat16:  # the nearest one; the interpreter does not show it
        assert any("cvt.rn.bf16" in kernel.asm["ptx"] for kernel in found["finish"])
