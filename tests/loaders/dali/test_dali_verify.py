"""Samples that DALI decodes wrongly are found, named and counted, and raised or decoded by our own decoder."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from broken_scans import KINDS, make_repairable, make_undecodable
from dali_streams import IDS, WORKERS, open_loader, stream_of
from kernel_count import KernelCount
from logged_copies import LoggedCopies
from make_planner import make_planner
from memory_source import MemorySource
from old_nvjpeg import give_regions_wrong_edges
from photo_folder import photo
from processes import eventually, threads

from penstock.loaders import LoaderError
from penstock.loaders.dali import dali_verify
from penstock.loaders.dali.dali_verify import CANARY, Verifier, unwritten_rows
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.pipelines import imagenet_train
from penstock.pipelines.sample.dali_graph import CropTask, DaliGraph
from penstock.pipelines.sample.dali_reference import ON_GPU, Distance, distance

COUNT, BATCH = 24, 4
PHOTOS = [photo(number) for number in range(COUNT)]


class Planted:
    """DALI, but `spoil` changes the images of some files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: set[int], spoil: Any = None) -> None:
        self.fed: list[list[CropTask]] = []
        self.decoded: list[int] = []
        feed, take, init = DaliGraph.feed, DaliGraph.take, DaliGraph.__init__

        def begin(graph: DaliGraph, *arguments: Any, **named: Any) -> None:
            graph.under_way = []  # type: ignore[attr-defined]
            init(graph, *arguments, **named)

        def note(graph: DaliGraph, tasks: list[CropTask]) -> None:
            feed(graph, tasks)
            graph.under_way.append([PHOTOS.index(bytes(task.data)) for task in tasks])  # type: ignore[attr-defined]

        def change(graph: DaliGraph) -> torch.Tensor:
            images = take(graph).clone()
            if graph.under_way:  # type: ignore[attr-defined]  # not of the warm-up
                for row, sample in enumerate(graph.under_way.pop(0)):  # type: ignore[attr-defined]
                    self.decoded.append(sample)
                    if sample in wrong:
                        images[row] = (spoil or (lambda image: 255 - image))(images[row])
            return images

        monkeypatch.setattr(DaliGraph, "__init__", begin)
        monkeypatch.setattr(DaliGraph, "feed", note)
        monkeypatch.setattr(DaliGraph, "take", change)


def settings_of(**more: Any) -> dict[str, Any]:
    return {"batch_size": BATCH, "verify": BATCH, "shuffle": False, "pipeline": imagenet_train(32), **more}


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_a_wrong_sample_is_named_with_its_distance(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    Planted(monkeypatch, {5})
    with open_loader(MemorySource(PHOTOS), **settings_of(**options)) as loader:
        batches = itertools.chain.from_iterable(loader.batches() for _ in range(20))
        with pytest.raises(LoaderError) as caught:
            list(batches)
    error = caught.value
    assert (error.code, error.exit_code, error.sample, error.path, error.backend) == (
        *("E-DECODER", 7, 5, b"memory/5.jpg", "dali"),
    )
    assert "levels from libjpeg's pixels on average" in error.cause
    assert error.cause.startswith("DALI 2")
    assert "nvImageCodec" in error.cause
    assert "decode='whole'" in error.fix
    assert eventually(lambda: not threads())


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_a_wrong_sample_is_counted_and_decoded_by_us_under_replace(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    planted = Planted(monkeypatch, {5, 18})
    settings = settings_of(on_bad_sample="replace", **options)
    with open_loader(MemorySource(PHOTOS), **settings) as loader:
        for _ in range(20):
            list(loader)
            if loader.describe()["misread"] == 2:
                break
        for _ in range(3):  # batches in progress at that time
            list(loader)
        found = {entry.sample: entry for ledger in loader.ledgers() for entry in ledger.repairs}
        about, num_repaired = loader.describe(), loader.stats().repaired
        before = planted.decoded.count(5), planted.decoded.count(18), planted.decoded.count(6)
        images = {}
        for batch in loader.batches():
            images.update(zip(batch.index.tolist(), batch.images.clone(), strict=True))
            epoch = batch.epoch
        list(loader)  # a whole epoch may have been decoded before `before` was counted
        after = planted.decoded.count(5), planted.decoded.count(18), planted.decoded.count(6)
        assert loader.stats().repaired == num_repaired >= 2  # once per time it was served
    assert set(found) == {5, 18}
    assert (found[5].code, found[5].substitute, found[5].path) == ("E-DECODER", 5, b"memory/5.jpg")
    assert (about["verified_per_batch"], about["misread"]) == (BATCH, 2)
    assert about["compared"] >= COUNT
    assert after[:2] == before[:2]
    assert after[2] > before[2]
    own = {name: value for name, value in settings.items() if name not in ("verify", "readers")}
    with open_loader(MemorySource(PHOTOS), **own, backend="torch") as ours:
        ours.set_epoch(epoch)
        for batch in ours.batches():
            for sample, image in zip(batch.index.tolist(), batch.images, strict=True):
                if sample in (5, 18):
                    assert torch.equal(image, images[sample])


@pytest.mark.parametrize("decode", ["regions", "whole"])
def test_wrong_edges_of_regions_are_found(monkeypatch: pytest.MonkeyPatch, decode: str) -> None:
    """By the edges alone: mean and 99.9 % of the values are within a GPU's limits, as in a photo of pale stripes."""
    seen: list[Distance] = []
    give_regions_wrong_edges(monkeypatch)
    monkeypatch.setattr(dali_verify, "ON_CPU", ON_GPU)
    monkeypatch.setattr(dali_verify, "_MEASURED", (ON_GPU,))
    monkeypatch.setattr(dali_verify, "distance", lambda *pair: seen.append(distance(*pair)) or seen[-1])
    stripes = np.indices((112, 112))[1, ..., None] // 2 % 2
    pixels = np.where(stripes, (167, 98, 178), (89, 158, 78)).astype(np.uint8)
    striped = [simplejpeg.encode_jpeg(pixels, 100, "RGB", sampling) for sampling in ("420", "422")] * 4
    with open_loader(MemorySource(striped), **settings_of(decode=decode, on_bad_sample="replace")) as loader:
        for _ in range(4):
            list(loader)
        about = loader.describe()
    assert about["compared"] == len(seen) > 0
    assert all(far.within(ON_GPU._replace(edge=255.0)) for far in seen)
    assert bool(about["misread"]) == (decode == "regions")


def test_a_good_decoder_passes_and_the_stream_is_unchanged() -> None:
    odd = [*PHOTOS[:8], make_repairable(PHOTOS[8], 0), *PHOTOS[9:12]]  # the decoders repair these differently
    served = []
    for options in ({"verify": 0}, {"verify": 1}, {"verify": BATCH}, {"verify": 9, **WORKERS[1]}):
        with open_loader(MemorySource(odd), **settings_of(**options)) as loader:
            served.append(stream_of(loader, 3))
    assert all(np.array_equal(one.pixels, served[0].pixels) for one in served)
    assert all(one.numbers() == served[0].numbers() for one in served)
    assert [one.about.get("compared", 0) for one in served[:3]] == [0, 9, 36]
    assert "verified_per_batch" not in served[0].about


def test_each_batch_compares_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    judge = Verifier._judge
    monkeypatch.setattr(Verifier, "_judge", lambda self, sample: seen.append(sample.row) or judge(self, sample))
    with open_loader(MemorySource(PHOTOS), **settings_of(batch_size=8, verify=1)) as loader:
        for _ in range(4):
            list(loader)
    assert len(seen) == 12
    assert set(seen) == set(range(8))


def test_a_row_that_was_never_written_is_always_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its canary shows it; the row that is compared in any case is another one."""

    def half(image: torch.Tensor) -> torch.Tensor:
        image[16:] = CANARY
        return image

    Planted(monkeypatch, {2}, half)
    loader = open_loader(MemorySource(PHOTOS), **settings_of(batch_size=8, verify=1))
    with loader, pytest.raises(LoaderError, match=r"sample=2.*a part of it was never written"):
        next(iter(loader))


def test_on_a_device_rows_are_read_on_a_separate_stream() -> None:
    tasks = tuple((row, CropTask(PHOTOS[row], (0, 0, 9, 9), False)) for row in (0, 2))
    produced = Produced(WorkItem(0, Cursor(0, 0), 0), tasks=tasks)
    settings = make_planner(MemorySource(PHOTOS), pipeline=imagenet_train(16))
    verifier, copies = Verifier(settings, 2), LoggedCopies()
    images = torch.arange(3 * 16 * 16 * 3).reshape(3, 16, 16, 3).to(torch.uint8)
    verifier.look_at(produced, np.array([7, 8, 9]), images, copies)
    assert copies.log == ["side", "mark", "back", "wait"] * 2  # the canary, and the rows
    assert [(each.sample, each.row) for each in verifier._waiting] == [(7, 0), (9, 2)]
    assert all(np.array_equal(each.image, images[each.row].numpy()) for each in verifier._waiting)


def test_checking_a_batch_takes_six_kernels_and_one_read_of_its_pixels() -> None:
    images = torch.empty(256, 224, 224, 3, dtype=torch.uint8, device="meta")
    with KernelCount() as count:
        unwritten_rows(images)
        images.fill_(CANARY)
    assert count.num_kernels <= 6
    assert count.num_bytes < 2.05 * images.nbytes  # read once, filled once


def test_only_a_row_of_canary_pixels_is_suspicious() -> None:
    images = torch.full((5, 6, 7, 3), CANARY, dtype=torch.uint8)
    images[0] = torch.arange(126).reshape(6, 7, 3)
    images[1, :, 3, 1] += 1
    images[2, 1:] = 0
    images[3, :, 6, 2] = 0
    assert unwritten_rows(images).tolist() == [False, False, True, False, True]
    assert unwritten_rows(images.to("meta")).shape == (5,)


def test_a_decoder_that_is_always_wrong_raises_under_any_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    Planted(monkeypatch, set(range(COUNT)))
    with (
        open_loader(MemorySource(PHOTOS), **settings_of(on_bad_sample="replace")) as loader,
        pytest.raises(LoaderError, match=r"E-DECODER.*16 of 16 compared samples are wrong"),
    ):
        list(loader)


def test_exceeding_an_unmeasured_limit_warns_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali_verify, "_MEASURED", ())
    Planted(monkeypatch, set(range(COUNT)))
    with open_loader(MemorySource(PHOTOS), **settings_of(workers=0)) as loader:
        with pytest.warns(RuntimeWarning, match=r"sample 0: .*levels from libjpeg's pixels.*describe") as warned:
            list(itertools.chain(loader, loader))
        about = loader.describe()
    assert len(warned) == 1
    assert (about["misread"], about["doubtful"]) == (0, about["compared"])
    assert about["compared"] > COUNT


def test_files_that_dali_decodes_and_libjpeg_refuses_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [make_undecodable(PHOTOS[0], KINDS[0]), *PHOTOS[1:4]]
    monkeypatch.setattr(DaliGraph, "feed", lambda graph, tasks: graph._fed.append(tasks))
    monkeypatch.setattr(DaliGraph, "_feed", lambda graph, tasks: graph._fed.append(tasks))
    monkeypatch.setattr(DaliGraph, "_built", lambda *_: type("Pipe", (), {"schedule_run": lambda _: None})())

    def take(graph: DaliGraph) -> torch.Tensor:
        return torch.zeros(len(graph._fed.popleft()), 32, 32, 3, dtype=torch.uint8)

    monkeypatch.setattr(DaliGraph, "take", take)
    with (
        open_loader(MemorySource(broken), **settings_of()) as loader,
        pytest.raises(LoaderError, match=r"sample=0.*wrongly: libjpeg refuses the file"),
    ):
        list(loader)


def test_a_finding_after_the_last_batch_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    Planted(monkeypatch, {5})
    monkeypatch.setattr(Verifier, "take_wrong", lambda _: ())
    loader = open_loader(MemorySource(PHOTOS), **settings_of())
    list(loader)
    with pytest.warns(RuntimeWarning, match=r"sample 5 \('memory/5.jpg'\): DALI .* decoded it wrongly"):
        loader.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.close()


def test_a_slow_verifier_skips_batches_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali_verify, "_WAITING", 3)
    monkeypatch.setattr(Verifier, "compare", lambda self, stop=None: None)
    with open_loader(MemorySource(PHOTOS), **settings_of(verify=2)) as loader:
        list(loader)
        assert loader.describe()["not_compared"] == COUNT // BATCH - 2
