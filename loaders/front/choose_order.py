"""Choice of the sample order: as in the source, shuffled, by blocks or buckets, drawn by weights, or mixed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import BlockwiseSource, Source, refuse_targets
from penstock.loaders.order.block_order import BlockShuffled, BlockSizes
from penstock.loaders.order.bucket_order import Bucketed
from penstock.loaders.order.order import InOrder, Mixed, Order, Shuffled, make_weighted
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import checked_bool, checked_int, shown
from penstock.pipelines.messages.user_warnings import warn_user

BLOCK_SAMPLES, BLOCK_GROUP = 64, 256  # defaults of Blocks
_PAIRS = 1024  # pairs of neighbours whose labels are compared
_SORTED = 0.8  # data counts as sorted above this share of equal pairs; 0.5 is usual for two classes


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
                checked_int(name, getattr(self, name), 1)


Shuffle = bool | str | Blocks | None


def checked_shuffle(shuffle: object, default: bool) -> bool | Blocks:
    """Return the checked value of `shuffle`. Raises ValueError."""
    if shuffle is None:
        return default
    if isinstance(shuffle, Blocks):
        return shuffle
    if isinstance(shuffle, str):
        if shuffle != "blocks":
            raise ValueError(f"shuffle must be True or False, 'blocks' or Blocks(...), got {shuffle!r}")
        return Blocks()
    return checked_bool("shuffle", shuffle)


def choose_order(
    source: Source,
    shuffle: bool | Blocks,
    seed: int,
    weights: object = None,
    epoch_samples: int | None = None,
    buckets: Callable[[], Bucketed] | None = None,
) -> Order:
    """Return the order of the samples of `source`; the arguments are those of create_loader. Raises ValueError.

    buckets: returns the order by buckets, if buckets were requested.
    """
    mixture = getattr(source, "mixture", None)
    n = len(source)
    if epoch_samples is not None:
        epoch_samples = checked_int("epoch_samples", epoch_samples, 1)
        if weights is None and mixture is None:
            raise ValueError("epoch_samples needs weights or a mix(...): otherwise an epoch serves each sample once")
        if shuffle is False:
            raise ValueError("epoch_samples needs shuffle=True: without it an epoch serves each sample once, in order")
    if buckets is not None:
        if isinstance(shuffle, Blocks) or weights is not None or mixture is not None:
            raise ValueError(
                "buckets serve each sample once: they cannot be combined with shuffle='blocks', weights or mix(...)"
            )
        return buckets()
    if weights is not None:
        if shuffle is not True or mixture is not None:
            raise ValueError("weights draw samples at random: they cannot be combined with shuffle or a mix(...)")
        return make_weighted(_checked_weights(weights, source), epoch_samples or n, seed)
    if mixture is not None and shuffle is not False:
        if isinstance(shuffle, Blocks):
            raise ValueError("a mix(...) cannot be shuffled by blocks: pass shuffle=True")
        return Mixed(n=epoch_samples or n, seed=seed, sizes=mixture.sizes, shares=mixture.shares)
    if isinstance(shuffle, Blocks):
        _warn_of_sorted_labels(source)
        return _shuffle_blocks(source, shuffle, seed)
    return Shuffled(n, seed) if shuffle else InOrder(n)


def _shuffle_blocks(source: Source, blocks: Blocks, seed: int) -> BlockShuffled:
    """Return the order by blocks. The source's own blocks are used unless a size is given."""
    n, own = len(source), source if isinstance(source, BlockwiseSource) else None
    if own is None or blocks.samples is not None:
        return BlockShuffled(
            n=n, seed=seed, block=min(n, blocks.samples or BLOCK_SAMPLES), group=blocks.group or BLOCK_GROUP
        )
    sizes = BlockSizes.of(own.block_sizes())
    mean = -(-n // (len(sizes.starts) - 1))
    return BlockShuffled(n=n, seed=seed, block=mean, group=blocks.group or own.num_kept_blocks, sizes=sizes)


def _warn_of_sorted_labels(source: Source) -> None:
    """Warn about data sorted by class: a shuffle by blocks then mixes only a few classes."""
    n = len(source)
    some = np.unique(np.linspace(0, max(0, n - 2), _PAIRS).astype(np.int64))
    if n > _PAIRS and np.mean(source.labels(some) == source.labels(some + 1)) > _SORTED and len(source.classes) > 1:
        warn_user(
            "the data is sorted by class, so with a shuffle by blocks each batch contains few classes and trains "
            "badly: use shuffle=True, or store the data in random order",
        )


def _checked_weights(weights: object, source: Source) -> npt.NDArray[np.float64]:
    """Return a weight per sample, float64. Raises ValueError."""
    if isinstance(weights, str):
        if weights != "balanced":
            raise ValueError(f"weights must be 'balanced', a dict or one number per sample, got {weights!r}")
        refuse_targets(source, "weights='balanced'")
        return _spread(np.ones(len(source.classes)), source)
    if isinstance(weights, Mapping):
        refuse_targets(source, "weights by class")
        return _spread(_class_shares(weights, source), source)
    weights = weights.detach().cpu() if hasattr(weights, "detach") else weights
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"weights must be 'balanced', a dict or one number per sample, got {shown(weights)}") from None
    if values.shape != (len(source),):
        raise ValueError(f"weights must have shape [{len(source)}], one per sample, got {list(values.shape)}")
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(values.sum())
    if not is_finite or (values < 0).any() or not values.any():
        raise ValueError("weights and their sum must be finite and at least 0, and not all 0")
    return values


def _class_shares(weights: Mapping[Any, Any], source: Source) -> npt.NDArray[np.float64]:
    shares, numbers = np.zeros(len(source.classes)), {name: number for number, name in enumerate(source.classes)}
    given: dict[int, object] = {}
    for key, value in weights.items():
        number = _number_class(key, numbers)
        if number is None or not 0 <= number < len(shares):
            known = ", ".join(map(printable, source.classes[:5]))
            raise ValueError(f"weights must name classes of the data ({known}, ...), got {shown(key)}")
        if number in given:
            raise ValueError(f"weights name the same class twice, as {shown(given[number])} and as {shown(key)}")
        given[number] = key
        try:
            shares[number] = value
        except (TypeError, ValueError):
            raise ValueError(f"the weight of class {shown(key)} must be a number, got {shown(value)}") from None
    if not np.isfinite(shares).all() or (shares < 0).any():
        raise ValueError("weights must be finite and at least 0")
    return shares


def _number_class(key: object, numbers: Mapping[bytes, int]) -> int | None:
    """Return the class number for a class name or number; None if there is no such class.

    Raises ValueError for a number that is also the name of another class.
    """
    if isinstance(key, (bool, np.bool_)):  # the labels True and False are classes with these names
        return numbers.get(str(key).encode("ascii"))
    if isinstance(key, (int, np.integer)):
        named = numbers.get(str(key).encode("ascii"), key)
        if named != key:
            raise ValueError(
                f"the key {key} of weights is ambiguous: the class named '{key}' has number {named}; write class "
                "names as strings"
            )
        return int(key)
    return numbers.get(os.fsencode(key)) if isinstance(key, (str, bytes, os.PathLike)) else None


def _spread(shares: npt.NDArray[np.float64], source: Source) -> npt.NDArray[np.float64]:
    """Return a weight per sample: the share of its class, divided equally among the samples of the class."""
    labels = source.labels(np.arange(len(source), dtype=np.int64))
    counts = np.bincount(labels, minlength=len(shares))
    parts = np.divide(shares, counts, out=np.zeros(len(shares)), where=counts > 0)
    if not parts.any():
        raise ValueError("weights must be above 0 for a class that has samples")
    weights: npt.NDArray[np.float64] = parts[labels]
    return weights
