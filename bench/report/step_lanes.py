"""Where the milliseconds of a batch go: lanes that run side by side, each of stages in their order."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.record.bench_record import (
    COPY,
    COPY_AND_NORMALISE,
    DECODE,
    NORMALISE,
    READ_COLD,
    READ_WARM,
    RESIZE,
    BenchRecord,
)
from penstock.bench.verdict.figures import Figures


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Hold one stage of a batch.

    Attributes:
        ms: milliseconds of one batch.
        kind: "work", "model", "loader" or "both".
        waiting: those of `ms` that are spent waiting for data.
    """

    name: str
    ms: float
    kind: str = "work"
    waiting: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Hold the stages of one batch, one after another; other lanes are at work on other batches meanwhile.

    Attributes:
        measured: whether the stages were timed as they ran; they are then alternatives, not a sequence of parts.
    """

    title: str
    stages: tuple[Stage, ...]
    measured: bool = False

    @property
    def ms(self) -> float:
        """Sum of the stages; of a measured lane, whose stages are alternatives, the longest."""
        return (max if self.measured else sum)(stage.ms for stage in self.stages)


def step_lanes(record: BenchRecord) -> tuple[Lane, ...]:
    """Return the lanes of a step: the loader's workers, the feed, the model, and what was measured as it ran.

    If nothing runs at the same time (no workers, all on the CPU) the parts form one lane. DALI decodes by other
    means than the ceilings were measured with: the workers' lane is left out then.
    """
    figures = Figures.of(record)
    working, feeding, training = _working(record, figures), _feeding(record), _training(record)
    parts: list[Lane]
    if record.workers == 0 and record.settings.device == "cpu":
        title = "One process, one thing after another"
        parts = [Lane(title=title, stages=(*working, *feeding, *training))]
    else:
        used, fetching = figures.processors_used, tuple(_stage(record, "fetch", figures.fetched))
        titles = ["Requests", f"{used} workers at once" if used > 1 else "One worker", "Feed", "Model"]
        kinds = (fetching, working, feeding, training)
        lanes = [(title, stages) for title, stages in zip(titles, kinds, strict=True) if stages]
        ahead = range(len(lanes) - 1, -1, -1)
        parts = [
            Lane(title=f"{title}, on batch n + {n}" if n else f"{title}, on batch n", stages=stages)
            for n, (title, stages) in zip(ahead, lanes, strict=True)
        ]
    parts.append(Lane(title="Measured as it ran", stages=_as_it_ran(record), measured=True))
    return tuple(lane for lane in parts if lane.stages)


def _stage(record: BenchRecord, name: str, rate: float | None, kind: str = "work", at_once: int = 1) -> list[Stage]:
    return [Stage(name=name, ms=1e3 * record.settings.batch_size / rate / at_once, kind=kind)] if rate else []


def _working(record: BenchRecord, figures: Figures) -> tuple[Stage, ...]:
    if record.loader.get("decodes_on") is not None:
        return ()
    reading = READ_COLD if figures.from_storage else READ_WARM
    stages: list[Stage] = []
    for name, ceiling in (("read", reading), ("decode", DECODE), ("resize", RESIZE)):
        stages += _stage(record, name, record.rate("ceiling", ceiling), at_once=figures.processors_used)
    return tuple(stages)


def _feeding(record: BenchRecord) -> tuple[Stage, ...]:
    copy = _stage(record, "copy to device", record.rate("ceiling", COPY))
    both = _stage(record, "copy + normalise", record.rate("ceiling", COPY_AND_NORMALISE))
    if copy and both:
        rest = both[0].ms - copy[0].ms
        return (*copy, Stage(name="normalise", ms=rest)) if rest > 0 else tuple(both)
    return tuple(copy or both or _stage(record, "normalise", record.rate("ceiling", NORMALISE)))


def _training(record: BenchRecord) -> tuple[Stage, ...]:
    return tuple(_stage(record, f"{record.settings.model}: forward, backward, update", record.rate("model"), "model"))


def _as_it_ran(record: BenchRecord) -> tuple[Stage, ...]:
    stages = _stage(record, "loader alone", record.rate("loader"), "loader")
    both = record.find("both")
    for step in _stage(record, "loader + model", both.images_per_s if both else None, "both"):
        waiting = step.ms * (both.wait_share or 0.0) if both else 0.0
        stages.append(Stage(name=step.name, ms=step.ms, kind=step.kind, waiting=waiting))
    return tuple(stages)
