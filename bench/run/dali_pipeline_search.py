"""DALI's own pipeline with the options that suit it here, found as those of our backends are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock.bench.measure.clock import Stopwatch
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.record.record import DTYPES, BenchSettings, Options
from penstock.bench.run.dali_pipeline import DALI_PIPELINE, PIPELINE_OPTIONS, DaliPipeline, DaliPipelineSettings
from penstock.bench.search.backends import start_workers, usable_cpus
from penstock.bench.search.candidate import Candidate
from penstock.bench.search.halving import HalvingSearch
from penstock.bench.search.search_space import ImageSize, SearchSpace, values_to_try
from penstock.bench.search.turn import Turn, mean_rate, turn_seconds
from penstock.loaders.sources.contract import Source
from penstock.pipelines.spec import ImagePipeline


def tuned_pipeline(
    wanted: BenchSettings,
    pipeline: ImagePipeline,
    folder: Source,
    served: Source,
    largest: ImageSize,
    progress: Callable[[int, int, str], None],
) -> tuple[DaliPipeline, str]:
    """Return the pipeline, to be closed, and how it was set. Raises LoaderError where it cannot serve the data."""
    settings = DaliPipelineSettings(
        pipeline=pipeline,
        batch_size=wanted.batch_size,
        device=wanted.device,
        dtype=DTYPES[wanted.dtype],
        seed=wanted.seed,
        largest=largest,
    )
    watch, seconds = Stopwatch(), turn_seconds(wanted.seconds)

    def opened(options: Options) -> DaliPipeline:
        return DaliPipeline(folder, served, settings, options)

    def measure(candidate: Candidate) -> Turn:
        with closing(opened(candidate.options)) as batches:
            return Turn(images_per_s=mean_rate(loader_rate(batches, seconds=seconds, device=wanted.device)))

    options: Options = {"workers": start_workers(wanted)}
    if wanted.tunes:
        found = values_to_try("dali", wanted.device, wanted.workers, largest, cpus=usable_cpus(wanted))
        values = {name: found[name] for name in PIPELINE_OPTIONS if name in found}
        start = Candidate(backend="dali", options=options | {name: tried[0] for name, tried in values.items()})
        search = HalvingSearch(
            measure,
            time_used=lambda: watch.seconds / wanted.search_seconds,
            say=lambda what: progress(0, 1, f"searching: {DALI_PIPELINE}, {what}"),
        )
        options = search.run([SearchSpace(start=start, options=values)]).chosen.options
    chosen = [f"{name} {value}" for name, value in options.items() if value is not None]
    dtype = [] if settings.handed_out == settings.dtype else [str(settings.handed_out).removeprefix("torch.")]
    return opened(options), ", ".join([*chosen, *dtype])
