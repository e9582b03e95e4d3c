"""A mixture under every view: its shares are kept, or the view is refused. Compared with independent counts."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder

from penstock.loaders import DataLoader, concat, create_loader, mix, open_source, split, with_fields, with_labels
from penstock.loaders.front.loader import Loader
from penstock.pipelines import ImagePipeline

TINY = ImagePipeline(size=(2, 2), crop="full", flip=0.0)
NUM_CASES, EPOCHS = 54, 3
LOST = r"would lose the shares of the mix\(\.\.\.\) of '0', '1'"


class Case:
    """A mixture of random sizes and shares; the pixels of sample i are i, to identify the samples of a batch."""

    def __init__(self, number: int) -> None:
        self.draws = draws = np.random.default_rng([7, number])
        self.sizes = draws.integers(1, 30, draws.integers(2, 5)).tolist()
        self.num_samples = sum(self.sizes)
        self.shares = [
            draws.integers(0, 5, draws.integers(1, 3)).tolist() if draws.random() < 0.5 else int(draws.integers(0, 9))
            for _ in self.sizes
        ]
        self.shares[draws.integers(len(self.shares))] = int(draws.integers(1, 9))
        self.epoch_samples = None if draws.random() < 0.3 else int(draws.integers(1, 3 * self.num_samples))
        self.labels = draws.integers(0, 3, self.num_samples)

    def mix(self) -> Any:
        starts = np.cumsum([0, *self.sizes])
        pixels = np.arange(self.num_samples, dtype=np.uint8)[:, None, None, None].repeat(2, 1).repeat(2, 2).repeat(3, 3)
        return mix(
            {
                str(number): ((pixels[first:end], self.labels[first:end]), share)
                for number, (first, end, share) in enumerate(zip(starts, starts[1:], self.shares, strict=False))
            }
        )

    def check_counts(self, served: list[int], epoch: int) -> None:
        """Check the number of samples per source: shares are rounded down, except the largest remainders."""
        shares = [Fraction(s[min(epoch, len(s) - 1)] if isinstance(s, list) else s) for s in self.shares]
        num_served = self.epoch_samples or self.num_samples
        exact = [share * num_served / sum(shares) for share in shares]
        rests = [each - int(each) for each in exact]
        is_up = [count - int(each) for count, each in zip(served, exact, strict=True)]
        assert sum(served) == num_served
        assert set(is_up) <= {0, 1}
        up, down = ([rest for rest, is_own in zip(rests, is_up, strict=True) if is_own == own] for own in (1, 0))
        assert min(up, default=1) >= max(down, default=0)

    def open(self, source: Any, **options: Any) -> Loader:
        defaults: dict[str, Any] = {"pipeline": TINY, "shuffle": True, "drop_last": False, "with_index": True}
        own = {"batch_size": 7, "workers": 0, "epoch_samples": self.epoch_samples, "dtype": torch.uint8}
        return create_loader(source, **{**defaults, **own, **options})

    def check(self, source: Any, **options: Any) -> list[tuple[int, Any, Any]]:
        """Check that epochs keep the shares; return index, label and text of each served sample."""
        rows: list[tuple[int, Any, Any]] = []
        ends, passes = np.cumsum(self.sizes), np.zeros(self.num_samples, int)
        with self.open(source, **options) as loader:
            for epoch in range(EPOCHS):
                served = np.zeros(len(self.sizes), int)
                for batch in loader.batches():
                    assert batch.images[:, 0, 0, 0].tolist() == batch.index.tolist()
                    served += np.bincount(np.searchsorted(ends, batch.index, "right"), minlength=len(ends))
                    np.add.at(passes, batch.index, 1)
                    texts = batch.fields.get("text", [None] * len(batch.index))
                    rows += zip(batch.index.tolist(), batch.labels.tolist(), texts, strict=True)
                self.check_counts(served.tolist(), epoch)
                assert loader.ledger().sources == dict(zip(map(str, range(len(ends))), served.tolist(), strict=True))
        for passed in np.split(passes, ends[:-1]):
            assert np.ptp(passed) <= 1  # no sample repeats before its source is exhausted
        return rows


KEPT = ["alone", "labels", "names", "floats", "text", "labels and text", "text twice", "concat of one", "list of one"]
LOSING = [
    "subset",
    "a part by slice",
    "max_per_class",
    "split",
    "concat",
    "list",
    "mix",
    "mix of one",
    "subset of labels",
]
LOSING += ["split of text", "concat of labels", "max_per_class of names", "mix of text"]


def view(case: Case, kind: str) -> Any:
    count = case.num_samples
    texts, numbers = [f"text {number}" for number in range(count)], np.arange(count)
    mixed, other = case.mix(), (np.zeros((3, 2, 2, 3), np.uint8), np.arange(3))
    views: dict[str, Any] = {
        "alone": lambda: mixed,
        "labels": lambda: with_labels(mixed, count - 1 - numbers),
        "names": lambda: with_labels(mixed, [f"{number:03d}" for number in numbers]),
        "floats": lambda: with_labels(mixed, numbers / 2),
        "text": lambda: with_fields(mixed, text=texts),
        "labels and text": lambda: with_fields(with_labels(mixed, count - 1 - numbers), text=texts),
        "text twice": lambda: with_fields(with_fields(mixed, text=texts[::-1]), text=texts),
        "concat of one": lambda: concat([mixed]),
        "list of one": lambda: [with_labels(mixed, numbers / 2)],
        "subset": lambda: open_source(mixed, subset=case.draws.permutation(count)[: case.draws.integers(1, count)]),
        "a part by slice": lambda: open_source(mixed, subset=":0.9"),
        "max_per_class": lambda: open_source(mixed, max_per_class=int(case.draws.integers(1, 9))),
        "split": lambda: split(mixed, 0.5),
        "concat": lambda: concat([mixed, other] if case.draws.random() < 0.5 else [other, mixed]),
        "list": lambda: open_source([mixed, mixed]),
        "mix": lambda: mix({"one": (mixed, 0.5), "other": (other, 0.5)}),
        "mix of one": lambda: mix({"one": (mixed, 1)}),
        "subset of labels": lambda: open_source(with_labels(mixed, numbers / 2), subset=[0]),
        "split of text": lambda: split(with_fields(mixed, text=texts), 0.5, by_class=False),
        "concat of labels": lambda: concat([with_labels(mixed, numbers), other]),
        "max_per_class of names": lambda: open_source(with_labels(mixed, ["a"] * count), max_per_class=1),
        "mix of text": lambda: mix({"one": (with_fields(mixed, text=texts), 1)}),
    }
    assert list(views) == KEPT + LOSING
    return views[kind]()


@pytest.mark.parametrize("kind", KEPT)
def test_views_that_keep_the_order_keep_the_shares(kind: str) -> None:
    for number in range(NUM_CASES // len(KEPT)):
        case = Case(number * len(KEPT) + KEPT.index(kind))
        for index, label, text in case.check(view(case, kind)):
            labels: dict[str, float] = {"labels": case.num_samples - 1 - index, "names": index, "floats": index / 2}
            labels |= {"labels and text": labels["labels"], "list of one": labels["floats"]}
            assert label == labels.get(kind, case.labels[index])
            assert text == (f"text {index}" if "text" in kind else None)


@pytest.mark.parametrize("kind", LOSING)
def test_views_that_would_lose_the_shares_are_refused(kind: str) -> None:
    for number in range(3):
        with pytest.raises(ValueError, match=LOST):
            view(Case(1000 + number), kind)


def test_options_of_a_loader_that_lose_the_shares_are_refused() -> None:
    case = Case(0)
    for options in ({"subset": ":0.5"}, {"subset": [0]}, {"max_per_class": 1}):
        with pytest.raises(ValueError, match=LOST + ".*: apply it to each source, then mix"):
            case.open(case.mix(), **options)
    with pytest.raises(ValueError, match="pass all sources and their shares to one mix"):
        concat([case.mix(), case.mix()])
    labelled = with_labels(case.mix(), np.arange(case.num_samples))
    with pytest.raises(ValueError, match=r"cannot be combined with other orders or a mix\(\.\.\.\)"):
        case.open(labelled, weights=np.ones(case.num_samples))
    with pytest.raises(ValueError, match="cannot be shuffled by blocks"):
        case.open(labelled, shuffle="blocks", epoch_samples=None)
    with pytest.raises(ValueError, match="dataset must be a Dataset of torch"):
        DataLoader(labelled)


def test_a_refused_split_of_a_mixture_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=LOST):
        split(Case(0).mix(), 0.5, save=tmp_path / "cut.json")
    assert not list(tmp_path.iterdir())


def test_a_part_of_each_source_can_be_mixed() -> None:
    sources = {str(n): open_source((np.full((20, 2, 2, 3), n, np.uint8), np.arange(20))) for n in range(2)}
    mixed = mix({name: (split(source, 0.5, by_class=False)[0], 0.5) for name, source in sources.items()})
    with create_loader(mixed, pipeline=TINY, shuffle=True, epoch_samples=40, batch_size=8, workers=0) as loader:
        list(loader)
        assert loader.ledger().sources == {"0": 20, "1": 20}


@pytest.mark.parametrize("labelled", [False, True])
def test_a_cache_of_a_mixture_keeps_shares_and_counts(tmp_path: Path, *, labelled: bool) -> None:
    few, many = (write_folder(tmp_path / name, count) for name, count in (("few", 4), ("many", 12)))
    source: Any = mix({"few": (few, 0.75), "many": (many, 0.25)})
    if labelled:
        source = with_labels(source, np.arange(16) / 2)
    settings: dict[str, Any] = {"pipeline": ImagePipeline(size=(8, 8)), "epoch_samples": 24, "batch_size": 8}
    settings |= {"workers": 0, "with_index": True, "seed": 3}
    with create_loader(source, **settings) as loader:
        expected = [index.tolist() for _, _, index in loader]
        assert loader.ledger().sources == {"few": 18, "many": 6}
    with create_loader(source, backend="hdf5", cache=tmp_path / "mixed.h5", **settings) as loader:
        assert [index.tolist() for _, _, index in loader] == expected
        assert loader.ledger().sources == {"few": 18, "many": 6}


def test_epoch_samples_needs_a_shuffle() -> None:
    case = Case(0)
    with pytest.raises(ValueError, match="epoch_samples needs shuffle=True"):
        case.open(case.mix(), shuffle=False, epoch_samples=5)
