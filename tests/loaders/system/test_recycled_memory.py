"""Memory that is handed out again: only when nobody can see it any more."""

from __future__ import annotations

import sys

import numpy as np
import torch

from penstock.loaders.system.recycled_memory import OutputBuffers, Recycler


def test_buffers_of_normalised_batches_are_kept_by_their_views_alone() -> None:
    buffers = OutputBuffers((2, 3), torch.float32)
    with torch.inference_mode():
        rows = []
        for number in range(6):
            batch = buffers.take().fill_(number)
            rows.append(batch[0])
            del batch
        assert [row.tolist() for row in rows] == [[float(number)] * 3 for number in range(6)]


def test_no_python_code_runs_when_memory_comes_back() -> None:
    """Python would drop what a signal's handler raises in it: a program would go on after Ctrl-C."""
    recycler = Recycler(1)
    tensor = recycler.tensor(np.zeros(4, np.uint8), recycler.take())
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del tensor
    finally:
        sys.setprofile(None)
    assert calls == []
    assert len(recycler) == 1
