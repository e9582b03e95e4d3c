"""Memory is recycled only when nothing refers to it."""

from __future__ import annotations

import contextlib
import gc
import sys

import numpy as np
import pytest
import torch

from penstock.loaders.system.recycled_memory import OutputBuffers, Recycler


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_a_number_is_free_when_the_last_view_is_gone(mode: type) -> None:
    """Under inference_mode a view keeps only the storage of its tensor, not the tensor."""
    memory, recycler = np.zeros((3, 4), np.uint8), Recycler(1)
    with mode():
        whole = recycler.tensor(memory, recycler.take())
        row = whole[0]
        part = row[1:].detach()
        del whole
        gc.collect()
        assert not len(recycler)
        del row
        gc.collect()
        assert not len(recycler)
        del part
        gc.collect()
        assert len(recycler) == 1


def test_a_view_alone_keeps_the_buffer_of_a_normalised_batch() -> None:
    buffers = OutputBuffers(torch.float32)
    with torch.inference_mode():
        rows = []
        for number in range(6):
            batch = buffers.take((2, 3)).fill_(number)
            rows.append(batch[0])
            del batch
        assert [row.tolist() for row in rows] == [[float(number)] * 3 for number in range(6)]


def test_no_python_code_runs_when_memory_is_released() -> None:
    """Python would drop an exception that a signal handler raises there, and a program would continue after Ctrl-C."""
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
