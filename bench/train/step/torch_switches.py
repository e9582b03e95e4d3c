"""Sets torch's global switches for the time of a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.bench.train.step.settings import TrainSettings


@contextmanager
def torch_switches(settings: TrainSettings) -> Iterator[None]:
    """Set cuDNN's timing of algorithms, TF32 and anomaly detection as the settings say; put them back afterwards."""
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
    with warnings.catch_warnings():  # anomaly mode says that it is slow; so does the option
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        torch.autograd.set_detect_anomaly(enabled, check_nan)
