"""The indices of each epoch from the user's own order: a function, a sampler, or an array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from penstock.loaders.make.own.global_draws import own_draws, seed_generators
from penstock.loaders.order.own_order import OwnOrder
from penstock.loaders.order.permutation import Index
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_functions import describe_exception
from penstock.pipelines.plan.philox import STREAM_SAMPLER, random_words

# A function of the epoch, a sampler, or the indices of every epoch.
OwnIndices = Callable[[int], Iterable[int]] | Iterable[int]
_MOST_PASSES = 100  # an order of more passes over the data counts as endless
_KINDS = "a function of the epoch that returns indices, a sampler, or an array of indices"


def open_own_order(order: Any, samples: int, seed: int, epoch_samples: int | None = None) -> OwnOrder:
    """Return the order that serves the user's indices. Raises ValueError for anything else.

    samples: number of samples of the data. seed: seeds the global random generators, and a sampler's own.
    epoch_samples: take the first ones of each epoch.
    """
    _refuse_kind(order)
    is_fixed = hasattr(order, "__array__") or isinstance(order, (list, tuple, range))
    indices_of = _IndicesOf(order, samples, seed, epoch_samples)
    first = indices_of(0)
    if not is_fixed and not np.array_equal(first, indices_of(0)):
        raise ValueError(
            "order returned other indices when it was called for epoch 0 again, so a run could not be resumed: draw "
            "from np.random.default_rng(epoch), or from the global random state, which is seeded for each epoch"
        )
    return OwnOrder(indices_of, first, is_fixed=is_fixed)


def _refuse_kind(order: Any) -> None:
    if isinstance(order, BatchSampler):
        raise ValueError("order takes single indices, not batches: pass the sampler's own sampler, and batch_size=")
    replicas = getattr(order, "num_replicas", 1)
    if isinstance(order, DistributedSampler) or (isinstance(replicas, int) and replicas > 1):
        raise ValueError(
            f"{type(order).__name__} serves the share of one rank, but the loader shares out the order itself: pass an "
            "order of all samples, such as shuffle=True, or shuffle=Repeated(3) for repeated augmentation"
        )
    if isinstance(order, Iterator):
        raise ValueError(f"this {type(order).__name__} ends after one epoch: pass list(...) of it, or {_KINDS}")
    is_text = isinstance(order, (str, bytes, Mapping, set, frozenset, type))
    if is_text or not (callable(order) or isinstance(order, Iterable) or hasattr(order, "__array__")):
        raise ValueError(f"order must be {_KINDS}, got {shown(order)}: for a random order, pass shuffle=True")


class _IndicesOf:
    """Return the indices of an epoch, int64 [k]: a function of seed and epoch, even if they are drawn.

    The global random generators of Python, numpy and torch, and a sampler's own torch.Generator, are seeded for the
    call and restored.
    """

    def __init__(self, order: Any, samples: int, seed: int, epoch_samples: int | None) -> None:
        self._order, self._samples, self._seed, self._epoch_samples = order, samples, seed, epoch_samples

    def __call__(self, epoch: int) -> Index:
        words = random_words(self._seed, epoch, np.zeros(1, np.int64), STREAM_SAMPLER, 4)[0]
        generator = getattr(self._order, "generator", None)
        generator = generator if isinstance(generator, torch.Generator) else None
        state = None if generator is None else generator.get_state()
        with own_draws():
            seed_generators(words)
            if generator is not None:
                generator.manual_seed(int(words[0]) | int(words[1]) << 32)
            try:
                found = self._list(epoch)
            except Exception as error:
                raise ValueError(f"order raised {describe_exception(error)} for epoch {epoch}") from error
            finally:
                if generator is not None and state is not None:
                    generator.set_state(state)
        return self._checked(found, epoch)

    def _list(self, epoch: int) -> Any:
        """Call the order, and return its indices as a list, or whatever it is instead."""
        found = self._order
        if isinstance(found, Iterable) or hasattr(found, "__array__"):
            take = getattr(found, "set_epoch", None)
            if callable(take):
                take(epoch)
        else:
            found = found(epoch)
        if isinstance(found, torch.Tensor):
            return found.detach().cpu().numpy()
        if hasattr(found, "__array__") or not isinstance(found, Iterable):
            return found
        return list(islice(found, self._epoch_samples or self._samples * _MOST_PASSES + 1))

    def _checked(self, found: Any, epoch: int) -> Index:
        samples, most, of = self._samples, self._epoch_samples, f"for epoch {epoch}"
        try:
            values = np.asarray(found)
        except (TypeError, ValueError, RuntimeError):
            values = np.asarray(None)
        if values.ndim and not len(values):
            raise ValueError(f"order returned no indices {of}")
        if values.ndim == 2 or (isinstance(found, list) and isinstance(found[0], (list, tuple))):
            raise ValueError(f"order returned batches {of}: return single indices, and pass batch_size=")
        if values.ndim != 1 or values.dtype.kind not in "iu":
            hint = ", a mask: pass np.flatnonzero(mask)" if values.dtype.kind == "b" else ""
            raise ValueError(f"order must return integer indices {of}, got {shown(found)}{hint}")
        values = values[:most]
        if most is None and len(values) > samples * _MOST_PASSES:
            raise ValueError(f"order returned more than {_MOST_PASSES} passes {of}: pass epoch_samples= to end it")
        if most is not None and len(values) < most:
            raise ValueError(f"order returned {len(values):,} indices {of}, fewer than epoch_samples={most:,}")
        if values.min() < 0 or values.max() >= samples:
            wrong = values[(values < 0) | (values >= samples)][0]
            raise ValueError(f"order must return indices from 0 to {samples - 1:,} {of}, got {wrong}")
        return values.astype(np.int64)
