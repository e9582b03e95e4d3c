"""The knobs of each backend whose best value depends on the machine, and the values worth trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.bench.record.record import KnobValue
from penstock.loaders.backends.dali_backend import default_readers
from penstock.loaders.backends.hdf5_backend import KINDS
from penstock.loaders.system.machine import default_workers

Values = dict[str, tuple[KnobValue, ...]]
Largest = tuple[int, int]  # width, height in pixels

PREFETCH = (3, 1, 6)
_FEW = 8  # processors: with more, not every number of workers is tried
_MIB = 1 << 20
_NVJPEG_MIB = 16  # device_memory_padding unless given
# What DALI's ImageNet examples gave each thread, 211,025,920 bytes, for their largest image, 5980 x 6430.
_NVJPEG_BYTES_A_PIXEL = 5.5


def knobs_of(
    backend: str,
    device: str,
    workers: int | None = None,
    largest: Largest | None = None,
    *,
    cpus: int | None = None,
) -> Values:
    """Knob -> values to try, the backend's own default first; {} for a backend that is not searched.

    workers: as the user said, which is not searched then; None for the default, one a processor of `cpus`, those of
    this machine by default. largest: the largest image in pixels, as far as known.
    """
    space = _SPACES.get(backend)
    if space is None:
        return {}
    return space(
        _Machine(
            on_gpu=device != "cpu", told=workers, cpus=default_workers() if cpus is None else cpus, largest=largest
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """What the values depend on; see knobs_of. told: the workers that the user said."""

    on_gpu: bool
    told: int | None
    cpus: int
    largest: Largest | None


def _torch(machine: _Machine) -> Values:
    """Worker processes, and the batches that each has under way."""
    space = {"workers": _counts(machine.cpus)} if machine.told is None else {}
    return {**space, "prefetch": PREFETCH}


def _hdf5(machine: _Machine) -> Values:
    """The same, and what the workers are."""
    space = _torch(machine)
    return {**space, "workers_are": KINDS}


def _counts(cpus: int) -> tuple[int, ...]:
    """One a processor, and others: of many processors those that differ enough to tell, and the neighbours."""
    others = (0, cpus // 4, cpus // 2, cpus - 1, cpus + 1, 2 * cpus) if cpus > _FEW else (*range(cpus + 2), 2 * cpus)
    return tuple(dict.fromkeys((cpus, *others)))


def _dali(machine: _Machine) -> Values:
    """DALI's threads, the readers that feed them, batches under way; of the GPU decoder its split and its memory.

    On a CPU all threads share the processors: one more than these fills the gaps, and on many of them the readers need
    some for themselves. A GPU's decoder leaves DALI's threads less to do, where they only take turns.
    """
    on_gpu, largest = machine.on_gpu, machine.largest
    workers = machine.cpus if machine.told is None else machine.told
    readers = default_readers(workers)
    space: Values = {}
    if on_gpu:
        space["hw_decoder_load"] = (0.65, 0.5, 0.8, 0.95)
    if machine.told is None:
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


_SPACES: dict[str, Callable[[_Machine], Values]] = {"torch": _torch, "hdf5": _hdf5, "dali": _dali}
