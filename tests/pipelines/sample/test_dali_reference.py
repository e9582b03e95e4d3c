"""Our decoder's image of a DALI task: near DALI's, in both ways of decoding; none if libjpeg repairs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from broken_scans import make_repairable
from jpeg_samples import stoppable, unstoppable
from photo_folder import photo

from penstock.pipelines.image_types import Pixels
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.sample.dali_graph import CropTask, DaliGraph, GraphSettings
from penstock.pipelines.sample.dali_reference import ON_CPU, DaliReference, Distance, distance
from penstock.pipelines.spec import ImagePipeline

SIZE = (40, 48)


def tasks() -> list[CropTask]:
    draw, made = random.Random(1), []
    for data in {**stoppable(), **unstoppable()}.values():
        header = parse_header(data)
        w, h = draw.randint(2, header.width), draw.randint(1, header.height)
        x, y = draw.randint(0, header.width - w), draw.randint(0, header.height - h)
        made.append(CropTask(data, (x, y, w, h), draw.random() < 0.5, interpolation=draw.randrange(2)))
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
    return [*made, CropTask(pixels, (0, 0, 50, 30), True)]


def out_of(every: list[CropTask], *, whole: bool) -> list[Pixels]:
    images: list[Pixels] = []
    for coded in (True, False):
        part = [task for task in every if task.coded == coded]
        settings = GraphSettings(size=SIZE, batch_size=len(part), threads=2, depth=1, whole=whole)
        graph = DaliGraph(settings, coded=coded)
        graph.feed(part)
        images += list(graph.take().numpy())
        graph.close()
    return images


def test_both_ways_of_dali_give_the_same_image_near_ours() -> None:
    every, reference = tasks(), DaliReference(ImagePipeline(size=SIZE))
    regions, whole = (out_of(every, whole=way) for way in (False, True))
    assert all(np.array_equal(one, two) for one, two in zip(regions, whole, strict=True))
    for task, image in zip(every, regions, strict=True):
        ours = reference.expected(task)
        assert ours is not None
        assert distance(image, ours).within(ON_CPU)
        assert not distance(image[:, ::-1], ours).within(ON_CPU)


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_images_that_libjpeg_repairs_are_not_compared(seed: int) -> None:
    data = make_repairable(photo(seed), seed)
    header = parse_header(data)
    window = (0, 0, header.width, header.height)
    assert DaliReference(ImagePipeline(size=SIZE)).image(CropTask(data, window, False)) is None


def test_a_distance_is_computed_without_overflow() -> None:
    black, white = np.zeros((10, 100, 3), np.uint8), np.full((10, 100, 3), 255, np.uint8)
    assert distance(black, white) == distance(white, black) == Distance(255.0, 255.0, 0.0)
    assert distance(black, black) == Distance(0.0, 0.0, 0.0)
    spotted = black.copy()
    spotted[0, 0] = 200  # three values of 3,000
    assert distance(black, spotted).mean == pytest.approx(0.2)
    assert Distance(0.5, 9.0, 1.0).within(Distance(0.5, 9.0, 1.0))
    assert not Distance(0.5, 9.1, 1.0).within(Distance(0.5, 9.0, 1.0))
    assert not Distance(0.6, 9.0, 1.0).within(Distance(0.5, 9.0, 1.0))
    assert not Distance(0.5, 9.0, 1.1).within(Distance(0.5, 9.0, 1.0))


@pytest.mark.parametrize("edge", [np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]], ids=str)
def test_an_outermost_line_is_compared_with_the_rest(edge: tuple[slice | int, ...]) -> None:
    image = np.full((40, 40, 3), 100, np.uint8)
    spoiled = image.copy()
    spoiled[edge] += 40
    assert distance(spoiled, image) == Distance(1.0, 40.0, 39.0)
    assert distance(spoiled + np.uint8(9), image).edge == 39.0  # a difference of the whole image does not count
    spoiled = image.copy()
    spoiled[20:22] += 40
    assert distance(spoiled, image).edge == 0.0
