"""Recommended workers, pinned memory and prefetching for DataLoader(tuned=True)."""

from __future__ import annotations

import multiprocessing

import torch
from torch.utils.data import IterableDataset

from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import warn_user

AUTO = "auto"
# Simulated with 32 workers, 20 % spare capacity, and batch times that vary by half: with torch's 2 the consumer
# waits 12 % of its time, with 3 it waits 3 %, with 4 1 %. Each increment needs memory for one batch per worker.
TUNED_PREFETCH = 3


def recommend_settings(
    dataset: object, num_workers: int | str, pin_memory: bool, prefetch_factor: int | None, device: torch.device | None
) -> tuple[int, bool, int | None]:
    """Return num_workers, pin_memory and prefetch_factor; values other than torch's defaults are kept.

    Warns in one line about the differences from torch. Raises LoaderError E-MISUSE if other samples would be served.
    """
    workers = num_workers if isinstance(num_workers, int) else 0
    if not workers:
        # A daemonic process (a worker) may not start any.
        workers = 0 if multiprocessing.current_process().daemon else default_workers()
        _refuse_other_samples(dataset, workers)
    pin_memory = pin_memory or (torch.cuda.is_available() and (device is None or device.type != "cpu"))
    prefetch_factor = TUNED_PREFETCH if prefetch_factor is None and workers else prefetch_factor
    text = f"num_workers={workers}, pin_memory={pin_memory}, prefetch_factor={prefetch_factor}"
    differs = "random transforms draw from each worker's own generator, and the data set is copied to each worker"
    asked = "tuned=True" if isinstance(num_workers, int) else f"num_workers={num_workers!r}"
    text += f": {differs}" if workers else ""
    warn_user(f"DataLoader({asked}) uses {text}")
    return workers, pin_memory, prefetch_factor


def _refuse_other_samples(dataset: object, workers: int) -> None:
    if isinstance(dataset, IterableDataset) and workers > 1:
        raise LoaderError(
            "E-MISUSE",
            f"each of {workers} workers would serve the whole IterableDataset",
            fix="pass num_workers if the data set splits itself between workers (get_worker_info)",
        )
    if workers and any(getattr(tensor, "is_cuda", False) for tensor in getattr(dataset, "tensors", ())):
        raise LoaderError(
            "E-MISUSE", "forked workers cannot read a data set of CUDA tensors", fix="do not pass tuned or num_workers"
        )
