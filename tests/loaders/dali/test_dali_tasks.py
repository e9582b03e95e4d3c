"""Which decoder a row gets: DALI, ours, or none because the sample is refused before decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jpeg_parts as jp
import numpy as np
import numpy.typing as npt
import pytest
from broken_scans import break_behind_the_scan, make_undecodable
from cache_files import file_item, pixel_item, write_cache
from make_planner import make_planner
from memory_source import MemorySource
from odd_images import jpeg, textured
from photo_folder import photo

from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.make.producer import Producer
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.pipelines import ImagePipeline, imagenet_train
from penstock.pipelines.sample.dali_graph import CropTask

SIZE = 24
CHECKED = partial(CropTaskProducer, checked=True)


class Made:
    """A producer's batch of all samples in order: tasks by row, pixels (7 where there are none), rows."""

    def __init__(
        self, make_producer: Callable[[Any], Producer], source: Any, pipeline: ImagePipeline, **settings: Any
    ) -> None:
        n = len(source)
        order = {"batch_size": n, "seed": 3, "shuffle": False, "drop_last": False}
        known = make_planner(source, order, **{"pipeline": pipeline, "substitute": True, **settings})
        self.pixels = np.full((n, *pipeline.size, 3), 7, np.uint8)
        self.rows: npt.NDArray[Any] = np.zeros(n, BATCH_ROW)
        self.worked_on: list[int] = []
        to = self.pixels.reshape(-1), self.rows
        made = make_producer(known).produce(Cursor(0, 0), *to, self.worked_on.append)
        self.bad: tuple[BadSample, ...] = made.in_batch(made.bad)
        self.tasks: dict[int, CropTask] = dict(made.tasks)
        self.order = list(self.tasks)


def both(
    items: list[bytes | npt.NDArray[np.uint8]], pipeline: ImagePipeline | None = None, **settings: Any
) -> tuple[Made, Made]:
    """The batch as every other backend makes it, and as it is made for DALI."""
    pipeline = pipeline or imagenet_train(SIZE)
    return tuple(Made(kind, MemorySource(items), pipeline, **settings) for kind in (Producer, CropTaskProducer))  # type: ignore[return-value]


def test_ordinary_jpegs_and_pixels_go_to_dali() -> None:
    pixels = [np.ascontiguousarray(textured(50, 60)), np.ascontiguousarray(textured(41, 33))]
    items = [photo(0), pixels[0], photo(1), pixels[1], photo(2)]
    ours, made = both(items)
    assert made.order == [0, 1, 2, 3, 4]
    assert (made.rows == ours.rows).all()
    assert (made.pixels == 7).all()
    assert ours.tasks == {}
    assert len(set(made.rows["flip"].tolist())) == 2
    for row, task in made.tasks.items():
        x, y, width, height = made.rows["window"][row].tolist()
        assert task.flip == made.rows["flip"][row]
        if isinstance(items[row], bytes):
            assert task.data is items[row]
            assert task.window == (x, y, width, height)
        else:
            assert isinstance(task.data, np.ndarray)
            assert task.data.flags.c_contiguous
            assert task.window == (0, 0, width, height)
            assert np.array_equal(task.data, items[row][y : y + height, x : x + width])
    assert made.worked_on == ours.worked_on == 2 * ours.rows["index"].tolist()  # loaded, then decoded: each may crash


def test_a_window_of_one_column_is_decoded_here() -> None:
    """For one column at the left edge, libjpeg does not upsample the chroma as it does in the whole image."""
    pixels = [np.ascontiguousarray(textured(48, 48)[:side, :side]) for side in (1, 2, 2, 3, 3, 3, 3, 3)]
    ours, made = both([jpeg(each, subsampling=2) for each in pixels])
    narrow = [row for row in range(8) if made.rows["window"][row, 2] == 1]
    assert narrow
    assert made.order == [row for row in range(8) if row not in narrow]
    assert made.order
    assert np.array_equal(made.pixels[narrow], ours.pixels[narrow])


HEADER_BAD = (b"", b"<html>", photo(3)[:-2], photo(4)[:200], jp.SOI + jp.EOI)


@pytest.mark.parametrize("evaluation", [False, True])
def test_samples_that_can_be_refused_without_decoding_are_refused_here(evaluation: bool) -> None:
    stray = bytearray(photo(5))
    stray[-40:-38] = b"\xff\xd8"  # a start of image within the scan
    items = [photo(0), *HEADER_BAD, bytes(stray), photo(1)]
    ours, made = both(items, evaluation=evaluation)
    assert [entry.sample for entry in made.bad] == [1, 2, 3, 4, 5, 6]
    assert [entry._replace(cause="") for entry in made.bad] == [entry._replace(cause="") for entry in ours.bad]
    assert (made.rows == ours.rows).all()
    if evaluation:
        assert made.order == [0, 7]
        assert not made.pixels[1:7].any()
    else:  # DALI decodes the substitute
        assert made.order == list(range(8))
        assert all(made.tasks[row].data is items[7] for row in range(1, 8))


def test_files_broken_behind_the_scan_are_not_sent_to_dali() -> None:
    items = [photo(0), break_behind_the_scan(photo(1)), photo(2)]
    ours, made = both(items)
    assert [entry.sample for entry in ours.bad] == [1]
    assert made.bad == ours.bad


def test_a_row_with_a_refused_substitute_has_no_task() -> None:
    """In an evaluation this row is padding: a leftover task of the refused sample would fill it."""
    items = [photo(0), make_undecodable(photo(1), "no quantiser"), photo(2)]
    second = Made(CHECKED, MemorySource(items), imagenet_train(SIZE), evaluation=True)
    assert second.order == [0, 2]
    assert not second.pixels[1].any()


def test_only_the_part_under_the_crop_is_sent_for_a_cache(tmp_path: Path) -> None:
    pixels = [np.ascontiguousarray(textured(90, 70 + k)) for k in range(6)]
    path = write_cache(tmp_path / "x.h5", [*(pixel_item(each) for each in pixels), file_item(photo(1))])
    cache = open_cache(path)
    made = Made(CropTaskProducer, cache, imagenet_train(SIZE))
    assert made.order == list(range(7))
    for row in range(6):
        x, y, width, height = made.rows["window"][row].tolist()
        task = made.tasks[row]
        assert task.window == (0, 0, width, height)
        assert np.array_equal(task.data, pixels[row][y : y + height, x : x + width])
    assert made.tasks[6].data == photo(1)
