"""Helpers for tests of the drop-in DataLoader: its stream, its leftovers, and scripts that use it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch


def values(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def seen(batch: Any) -> Any:
    """Return a batch, or a list of tensors, as Python values."""
    return [part.tolist() for part in batch] if isinstance(batch, list) else torch.as_tensor(batch).tolist()


def serve_with_states(loader: Any, epochs: int, step: Callable[[], object] = int) -> tuple[list[Any], list[Any]]:
    """Return the stream of `epochs` epochs, and (batches served, state as JSON, result of `step`) at each boundary.

    `step` is called after each batch.
    """
    served: list[Any] = []
    states = [(0, json.dumps(loader.state_dict()), None)]
    noted: Any = None
    for _ in range(epochs):
        for batch in loader:
            noted = step()
            served.append(seen(batch))
            states.append((len(served), json.dumps(loader.state_dict()), noted))
        states.append((len(served), json.dumps(loader.state_dict()), noted))
    return served, states


def serve_rest(loader: Any, epochs: int, step: Callable[[], object] = int) -> list[Any]:
    """Return what the loader serves until `epochs` epochs are over."""
    rest = []
    while loader.epoch < epochs:
        for batch in loader:
            step()
            rest.append(seen(batch))
    return rest


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def census() -> tuple[int, int, int]:
    """Return processes, threads and descriptors of this process, once ending ones are gone."""
    counts: list[tuple[int, int, int]] = []
    while len(counts) < 3 or len(set(counts[-3:])) > 1:
        gc.collect()
        counts.append((len(children()), threading.active_count(), len(os.listdir("/proc/self/fd"))))
        time.sleep(0.02)
    return counts[-1]


def run_script(text: str, folder: Path | None, *how: str) -> subprocess.CompletedProcess[str]:
    """Run a script from a file in `folder`, or from standard input; `how` are options of Python before it."""
    name = "-"
    if folder is not None:
        name = str(folder / "script.py")
        Path(name).write_text(text)
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *how, name],
        check=False,
        input=text,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        start_new_session=True,
    )
