"""Sets torch's global switches during a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.bench.train.step.settings import TrainSettings


@contextmanager
def torch_switches(settings: TrainSettings) -> Iterator[None]:
    """Set cuDNN's benchmark, TF32 and anomaly detection according to the settings; restore them afterwards."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    cudnn.benchmark = settings.cudnn_benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = settings.tf32
    try:
        if settings.anomaly:
            _detect_anomalies(True, True)
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
        _detect_anomalies(*anomaly)


def _detect_anomalies(enabled: bool, check_nan: bool) -> None:
    with warnings.catch_warnings():  # anomaly mode warns that it is slow; the option's help does too
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        torch.autograd.set_detect_anomaly(enabled, check_nan)
