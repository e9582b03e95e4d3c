"""How an epoch is shuffled: the values of `shuffle` in create_loader."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loaders.data.labels.collect_texts import LEAVE_OUT
from penstock.pipelines.messages.checked import checked_bool, checked_choice, checked_int, shown

BLOCK_SAMPLES, BLOCK_GROUP = 64, 256  # defaults of Blocks


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Settings of a shuffle by blocks, for storage that is slow at random reads.

    Raises ValueError for numbers below 1.

    Attributes:
        samples: neighbouring samples per block. The default is 64, a few MB of photos; for Parquet files the blocks
            are the row groups, regardless of their sizes.
        group: number of blocks that are mixed together. More blocks mix a batch better. The default is 256; for row
            groups, the number that the source keeps decoded, which depends on `cache_bytes`.
    """

    samples: int | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "group"):
            if getattr(self, name) is not None:
                checked_int(f"{name} of Blocks", getattr(self, name), 1)


@dataclass(frozen=True)
class Repeated:
    """Repeated augmentation, as in DeiT and with timm's --aug-repeats: `times` views of a sample on different ranks.

        create_loader("imagenet/train", shuffle=Repeated(3))

    Each sample is served `times` times in a row, with its own crop, flip and augmentations each time. If there are at
    least `times` ranks, each view is on another rank. With fewer ranks some views are in the same batch. By default an
    epoch has as many views as the data has samples, so it serves samples / times different images; `epoch_samples`
    changes the number of views, up to times * samples. Raises ValueError for a number below 2.

    Attributes:
        times: views of each sample.
    """

    times: int = 3

    def __post_init__(self) -> None:
        checked_int("times of Repeated", self.times, 2)


@dataclass(frozen=True)
class PerClass:
    """Batches of P classes with K samples each, for metric learning. K is `samples`, P is batch_size / K.

        create_loader("products", shuffle=PerClass(4), batch_size=32)  # 8 classes with 4 samples each

    Every batch of every rank has P different classes, and each class K different samples. Classes are shuffled, then
    served in turn, and each class continues in its own shuffled samples across epochs. An epoch has as many samples as
    the data, or `epoch_samples`, rounded down to whole batches of a rank. Raises ValueError for other values.

    Attributes:
        samples: samples per class, K.
        small: what to do with classes of fewer than K samples. "repeat" serves some of their samples several times in a
            batch, with other crops; "leave_out" never serves them. None repeats them, and warns.
    """

    samples: int = 4
    small: str | None = None

    def __post_init__(self) -> None:
        checked_int("samples of PerClass", self.samples, 1)
        if self.small is not None:
            checked_choice("small of PerClass", self.small, ("repeat", LEAVE_OUT))


Shuffle = bool | str | Blocks | Repeated | PerClass | None
CheckedShuffle = bool | Blocks | Repeated | PerClass


def checked_shuffle(shuffle: object, default: bool, order: object = None) -> CheckedShuffle:
    """Return the checked value of `shuffle`. Raises ValueError, also if the user's own `order` is given, too."""
    if order is not None and shuffle is not None:
        raise ValueError("order and shuffle cannot be combined: your order is served as it is")
    if shuffle is None:
        return default
    if isinstance(shuffle, (Blocks, Repeated, PerClass)):
        return shuffle
    if shuffle in (Repeated, PerClass) or isinstance(shuffle, str):
        if shuffle == "blocks":
            return Blocks()
        kinds = "'blocks', Blocks(...), Repeated(...) or PerClass(...)"
        raise ValueError(f"shuffle must be True or False, {kinds}, got {shown(shuffle)}")
    return checked_bool("shuffle", shuffle)
