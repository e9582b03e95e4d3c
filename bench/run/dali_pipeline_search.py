"""DALI's own pipeline with the knobs that suit it here, found as those of our backends are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from penstock.bench.measure.clock import Stopwatch
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.record.record import DTYPES, BenchSettings, Options
from penstock.bench.run.dali_pipeline import PEER_KNOBS, PEER_NAME, DaliPeer, PeerSettings
from penstock.bench.search.search_space import Largest, knobs_of
from penstock.bench.search.starts import cpus_of, start_workers
from penstock.bench.search.trial import mean_rate, trial_seconds
from penstock.bench.search.tuning import Rules, Trial, search
from penstock.loaders.sources.contract import Source
from penstock.pipelines.spec import ImagePipeline


def tuned_peer(
    wanted: BenchSettings,
    pipeline: ImagePipeline,
    folder: Source,
    served: Source,
    largest: Largest,
    progress: Callable[[int, int, str], None],
) -> tuple[DaliPeer, str]:
    """The pipeline and how it was set; close it. Raises LoaderError where it cannot serve the data."""
    settings = PeerSettings(
        pipeline=pipeline,
        batch_size=wanted.batch_size,
        device=wanted.device,
        dtype=DTYPES[wanted.dtype],
        seed=wanted.seed,
        largest=largest,
    )
    workers, watch = start_workers(wanted), Stopwatch()

    def peer(options: Options) -> DaliPeer:
        return DaliPeer(folder, served, settings, {"workers": workers, **options})

    @contextmanager
    def opened(options: Options) -> Iterator[Callable[[], Trial]]:
        seconds = trial_seconds(wanted.seconds)
        with closing(peer(options)) as batches:
            yield lambda: Trial(images_per_s=mean_rate(loader_rate(batches, seconds=seconds, device=wanted.device)))

    space = knobs_of("dali", wanted.device, wanted.workers, largest, cpus=cpus_of(wanted)) if wanted.tunes else {}
    rules = Rules(
        opened=opened,
        name=lambda options: ", ".join(f"{knob} {value}" for knob, value in options.items()),
        out_of_time=lambda: watch.seconds >= wanted.tune_seconds,
        say=lambda what: progress(0, 1, f"searching: {PEER_NAME}, {what}"),
    )
    options = search({knob: space[knob] for knob in PEER_KNOBS if knob in space}, rules)
    values = {"workers": workers, **options}
    chosen = [f"{knob} {value}" for knob, value in values.items() if value is not None]
    dtype = [] if settings.handed_out == settings.dtype else [str(settings.handed_out).removeprefix("torch.")]
    return peer(options), ", ".join([*chosen, *dtype])
