"""Choice of the sample order: as in the source, shuffled, by blocks or buckets, drawn by weights, or mixed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.loaders.data.labels.collect_texts import LEAVE_OUT
from penstock.loaders.data.sources.contract import BlockwiseSource, Source, require_classes
from penstock.loaders.front.class_weights import checked_weights
from penstock.loaders.front.shuffles import BLOCK_GROUP, BLOCK_SAMPLES, Blocks, CheckedShuffle, PerClass, Repeated
from penstock.loaders.make.own.own_indices import open_own_order
from penstock.loaders.order.block_order import BlockShuffled, BlockSizes
from penstock.loaders.order.bucket_order import Bucketed
from penstock.loaders.order.class_order import ClassShuffled, make_class_shuffled
from penstock.loaders.order.order import InOrder, Mixed, Order, Shuffled, make_weighted
from penstock.loaders.order.repeat_order import RepeatShuffled
from penstock.loaders.order.virtual_epochs import VirtualEpochs
from penstock.pipelines.errors import count_text
from penstock.pipelines.messages.checked import checked_int
from penstock.pipelines.messages.user_warnings import warn_user

_PAIRS = 1024  # pairs of neighbours whose labels are compared
_SORTED = 0.8  # data counts as sorted above this share of equal pairs; 0.5 is usual for two classes


def choose_order(
    source: Source,
    shuffle: CheckedShuffle,
    seed: int,
    weights: object = None,
    epoch_samples: int | None = None,
    buckets: Callable[[], Bucketed] | None = None,
    *,
    batch_size: int | None = 1,
    own: object = None,
) -> Order:
    """Return the order of the samples of `source`; the arguments are those of create_loader. Raises ValueError.

    buckets: returns the order by buckets, if buckets were requested. batch_size: None if it changes. own: the
    user's own order.
    """
    mixture = getattr(source, "mixture", None)
    n = len(source)
    if epoch_samples is not None:
        epoch_samples = checked_int("epoch_samples", epoch_samples, 1)
        if shuffle is False and own is None:
            raise ValueError("epoch_samples needs shuffle=True: without it an epoch serves each sample once, in order")
    if own is not None:
        if buckets is not None or weights is not None or mixture is not None:
            raise ValueError("order serves your indices as they are: do not pass buckets, weights or a mix(...)")
        return open_own_order(own, n, seed, epoch_samples)
    if buckets is not None:
        if not isinstance(shuffle, bool) or weights is not None or mixture is not None or epoch_samples is not None:
            raise ValueError(
                "buckets serve each sample once: they cannot be combined with shuffle='blocks', weights or mix(...), "
                "Repeated(...), PerClass(...) or epoch_samples"
            )
        return buckets()
    if weights is not None:
        if shuffle is not True or mixture is not None:
            cure = (
                "pass shuffle=True"
                if shuffle is False and mixture is None
                else "they cannot be combined with other orders or a mix(...)"
            )
            raise ValueError(f"weights draw samples at random: {cure}")
        return make_weighted(checked_weights(weights, source), epoch_samples or n, seed)
    if mixture is not None and shuffle is not False:
        if shuffle is not True:
            how = "by blocks" if isinstance(shuffle, Blocks) else f"by {type(shuffle).__name__}(...)"
            raise ValueError(f"a mix(...) cannot be shuffled {how}: pass shuffle=True")
        return Mixed(n=epoch_samples or n, seed=seed, sizes=mixture.sizes, shares=mixture.shares)
    if isinstance(shuffle, Repeated):
        return _repeat(source, shuffle, seed, epoch_samples)
    if isinstance(shuffle, PerClass):
        return _shuffle_classes(source, shuffle, seed, epoch_samples or n, batch_size)
    order: Order = InOrder(n)
    if isinstance(shuffle, Blocks):
        _warn_of_sorted_labels(source)
        order = _shuffle_blocks(source, shuffle, seed)
    elif shuffle:
        order = Shuffled(n, seed)
    return order if epoch_samples in (None, n) else VirtualEpochs(order, epoch_samples)


def _repeat(source: Source, repeated: Repeated, seed: int, epoch_samples: int | None) -> RepeatShuffled:
    """Return the order for repeated augmentation. Raises ValueError for an epoch of more samples than there are."""
    n = len(source)
    views = repeated.times * n
    if epoch_samples is not None and epoch_samples > views:
        raise ValueError(
            f"epoch_samples must be at most {views:,} with Repeated({repeated.times}), {repeated.times} views of "
            f"{count_text(n, 'sample')}, got {epoch_samples:,}"
        )
    return RepeatShuffled(n=epoch_samples or n, seed=seed, samples=n, copies=repeated.times)


def _shuffle_classes(
    source: Source, settings: PerClass, seed: int, epoch_samples: int, batch_size: int | None
) -> ClassShuffled:
    """Return the order by classes. Raises ValueError if batches cannot have the same number of samples per class."""
    require_classes(source, "PerClass(...)")
    per_class = settings.samples
    if batch_size is None:
        raise ValueError("PerClass(...) needs one batch_size for all batches, because it sets the classes of a batch")
    if batch_size % per_class:
        raise ValueError(
            f"batch_size must be a multiple of the {per_class} samples of PerClass({per_class}), got {batch_size}"
        )
    labels = source.labels(np.arange(len(source), dtype=np.int64)).astype(np.int64)
    least, per_batch = per_class if settings.small == LEAVE_OUT else 1, batch_size // per_class
    order = make_class_shuffled(
        labels, n=epoch_samples, seed=seed, per_class=per_class, per_batch=per_batch, least=least
    )
    counts = np.diff(order.starts)
    num_classes, small = len(counts), int((counts < per_class).sum())
    if num_classes < per_batch:
        fewest = f" with at least {per_class} samples" * (least > 1)
        raise ValueError(
            f"a batch of {batch_size} with PerClass({per_class}) needs {count_text(per_batch, 'class')}, but the data "
            f"has {num_classes}{fewest}: lower batch_size, or raise the samples per class"
        )
    if small and settings.small is None:
        warn_user(
            f"{small:,} of {num_classes:,} classes have fewer than {per_class} samples, so a batch contains "
            f"some of their samples several times: pass PerClass({per_class}, small='leave_out') to leave these "
            "classes out, or small='repeat' to accept this"
        )
    return order


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
            "badly: use shuffle=True, or store the data in random order"
        )
