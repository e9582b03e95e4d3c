"""Bad samples on the dali backend are those of the torch backend, whoever of decoder and DALI refuses them."""

from __future__ import annotations

import random
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
    open_loader,
    stream,
)
from memory_source import MemorySource
from odd_images import jpeg, textured
from photo_folder import photo

from penstock.loaders import LoaderError
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.sample.dali_graph import DaliGraph, dali_can_decode

NOT_EVEN_A_HEADER = (b"", b"<html>", photo(1)[:-2], photo(2)[:200])


def broken(number: int) -> bytes:
    """A bad file of one of nine kinds: four that are refused by their header, five that only decoding shows."""
    kind = number % (len(NOT_EVEN_A_HEADER) + len(KINDS))
    if kind < len(NOT_EVEN_A_HEADER):
        return NOT_EVEN_A_HEADER[kind]
    return undecodable(photo(number), KINDS[kind - len(NOT_EVEN_A_HEADER)])


def refused_by_dali(data: bytes) -> bool:
    """Whether it gets as far as DALI."""
    return data not in NOT_EVEN_A_HEADER and dali_can_decode(parse_header(data), data)


@pytest.fixture(scope="module")
def thousand() -> tuple[list[bytes], list[bytes], list[int]]:
    """1,000 sound images; the same with 37 of them broken; where."""
    small = [jpeg(textured(24 + k % 9, 20 + k % 7), quality=80, subsampling=k % 3) for k in range(60)]
    sound = [small[k % 60] for k in range(1000)]
    places = sorted(random.Random(37).sample(range(1000), 37))
    damaged = list(sound)
    for number, place in enumerate(places):
        damaged[place] = broken(number)
    return sound, damaged, places


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_raise_names_the_first_bad_sample_in_order(
    thousand: tuple[list[bytes], list[bytes], list[int]], options: dict[str, Any]
) -> None:
    _, damaged, places = thousand
    for seed in range(6):
        settings = {"batch_size": 40, "pipeline": imagenet_train(16), "seed": seed}
        caught = []
        for more in ({"backend": "torch"}, options):
            with open_loader(MemorySource(damaged), **{**settings, **more}) as loader:
                with pytest.raises(LoaderError) as error:
                    list(loader)
                caught.append((error.value.sample, error.value.code, error.value.path, loader.state_dict()["position"]))
                assert f"backend={more.get('backend', 'dali')}" in str(error.value)
        assert caught[0] == caught[1]
        assert caught[0][0] in places


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_of_a_thousand_exactly_the_bad_are_replaced(
    thousand: tuple[list[bytes], list[bytes], list[int]], options: dict[str, Any]
) -> None:
    sound, damaged, places = thousand
    settings = {"batch_size": 40, "pipeline": imagenet_train(16), "on_bad_sample": "replace"}
    ours = stream(MemorySource(damaged), backend="torch", **settings)
    clean = stream(MemorySource(sound), **settings)
    dali = stream(MemorySource(damaged), **settings, **options)
    assert_near(dali, ours)
    assert len(dali.index) == 1000
    assert sorted(sample for sample, *_ in dali.bad) == places
    assert not set(dali.index.tolist()) & set(places)
    kept = ~np.isin(clean.index, places)
    assert kept.sum() == 963
    assert np.array_equal(dali.pixels[kept], clean.pixels[kept])
    # A batch is refused once, however many of its rows are broken: by its own samples or by a first substitute.
    hit = set()
    for number, sample in enumerate(clean.index.tolist()):
        while damaged[sample] in NOT_EVEN_A_HEADER:
            sample = (sample + 1) % 1000
        if sample in places:
            hit.add(number // 40)
    assert_refused(dali, len(hit), options)
    assert clean.about["batches_refused"] == 0


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
def test_wherever_the_bad_ones_are_the_stream_is_that_of_the_torch_backend(
    layout: str, options: dict[str, Any]
) -> None:
    places = LAYOUTS[layout]
    items = [undecodable(photo(k), KINDS[k % len(KINDS)]) if k in places else photo(k) for k in range(40)]
    assert all(refused_by_dali(items[place]) for place in places)
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
def test_what_only_dali_refuses_is_decoded_by_us(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
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
