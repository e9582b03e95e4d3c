"""Measures the gain and cost of each technique: the model trains alternately with and without it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from penstock.bench.record.environment import describe_environment
from penstock.bench.train.resident_run import CannotRun, ResidentResult, ResidentRun


@dataclass(frozen=True, kw_only=True)
class Technique:
    """Define a technique by the settings that switch it on and off."""

    name: str
    on: dict[str, Any]
    off: dict[str, Any]
    needs_cuda: bool = False


TECHNIQUES = (
    Technique(name="AMP, bfloat16", on={"amp": "bf16"}, off={"amp": "off"}),
    Technique(name="AMP, float16", on={"amp": "fp16"}, off={"amp": "off"}),
    Technique(name="TF32", on={"tf32": True}, off={"tf32": False}, needs_cuda=True),
    Technique(name="channels_last", on={"channels_last": True}, off={"channels_last": False}),
    Technique(name="cuDNN benchmark", on={"cudnn_benchmark": True}, off={"cudnn_benchmark": False}, needs_cuda=True),
    Technique(name="torch.compile", on={"compile": "default"}, off={"compile": "off"}),
    Technique(name="CUDA graphs", on={"compile": "reduce-overhead"}, off={"compile": "default"}),
    Technique(name="fused optimiser", on={"kernel": "fused"}, off={"kernel": "loop"}),
    Technique(name="foreach optimiser", on={"kernel": "foreach"}, off={"kernel": "loop"}),
    Technique(name="AdamW for SGD", on={"optimizer": "adamw"}, off={"optimizer": "sgd"}),
    Technique(name="LARS for SGD", on={"optimizer": "lars"}, off={"optimizer": "sgd"}),
    Technique(name="LAMB for SGD", on={"optimizer": "lamb"}, off={"optimizer": "sgd"}),
    Technique(name="gradient clipping", on={"clip_norm": 1.0}, off={"clip_norm": None}),
    Technique(name="accumulation of 4 quarter batches", on={"accumulate": 4}, off={"accumulate": 1}),
    Technique(name="checkpointing of blocks", on={"checkpointing": "blocks"}, off={"checkpointing": "off"}),
    Technique(name="checkpointing in segments", on={"checkpointing": "segments"}, off={"checkpointing": "off"}),
    Technique(name="in-place activations", on={"inplace": True}, off={"inplace": False}),
    Technique(name="no bias before batch norm", on={"conv_bias": False}, off={"conv_bias": True}),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Hold the measurements of one technique: medians over rounds, with and without it.

    Attributes:
        peak_bytes: memory beyond that of the process before the model; None if unknown.
        rounds: images/s of each round, with and without it.
        reason: why this machine cannot measure it; empty if it could.
    """

    name: str
    images_per_s: tuple[float, float] | None = None
    peak_bytes: tuple[int | None, int | None] | None = None
    rounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Hold the rows of all techniques, and the base run that they change."""

    base: ResidentRun
    rounds: int
    base_images_per_s: float
    base_peak_bytes: int | None
    rows: tuple[Row, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record that includes the machine."""
        return {
            "what": "training on one batch that is resident on the device: no loader",
            "environment": describe_environment(),
            **asdict(self),
        }


def ablate(
    base: ResidentRun,
    measure: Callable[[ResidentRun], ResidentResult],
    *,
    rounds: int,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> Ablation:
    """Measure `base` with each technique on and off, round after round, every second round in reverse order.

    `measure` does one run, on a CPU in a new process to see its peak memory; `on_run(done, total)` is called after
    each. Raises CannotRun if the base itself cannot be measured.
    """
    pairs = {technique.name: _pair(base, technique) for technique in TECHNIQUES}
    pairs["DataParallel"] = _data_parallel_pair(base)
    runs = list(dict.fromkeys([base, *(run for pair in pairs.values() if not isinstance(pair, str) for run in pair)]))
    results: dict[ResidentRun, list[ResidentResult]] = {run: [] for run in runs}
    failed: dict[ResidentRun, str] = {}
    for number in range(rounds):
        for done, run in enumerate(runs if number % 2 == 0 else reversed(runs), 1):
            if run not in failed:
                try:
                    results[run].append(measure(run))
                except CannotRun as error:
                    failed[run] = str(error)
                except (MemoryError, torch.OutOfMemoryError) as error:
                    failed[run] = f"out of memory ({error})"
            on_run(number * len(runs) + done, rounds * len(runs))
        if base in failed:
            raise CannotRun(failed[base])
    rows = tuple(_row(name, pair, results, failed) for name, pair in pairs.items())
    rate, peak = _median(results[base])
    return Ablation(base=base, rounds=rounds, base_images_per_s=rate, base_peak_bytes=peak, rows=rows)


def _pair(base: ResidentRun, technique: Technique) -> tuple[ResidentRun, ResidentRun] | str:
    """Return the runs with and without the technique, or why there are none."""
    if technique.needs_cuda and torch.device(base.settings.device).type != "cuda":
        return "changes nothing without a CUDA device"
    try:
        with_it, without = (
            replace(base, settings=replace(base.settings, **change)) for change in (technique.on, technique.off)
        )
    except ValueError as error:
        return str(error)
    return with_it, without


def _data_parallel_pair(base: ResidentRun) -> tuple[ResidentRun, ResidentRun] | str:
    if torch.device(base.settings.device).type != "cuda" or torch.cuda.device_count() < 2:
        return f"needs two CUDA devices, found {torch.cuda.device_count()}"
    return replace(base, data_parallel=True), base


def _row(
    name: str,
    pair: tuple[ResidentRun, ResidentRun] | str,
    results: dict[ResidentRun, list[ResidentResult]],
    failed: dict[ResidentRun, str],
) -> Row:
    if isinstance(pair, str):
        return Row(name=name, reason=pair)
    reason = next((failed[run] for run in pair if run in failed), None)
    if reason is not None:
        return Row(name=name, reason=reason)
    (rate, peak), (rate_without, peak_without) = (_median(results[run]) for run in pair)
    first, second = (tuple(result.images_per_s for result in results[run]) for run in pair)
    return Row(name=name, images_per_s=(rate, rate_without), peak_bytes=(peak, peak_without), rounds=(first, second))


def _median(results: Sequence[ResidentResult]) -> tuple[float, int | None]:
    peaks = [result.peak_bytes for result in results if result.peak_bytes is not None]
    return statistics.median(r.images_per_s for r in results), int(statistics.median(peaks)) if peaks else None
