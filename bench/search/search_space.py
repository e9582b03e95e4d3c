"""The options of each backend whose best value depends on the machine, and the values worth trying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.bench.record.bench_record import KnobValue
from penstock.bench.search.candidate import Candidate
from penstock.loaders.dali.dali_engine import default_readers
from penstock.loaders.system.machine import default_workers

Values = dict[str, tuple[KnobValue, ...]]

PREFETCH = (3, 1, 6)
_FEW = 8  # CPUs: with more, not every number of workers is tried


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Hold what to search of one backend.

    Attributes:
        options: option of the backend, or "decoder" -> values to try, what matters most first.
    """

    start: Candidate
    options: Mapping[str, Sequence[KnobValue]] = field(default_factory=dict)
    fixed_workers: bool = False


def values_to_try(
    backend: str,
    device: str,
    workers: int | None = None,
    *,
    cpus: int | None = None,
    requests: tuple[int, ...] = (),
    decode: tuple[str, ...] = (),
) -> Values:
    """Return option -> values to try, the backend's own default first; {} for a backend that is not searched.

    workers: number that the user has set, which is then not searched; None searches it from one for each CPU. cpus:
    number of CPUs; None takes those this process may use. requests: numbers of requests that are worth comparing, of
    remote data. The bytes ahead are not searched: more of them than the requests bring at a time gain nothing. decode:
    ways of DALI to decode that give the right pixels here.
    """
    if requests:
        return {"requests": requests, **values_to_try(backend, device, workers, cpus=cpus, decode=decode)}
    cpus = default_workers() if cpus is None else cpus
    if backend == "dali":
        return _dali_values(workers, cpus, decode, on_gpu=device != "cpu")
    if backend not in ("torch", "hdf5"):
        return {}
    counts: Values = {"workers": _worker_counts(cpus)} if workers is None else {}
    return {**counts, "prefetch": PREFETCH}


def _worker_counts(cpus: int) -> tuple[int, ...]:
    """Return one worker a CPU, then other counts worth comparing; with few CPUs all smaller ones are among them."""
    others = (cpus + 1, cpus // 2, 2 * cpus, max(0, cpus - 1), cpus // 4, 0)
    return tuple(dict.fromkeys((cpus, *others, *(range(cpus) if cpus <= _FEW else ()))))


def _dali_values(fixed: int | None, cpus: int, decode: tuple[str, ...], *, on_gpu: bool) -> Values:
    """Return values for DALI's threads, their readers and the batches ahead; for a GPU, for its decoder as well.

    On a CPU all threads share the CPUs: one thread more than CPUs fills the gaps, and of many CPUs the readers need
    some for themselves. On a GPU the decoder does most of the work, and fewer threads suffice.
    """
    workers = cpus if fixed is None else fixed
    readers = default_readers(workers)
    values: Values = {}
    if on_gpu:
        values["hw_decoder_load"] = (0.65, 0.5, 0.8, 0.95)
        values["decode"] = decode
    if fixed is None:
        others = (workers // 2, workers // 4) if on_gpu else (workers + 1, workers - readers)
        enough = (count for count in others if count >= 2)
        values["workers"] = tuple(dict.fromkeys((workers, *enough)))
    if workers:
        values["readers"] = tuple(dict.fromkeys((readers, 2 * readers, max(1, readers // 2))))
        values["prefetch"] = (2, 3)
    return {name: found for name, found in values.items() if len(found) > 1}
