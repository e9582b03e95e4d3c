"""Advice where the model limits, or shares the processors with the loader."""

from __future__ import annotations

import math

from penstock.bench.record.record import BenchRecord
from penstock.bench.verdict.advice import BOTH, WORTH, Advice, Change, lowest
from penstock.bench.verdict.figures import Figures


def bf16(record: BenchRecord, figures: Figures) -> Advice | None:
    """Mixed precision: a step's own work becomes as much shorter as the model alone does, its wait stays."""
    model, faster, both = figures.model, figures.model_bf16, figures.both
    if not model or not faster or faster <= WORTH * model or record.settings.amp != "off":
        return None
    why = f"the model alone does {faster:,.0f} images/s with it, {model:,.0f} without"
    if not both:
        return Advice(what="--amp bf16", images_per_s=None, why=why)
    waits = figures.wait_share or 0.0
    ceilings = {
        "the model": faster,
        "the loader": figures.loader,
        "the processors that both share": _shared(figures, model / faster, record.settings.device),
    }
    rate, then = lowest(both / (waits + (1 - waits) * model / faster), ceilings)
    return Advice(what="--amp bf16", images_per_s=rate, why=why + then, quantity=BOTH, change=Change(amp="bf16"))


def _shared(figures: Figures, shorter: float, device: str) -> float | None:
    """Images/s of all processors, if the model takes `shorter` times the processor time that it takes now."""
    together, loading = figures.both_cpu_s, figures.cpu_s
    if not together or not loading:
        return None
    training = max(0.0, together - loading)
    return figures.cpus / (together - training + training * (shorter if device == "cpu" else 1.0))


def cheaper_loading(figures: Figures, saved_s: float, what: str, why: str, change: Change) -> Advice | None:
    """Beside a model that is trained on the same processors: what the loader saves of them the model gets."""
    together, both, model = figures.both_cpu_s, figures.both, figures.model
    if not together or not both or not model or saved_s >= together:
        return None
    rate, then = lowest(both * together / (together - saved_s), {"the model": model})
    return Advice(what=what, images_per_s=rate, why=why + then, quantity=BOTH, change=change)


def enough(record: BenchRecord, figures: Figures) -> Advice | None:
    """Fewer workers."""
    if not figures.model or record.workers < 2:
        return None
    fewer = max(1, math.ceil(1.25 * record.workers * figures.model / figures.loader))
    if fewer >= record.workers:
        return None
    rate = figures.loader * fewer / record.workers
    why = f"so many feed a model of {figures.model:,.0f} images/s with a quarter to spare; the rest is free for others"
    return Advice(what=f"--workers {fewer}", images_per_s=rate, why=why, change=Change(workers=fewer))


def faster_device(record: BenchRecord, figures: Figures) -> Advice | None:
    """What the tool cannot do."""
    room = f"the loader could feed {figures.loader:,.0f} images/s"
    return Advice(what="a faster device or a smaller model", images_per_s=None, why=room)


def processor_apart(record: BenchRecord, figures: Figures) -> Advice | None:
    """Where loader and model share processors."""
    if figures.both is None:
        return None
    return Advice(
        what="a processor of its own for the training process (fewer --workers), or more processors",
        images_per_s=None,
        why="loader and model share them, and each is faster alone",
    )
