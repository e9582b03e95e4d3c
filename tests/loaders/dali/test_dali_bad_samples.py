"""Bad samples on the dali backend are those of the torch backend, whoever of decoder and DALI refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from broken_scans import KINDS, repairable, undecodable
from dali_streams import (
    IDS,
    WORKERS,
    assert_near,
    assert_refused,
    assert_taken,
    stream,
)
from memory_source import MemorySource
from odd_images import jpeg, textured
from photo_folder import photo

from penstock.pipelines import imagenet_eval
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.sample.dali_graph import DaliGraph, dali_can_decode

LAYOUTS: dict[str, list[int]] = {
    "a whole batch": list(range(8, 16)),
    "in the first batch": [0, 7],
    "in the last batch": [38, 39],
    "in two batches running": [9, 17, 22],
    "the substitute too": [3, 4, 5, 31, 32],
    "every other one": list(range(0, 40, 2)),
    "all but one": list(range(1, 40)),
}


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_samples_anywhere_leave_the_stream_of_the_torch_backend(layout: str, options: dict[str, Any]) -> None:
    places = LAYOUTS[layout]
    items = [undecodable(photo(k), KINDS[k % len(KINDS)]) if k in places else photo(k) for k in range(40)]
    assert all(dali_can_decode(parse_header(items[place]), items[place]) for place in places)
    cases: list[dict[str, Any]] = [
        {"batch_size": 8, "shuffle": False},
        {"batch_size": 1, "shuffle": False},
        {"batch_size": 12, "shuffle": False, "drop_last": False},
        {"batch_size": 12, "pipeline": imagenet_eval(32)},
    ]
    for case in cases:
        settings = {"on_bad_sample": "replace", **case}
        ours = stream(MemorySource(items), backend="torch", **settings)
        dali = stream(MemorySource(items), **settings, **options)
        assert_near(dali, ours)
        assert sorted(sample for sample, *_ in dali.bad) == places
        assert_refused(dali, len({place // case["batch_size"] for place in places}), options)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_damage_that_is_repaired_is_served_as_on_the_torch_backend(options: dict[str, Any]) -> None:
    items = [repairable(photo(k), k) if k % 2 else photo(k) for k in range(48)]
    items += [repairable(jpeg(textured(61, 83), progressive=True), k) for k in range(8)]
    settings = {"batch_size": 8, "on_bad_sample": "replace"}
    ours = stream(MemorySource(items), epochs=2, backend="torch", **settings)
    dali = stream(MemorySource(items), epochs=2, **settings, **options)
    assert ours.bad == []
    assert_taken(dali, ours)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_images_that_only_dali_refuses_are_decoded_by_us(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """As a GPU's decoder may: such a batch is made without DALI, bit for bit torch's, and nothing is called bad."""
    items = [photo(k) for k in range(40)]
    feed = DaliGraph.feed

    def fail_on_17(graph: DaliGraph, tasks: Any) -> None:
        if any(task.data is items[17] for task in tasks):
            tasks = [task._replace(data=undecodable(items[17], KINDS[0])) for task in tasks]
        feed(graph, tasks)

    ours = stream(MemorySource(items), backend="torch", batch_size=8)
    monkeypatch.setattr(DaliGraph, "feed", fail_on_17)
    dali = stream(MemorySource(items), batch_size=8, **options)
    assert_near(dali, ours)
    at = int(np.flatnonzero(ours.index == 17)[0]) // 8
    rows = slice(8 * at, 8 * at + 8)
    assert np.array_equal(dali.pixels[rows], ours.pixels[rows])
    assert not np.array_equal(dali.pixels, ours.pixels)
    assert dali.bad == []
    assert_refused(dali, 1, options)
