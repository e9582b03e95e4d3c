"""Where the milliseconds of a batch go: lanes that run side by side, each of stages in their order."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from penstock.bench.report.charts import Bar
from penstock.bench.report.text import ms_text
from penstock.bench.verdict.figures import Figures


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Hold the stages of one batch, one after another; other lanes are at work on other batches meanwhile.

    Attributes:
        stages: bars as long as their milliseconds.
        measured: whether the stages were timed as they ran; they are then alternatives, not a sequence of parts.
    """

    title: str
    stages: tuple[Bar, ...]
    measured: bool = False

    @property
    def ms(self) -> float:
        """Sum of the stages; of a measured lane, whose stages are alternatives, the longest."""
        return (max if self.measured else sum)(stage.end for stage in self.stages)


def step_lanes(record: BenchRecord) -> tuple[Lane, ...]:
    """Return the lanes of a step: the loader's workers, the feed, the model, and what was measured as it ran.

    If nothing runs at the same time (no workers, all on the CPU) the parts form one lane. DALI decodes by other
    means than the ceilings were measured with: the workers' lane is left out then.
    """
    figures = Figures(record)
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


def _stage(
    record: BenchRecord, name: str, rate: float | None, kind: str = "work", at_once: int = 1, waits: float = 0.0
) -> list[Bar]:
    """Return the bar of a stage that has a rate; `waits` is the share of it that waits for data."""
    if not rate:
        return []
    ms = 1e3 * record.settings.batch_size / rate / at_once
    label = name + (f" ({waits:.0%} of it waits for data)" if waits else "")
    return [Bar(label=label, value=ms_text(ms), kind=kind, end=ms, waiting=waits * ms)]


def _working(record: BenchRecord, figures: Figures) -> tuple[Bar, ...]:
    if record.loader.get("decodes_on") is not None:
        return ()
    reading = READ_COLD if figures.from_storage else READ_WARM
    stages: list[Bar] = []
    for name, ceiling in (("read", reading), ("decode", DECODE), ("resize", RESIZE)):
        stages += _stage(record, name, record.rate("ceiling", ceiling), at_once=figures.processors_used)
    return tuple(stages)


def _feeding(record: BenchRecord) -> tuple[Bar, ...]:
    copy = _stage(record, "copy to device", record.rate("ceiling", COPY))
    both = _stage(record, "copy + normalise", record.rate("ceiling", COPY_AND_NORMALISE))
    if copy and both:
        rest = both[0].end - copy[0].end
        return (*copy, replace(both[0], label="normalise", value=ms_text(rest), end=rest)) if rest > 0 else tuple(both)
    return tuple(copy or both or _stage(record, "normalise", record.rate("ceiling", NORMALISE)))


def _training(record: BenchRecord) -> tuple[Bar, ...]:
    return tuple(_stage(record, f"{record.settings.model}: forward, backward, update", record.rate("model"), "model"))


def _as_it_ran(record: BenchRecord) -> tuple[Bar, ...]:
    both = record.find("both")
    waits = (both.wait_share or 0.0) if both else 0.0
    return (
        *_stage(record, "loader alone", record.rate("loader"), "loader"),
        *_stage(record, "loader + model", record.rate("both"), "both", waits=waits),
    )
