"""The CUDA copy engine, with streams and events that only record calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stub_cuda import StubCuda
from torch.nn.utils.rnn import pack_sequence

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.run.feed.copies import CopyEngine, usable_device
from penstock.loaders.run.feed.tensor_feed import TensorFeed, tensors_in, to_device

META = torch.device("meta")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCuda]:
    stub = StubCuda(monkeypatch)
    yield stub
    stub.end()


def test_each_device_has_one_side_stream_with_priority_over_the_consumers(cuda: StubCuda) -> None:
    """A new stream per epoch would leave the memory pool of the previous one behind."""
    for _ in range(3):
        CopyEngine(torch.device("cuda"))
        TensorFeed(lambda: None, lambda: 0, torch.device("cuda"))
        TensorFeed(lambda: None, lambda: 0, torch.device("cuda:1"))
    assert [(str(stream.device), stream.priority) for stream in cuda.streams] == [("cuda:1", -1)]
    CopyEngine(torch.device("cuda:0"))
    CopyEngine(torch.device("cuda:0"), "dali")
    assert [str(stream.device) for stream in cuda.streams] == ["cuda:1", "cuda:0", "cuda:0"]


def test_work_is_queued_on_the_side_stream_and_its_events_are_recorded_there(cuda: StubCuda) -> None:
    engine, consumer = CopyEngine(META), cuda.now
    with engine.side():
        assert cuda.now is cuda.streams[0]
        inside = engine.mark()
    assert cuda.now is consumer
    outside = engine.mark()
    step = engine.mark_consumer()
    assert step.blocking  # the host sleeps while it waits
    engine.wait_on_host(inside)
    engine.hand_over(outside, (torch.empty(3, device=META),))
    side = cuda.streams[0]
    assert cuda.log == [
        ("event", side, inside),
        ("event", side, outside),
        ("event", consumer, step),
        ("synchronize", inside),
        ("wait", consumer, outside),
        ("record", (3,), consumer),
    ]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_all_device_memory_is_recorded_and_no_other(cuda: StubCuda) -> None:
    """A packed sequence has a part on the host; a sparse tensor consists of plain ones (empty on this device)."""
    coo = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (9,), check_invariants=True).to(META)
    csr = torch.tensor([[0, 0, 1.0], [0, 0, 0]]).to_sparse_csr().to(META)
    packed = to_device(pack_sequence([torch.ones(3), torch.ones(2)]), META)
    batch = {"text": packed, "coo": coo, "csr": csr, "plain": torch.empty(7, device=META), "host": torch.empty(8)}
    engine = CopyEngine(META)
    engine.hand_over(engine.mark(), tuple(tensors_in(batch)))
    assert [shape for name, shape, *_ in cuda.log if name == "record"] == [(5,), (1, 0), (0,), (3,), (0,), (0,), (7,)]


def test_pinned_memory_is_on_the_host_for_any_default_device(cuda: StubCuda) -> None:
    with META:
        memory = CopyEngine(META).pinned(torch.zeros(3, 2, dtype=torch.uint8, device="cpu").T)
    assert (memory.device.type, memory.shape, memory.dtype) == ("cpu", (2, 3), torch.uint8)
    assert memory.stride() == (1, 2)


def test_cuda_means_the_current_device_at_the_loaders_creation(cuda: StubCuda) -> None:
    assert [str(usable_device(name)) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]


@pytest.mark.parametrize(("count", "seen"), [(0, "no CUDA device"), (1, "1 CUDA device"), (2, "2 CUDA devices")])
def test_a_missing_device_is_reported_with_the_existing_ones(
    count: int, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(LoaderError, match="E-DEPENDENCY") as caught:
        usable_device(f"cuda:{count}")
    assert caught.value.cause.endswith(f"sees {seen}")


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1}], ids=["in the process", "a worker"])
def test_a_loader_serves_the_same_under_another_default_device(options: dict[str, Any]) -> None:
    """torch's default device affects neither our slots and constants nor torch's own seed."""
    draw = torch.Generator().manual_seed(0)
    arrays = (torch.randint(256, (12, 40, 50, 3), dtype=torch.uint8, generator=draw).numpy(), list(range(12)))

    def served() -> list[torch.Tensor]:
        with create_loader(arrays, batch_size=4, dtype=torch.bfloat16, **options) as loader:
            return [images for images, _ in loader]

    expected = served()
    torch.set_default_device("meta")
    try:
        found = served()
    finally:
        torch.set_default_device(None)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
