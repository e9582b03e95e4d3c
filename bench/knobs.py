"""The knobs of each backend whose best value depends on the machine, and the values worth trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields

from penstock.bench.tuning import KnobValue, Options
from penstock.loaders.dali_loader import DaliOptions, default_readers
from penstock.loaders.machine import default_workers

Values = dict[str, tuple[KnobValue, ...]]
Largest = tuple[int, int]  # width, height in pixels

_MIB = 1 << 20
_NVJPEG_MIB = 16  # device_memory_padding unless given
# What DALI's ImageNet examples gave each thread, 211,025,920 bytes, for their largest image, 5980 x 6430.
_NVJPEG_BYTES_A_PIXEL = 5.5


def knobs_of(backend: str, device: str, workers: int | None = None, largest: Largest | None = None) -> Values:
    """Knob -> values to try, the backend's own default first; {} for a backend that is not searched yet.

    workers: as the user said, which is not searched then; None for the default, one a processor. largest: the largest
    image in pixels, as far as known.
    """
    space = _SPACES.get(backend)
    return {} if space is None else space(device != "cpu", workers, largest)


def unlike_defaults(backend: str, options: Options) -> Options:
    """Those of `options` that are not the defaults of the backend's options class (None: what fits the machine)."""
    kind = _OPTIONS.get(backend)
    own = {} if kind is None else {field.name: field.default for field in fields(kind)}
    return {name: value for name, value in options.items() if own.get(name, MISSING) != value}


def _dali(on_gpu: bool, told: int | None, largest: Largest | None) -> Values:
    """DALI's threads, the readers that feed them, batches under way; of the GPU decoder its split and its memory.

    On a CPU all threads share the processors: one more than these fills the gaps, and on many of them the readers need
    some for themselves. A GPU's decoder leaves DALI's threads less to do, where they only take turns.
    """
    workers = default_workers() if told is None else told
    readers = default_readers(workers)
    space: Values = {}
    if on_gpu:
        space["hw_decoder_load"] = (0.65, 0.5, 0.8, 0.95)
    if told is None:
        others = (workers // 2, workers // 4) if on_gpu else (workers + 1, workers - readers)
        enough = (count for count in others if count >= 2)
        space["workers"] = tuple(dict.fromkeys((workers, *enough)))
    if workers:
        space["readers"] = tuple(dict.fromkeys((readers, 2 * readers, max(1, readers // 2))))
        space["prefetch"] = (2, 3)
    if on_gpu and largest is not None:
        padding = -(-largest[0] * largest[1] * _NVJPEG_BYTES_A_PIXEL // _MIB)
        if padding > _NVJPEG_MIB:
            space["device_memory_padding"] = (None, int(padding) * _MIB)
    return {knob: values for knob, values in space.items() if len(values) > 1}


_SPACES: dict[str, Callable[[bool, int | None, Largest | None], Values]] = {"dali": _dali}
_OPTIONS = {"dali": DaliOptions}
