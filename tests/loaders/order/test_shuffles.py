"""Repeated augmentation, batches of classes, and virtual epochs, against references in numpy."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from penstock.loaders import create_loader
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.front.choose_order import choose_order
from penstock.loaders.front.shuffles import PerClass, Repeated
from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.class_order import ClassShuffled, make_class_shuffled
from penstock.loaders.order.order import Order, Shuffled
from penstock.loaders.order.permutation import Index, Permutation
from penstock.loaders.order.repeat_order import RepeatShuffled
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.order.virtual_epochs import VirtualEpochs
from penstock.pipelines import ImagePipeline

draws = np.random.default_rng(4)


def source_of(labels: Index) -> ArraySource:
    return ArraySource(np.zeros((len(labels), 1, 1, 3), np.uint8), labels)


def epoch_of(order: Order, epoch: int = 0) -> Index:
    return order(epoch, np.arange(order.n))


def ranks_of(order: Order, batch_size: int, world_size: int, **settings: bool) -> list[Schedule]:
    about = {"n": order.n, "batch_size": batch_size, "order": order, "world_size": world_size}
    return [Schedule(**about, **settings, rank=rank) for rank in range(world_size)]  # type: ignore[arg-type]


# ---- repeated augmentation ----


def timm_indices(permutation: Index, repeats: int, rank: int, num_ranks: int) -> Index:
    """Return what timm's RepeatAugSampler serves on a rank, without its rounding to multiples of 256."""
    indices = np.repeat(permutation, repeats)
    num_samples = -(-len(indices) // num_ranks)
    indices = np.concatenate([indices, indices[: num_samples * num_ranks - len(indices)]])
    return indices[rank::num_ranks][: len(permutation) // num_ranks]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8])
def test_each_step_has_the_samples_of_timms_sampler_and_copies_are_on_different_ranks(world_size: int) -> None:
    for _ in range(12):
        copies, batch_size, epoch = int(draws.integers(2, 6)), int(draws.integers(1, 9)), int(draws.integers(0, 5))
        n = batch_size * world_size * int(draws.integers(1, 5)) + int(draws.integers(0, 7))
        ranks = ranks_of(RepeatShuffled(n=n, seed=9, samples=n, copies=copies), batch_size, world_size)
        permutation = Permutation.of_epoch(n, 9, epoch)(np.arange(n))
        timm = [timm_indices(permutation, copies, rank, world_size) for rank in range(world_size)]
        for step in range(ranks[0].steps()):
            begin = step * batch_size
            ours = [schedule.batch(epoch, begin * world_size).tolist() for schedule in ranks]
            theirs = [own[begin : begin + batch_size].tolist() for own in timm]
            assert Counter(chain(*ours)) == Counter(chain(*theirs))
            if copies <= world_size:  # else some copies share a rank in timm, too
                assert all(len(set(batch)) == batch_size for batch in ours)


def test_a_step_with_copies_is_the_same_for_every_number_of_ranks_from_any_place_on() -> None:
    order = RepeatShuffled(n=300, seed=1, samples=120, copies=3)
    for start in (0, 24, 7, 100):
        steps = []
        for world_size in (1, 2, 3, 4, 6, 8, 12):
            ranks = ranks_of(order, 24 // world_size, world_size, drop_last=False)
            steps.append([[i for rank in ranks for i in rank.batch(2, at)] for at in range(start, 300, 24)])
            for at in range(start, 300, 24):
                keys = [rank._steps(2).positions(at)[0] for rank in ranks]
                assert sorted(np.concatenate(keys).tolist()) == list(range(at, at + 24))
        full = [[sorted(step) for step in each] for each in steps]
        assert all(each == full[0] for each in full)
        assert all(each[:-1] == steps[0][:-1] for each in steps)  # padding may move in the last step


def test_neighbouring_rows_of_one_rank_have_different_samples() -> None:
    """Mixup mixes neighbours: copies of a sample must not be mixed with each other."""
    (schedule,) = ranks_of(RepeatShuffled(n=240, seed=1, samples=240, copies=3), 24, 1)
    for place in range(0, 240, 24):
        batch = schedule.batch(0, place)
        assert sorted(Counter(batch.tolist()).values()) == [3] * 8
        assert (np.diff(batch) != 0).all()


# ---- batches of classes ----


def labels_of(counts: list[int]) -> Index:
    return draws.permutation(np.repeat(np.arange(len(counts)), counts))


def batches_of(order: ClassShuffled, epoch: int) -> Index:
    return epoch_of(order, epoch).reshape(-1, order.per_batch, order.per_class)


def test_every_batch_has_p_classes_with_k_different_samples() -> None:
    for _ in range(15):
        per_class = int(draws.integers(1, 6))
        counts = draws.integers(0, 12, int(draws.integers(3, 30))).tolist()
        labels = labels_of([*counts, 1])
        per_batch = int(draws.integers(1, len(np.unique(labels)) + 1))
        order = make_class_shuffled(labels, n=500, seed=2, per_class=per_class, per_batch=per_batch)
        assert order.n == 500 // (per_class * per_batch) * per_class * per_batch
        for epoch in (0, 3):
            for batch in batches_of(order, epoch):
                classes = labels[batch]
                assert (classes == classes[:, :1]).all()
                assert len(set(classes[:, 0].tolist())) == per_batch
                for number, row in zip(classes[:, 0], batch, strict=True):
                    held, served = int((labels == number).sum()), Counter(row.tolist())
                    assert len(served) == min(held, per_class)
                    assert max(served.values()) - min(served.values()) <= 1


def test_a_class_continues_in_its_samples_from_batch_to_batch_and_epoch_to_epoch() -> None:
    labels = labels_of([12, 8, 20, 4])
    order = make_class_shuffled(labels, n=32, seed=7, per_class=4, per_batch=2)
    served = np.concatenate([epoch_of(order, epoch) for epoch in range(30)])
    for number, held in enumerate((12, 8, 20, 4)):
        own = served[labels[served] == number]
        assert len(own) == 30 * 8
        for begin in range(0, len(own), held):
            assert len(set(own[begin : begin + held].tolist())) == len(own[begin : begin + held])
        passes = {tuple(own[begin : begin + held].tolist()) for begin in range(0, len(own), held)}
        assert len(passes) > min(20, 0.9 * len(own) / held)  # shuffled again in each pass
    pairs = {frozenset(labels[batch[:, 0]].tolist()) for epoch in range(30) for batch in batches_of(order, epoch)}
    assert len(pairs) == 6  # all pairs of classes meet


def test_classes_are_served_equally_often_if_they_do_not_fill_the_batches() -> None:
    labels = labels_of([5] * 7)
    order = make_class_shuffled(labels, n=3000, seed=7, per_class=2, per_batch=3)  # 6 of 7 classes in each pass
    counts = np.bincount(labels[np.concatenate([epoch_of(order, epoch) for epoch in range(4)])])
    assert np.abs(counts / counts.mean() - 1).max() < 0.05
    counts = np.bincount(np.concatenate([epoch_of(order, epoch) for epoch in range(4)]))
    assert np.abs(counts / counts.mean() - 1).max() < 0.25  # one sample of each class is left out at a time


def test_ranks_serve_consecutive_batches_of_classes_for_any_number_of_ranks() -> None:
    order = make_class_shuffled(labels_of([9] * 11), n=400, seed=7, per_class=3, per_batch=4)
    batches = batches_of(order, 1).reshape(-1, 12).tolist()
    assert len(batches) == 33
    for world_size in (1, 2, 3, 5):
        for drop_last in (True, False):
            ranks = ranks_of(order, 12, world_size, drop_last=drop_last)
            for start in (0, 12, 36):
                places = range(start, start + 12 * world_size * ranks[0].steps(start, 1), 12 * world_size)
                served = [rank.batch(1, place).tolist() for place in places for rank in ranks]
                rest = batches[start // 12 :]
                most = len(rest) // world_size * world_size if drop_last else len(rest)
                assert served[:most] == rest[:most]
                assert set(chain(*served[most:])) <= {-1}


def test_small_classes_are_repeated_with_a_warning_or_left_out() -> None:
    labels = np.array([0] * 5 + [1] * 5 + [2] * 2 + [4] * 4)
    for small, classes in (("repeat", {0, 1, 2, 4}), ("leave_out", {0, 1, 4})):
        order = choose_order(source_of(labels), PerClass(4, small), 0, batch_size=8, epoch_samples=160)
        assert set(labels[epoch_of(order)].tolist()) == classes
    with pytest.warns(UserWarning, match="1 of 4 classes have fewer than 4 samples"):
        choose_order(source_of(labels), PerClass(4), 0, batch_size=8)
    assert choose_order(source_of(labels), PerClass(2), 0, batch_size=8).n == 16  # without a warning


# ---- virtual epochs ----


@pytest.mark.parametrize("kind", ["shuffled", "blocks"])
def test_virtual_epochs_cover_the_data_once_per_pass(kind: str) -> None:
    for n, samples in ((60, 20), (60, 7), (10, 24), (61, 60), (13, 13)):
        whole: Order = Shuffled(n, 5) if kind == "shuffled" else BlockShuffled(n=n, seed=5, block=3, group=4)
        order = VirtualEpochs(whole, samples)
        served = np.concatenate([epoch_of(order, epoch) for epoch in range(40)])
        passes = [epoch_of(whole, epoch) for epoch in range(len(served) // n + 1)]
        assert np.array_equal(served, np.concatenate(passes)[: len(served)])


def test_a_rank_keeps_its_blocks_over_virtual_epochs() -> None:
    """Epochs and passes begin within the lanes, but a block is read by one rank, except for those that fill no lane."""
    blocks = BlockShuffled(n=16 * 64 + 5, seed=8, block=16, group=16)  # 8 lanes
    order = VirtualEpochs(blocks, 251)
    readers: Counter[tuple[int, int]] = Counter()
    for schedule in ranks_of(order, 8, 2, drop_last=False):
        seen = set()
        for epoch in range(12):
            for place in range(0, 251, 16):
                batch = schedule.batch(epoch, place)
                positions = schedule._steps(epoch).positions(place)[0]
                passes = (epoch * 251 + positions) // blocks.n
                pairs = zip(passes[batch >= 0].tolist(), (batch[batch >= 0] // 16).tolist(), strict=True)
                seen |= set(pairs)
        readers.update(seen)
    shared = sum(count > 1 for count in readers.values())
    assert shared < 0.1 * len(readers), (shared, len(readers))


def test_spans_of_virtual_epochs_are_those_of_the_passes() -> None:
    blocks = BlockShuffled(n=203, seed=3, block=8, group=4)
    order = VirtualEpochs(blocks, 70)
    for epoch in range(7):
        position = 0
        while position < 70:
            span = order.span_at(epoch, position)
            number, place = divmod(epoch * 70 + position, 203)
            whole = blocks.span_at(number, place)
            assert span is not None
            assert whole is not None
            assert span[0] == position
            begin = epoch * 70 + span[0] - number * 203
            assert whole[0] <= begin
            assert begin + span[1] - span[0] == min(whole[1], (epoch + 1) * 70 - number * 203)
            position = span[1]


def test_known_orders() -> None:
    """Changing them breaks every resumed run and needs another name of the order."""
    orders: list[Order] = [
        RepeatShuffled(n=20, seed=5, samples=20, copies=3),
        make_class_shuffled(np.arange(40) % 7, n=30, seed=5, per_class=2, per_batch=3),
        VirtualEpochs(Shuffled(20, 5), 7),
    ]
    assert {order.name: order(3, np.arange(6)).tolist() for order in orders} == {
        "repeats-1 of 3 in 20": [19, 19, 19, 8, 8, 8],
        "classes-1 3 x 2 in 30 7bea082d21a087e1": [35, 0, 17, 10, 29, 36],
        "epochs-1 of 7: feistel-1": [14, 7, 4, 17, 0, 12],
    }


@pytest.mark.parametrize("settings", [Repeated(2), PerClass(2), True])
def test_a_whole_epoch_is_the_default(settings: Repeated | PerClass | bool) -> None:
    order = choose_order(source_of(np.arange(24) % 4), settings, 0, batch_size=4)
    assert order.n == 24
    assert order.name == choose_order(source_of(np.arange(24) % 4), settings, 0, None, 24, batch_size=4).name


def test_samples_that_no_virtual_epoch_serves_are_reported() -> None:
    images = np.zeros((24, 8, 8, 3), np.uint8)
    settings = {"pipeline": ImagePipeline(size=(8, 8)), "batch_size": 4, "epoch_samples": 10, "workers": 0}
    with pytest.warns(UserWarning, match="the last 2 of epoch_samples=10 .* choose a multiple of 4, or"):
        create_loader((images, np.arange(24)), **settings).close()
    with create_loader((images, np.arange(24)), drop_last=False, with_index=True, **settings) as loader:
        served = [index.tolist() for _ in range(12) for _, _, index in loader]
    assert [len(index) for index in served[:3]] == [4, 4, 2]
    passes = np.concatenate(served).reshape(5, 24)
    assert (np.sort(passes, axis=1) == np.arange(24)).all()
