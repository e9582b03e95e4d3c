"""One benchmark run: loader, model and ceilings measured in turn, round after round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from penstock.bench.ceilings.all_ceilings import (
    Prepared,
    Probe,
    can_be_cached,
    ceiling_probes,
    lossless_cache_ceiling,
    replay_probe,
    replayed,
)
from penstock.bench.ceilings.decode import MAX_SAMPLES, DecodeCeiling, DecodeCeilings
from penstock.bench.ceilings.read import bytes_an_image
from penstock.bench.ceilings.replay import ReplayedBatches
from penstock.bench.measure.clock import Rate, StepTimes
from penstock.bench.measure.environment import describe_environment
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.record.advice import Advice
from penstock.bench.record.backend_options import all_options, non_default_options
from penstock.bench.record.record import (
    ALL_BACKENDS,
    DTYPES,
    LOSSLESS_CACHE,
    OVER_TIME,
    READ_COLD,
    BenchRecord,
    BenchSettings,
    Measured,
    Tried,
    bf16_name,
    replayed_model_name,
)
from penstock.bench.run.dali_pipeline import DALI_PIPELINE
from penstock.bench.run.dali_pipeline_search import tuned_pipeline
from penstock.bench.run.pillow_loader import BASELINE_NAME, OnDevice, baseline_loader, end_workers, worker_pids
from penstock.bench.run.rounds import ADVICE_SHARE, OnMeasured, Results, Rounds, rates_of
from penstock.bench.run.take_advice import AdviceMeter, take_advice, worth_trying
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.run.watched import Key, ResourceLog
from penstock.bench.search.backends import start_workers
from penstock.bench.search.candidate import BenchData, Candidate
from penstock.bench.search.halving import Winners
from penstock.bench.search.search import final_choice, search_settings, tried_candidate
from penstock.bench.search.turn import Turn
from penstock.bench.step.models import create_model
from penstock.bench.step.rates import resident_batch_rate, training_times
from penstock.bench.step.settings import TrainSettings
from penstock.bench.verdict.verdict import judge
from penstock.loaders.loader import Loader
from penstock.loaders.stream.ledger import EpochLedger
from penstock.pipelines.errors import LoaderError

CACHE_SHARE = 0.5  # of a budget: has to be left where a cache of a sample is to be built
_ROUNDS_WANTED = 2.5  # that the length of a measurement is chosen for, with a budget
_PEER_SHARE = 0.25  # of what a budget has left: for the search of the options of DALI's own pipeline
_PATIENCE = 2.0  # times the length of a measurement that a model's slow steps may take, with a budget
_CACHED_IN_TIME = 64  # images of a cache of a sample, with a budget: built in 5 s on two slow cores
_MIN_SECONDS = 0.5  # of a measurement: fewer hold too few batches


class BenchRun:
    """Measures what the settings ask for.

    `progress(done, total, what)` is called before each measurement, `measured(kind, name, images/s of each round)`
    after it. What a budget leaves no time for is noted.

    Attributes:
        settings: what to measure.
        source: the data as they are.
        pipeline: the training pipeline that all loaders run.
        workers: number of workers of the baselines.
    """

    def __init__(
        self,
        data: Any,
        settings: BenchSettings,
        progress: Callable[[int, int, str], None],
        measured: OnMeasured = lambda kind, name, rates: None,
        budget: TimeBudget | None = None,
    ) -> None:
        self.settings, self._progress, self._say_measured = settings, progress, measured
        self._budget = budget or TimeBudget(settings.budget)
        found = BenchData(data, settings)
        self.source, self._plain = found.source, found.plain
        self.pipeline, self._opener = found.pipeline, found.opener
        self.workers = start_workers(settings)
        self._ceilings = DecodeCeilings(self._opener.source, self.pipeline, settings.seed)
        self._notes: list[str] = []
        self._how: dict[str, str] = {}  # what is measured -> how
        self._abouts: dict[str, dict[str, object]] = {}  # backend -> what its loader says of itself
        self._others: Callable[[], set[int]] = set  # processes beside the loader's
        self._resources = ResourceLog(settings, self.workers)
        self._winners = Winners(
            chosen=Candidate(
                backend=settings.backend,
                decoder=settings.decoder,
                dtype=settings.dtype,
                cached=self._opener.has(cached=True),
                options={"workers": self.workers},
            )
        )
        self._tried: tuple[Tried, ...] = ()

    @property
    def chosen(self) -> Candidate:
        """Return the candidate that is measured as the loader: what the search chose, or the settings say."""
        return self._winners.chosen

    def run(self) -> BenchRecord:
        """Search the settings, then measure everything in turn, `rounds` times over.

        So a drift of the machine's speed touches all alike. Raises ValueError where the budget is over before.
        """
        wanted = self.settings
        if self._budget.left <= 0:
            raise self._too_short()
        if wanted.tunes or wanted.backend == ALL_BACKENDS:
            found = search_settings(
                self._searched(), self._opener, self._ceilings, self._progress, partial(self._say_measured, "search")
            )
            self._winners, self._tried = found.winners, found.tried
            self._notes += found.notes
        with ExitStack() as stack:
            loader = stack.enter_context(self._opener.open(self.chosen))
            self.settings = self._timed()
            self._resources = ResourceLog(self.settings, self.chosen.workers)
            record = self._measured(loader, self._probes(stack, loader))
            chosen = self._final_choice(record.measured)
            return replace(record, chosen=chosen, notes=tuple(self._notes), ledger=_summed(loader.ledgers()))

    def _record(self, loader: Loader, results: Results) -> BenchRecord:
        """Return the record of what has been measured, without a choice."""
        about = self._abouts[self.chosen.backend] = loader.describe()
        served = self._opener.source(cached=self.chosen.cached)
        return BenchRecord(
            settings=self.settings,
            workers=self.chosen.workers,
            decoder=str(about["decoder"]),
            data={
                "summary": served.describe(),
                "images": len(served),
                "bytes_an_image": bytes_an_image(served),
                "fingerprint": served.fingerprint,
            },
            environment=describe_environment(self.settings.device),
            loader=about,
            measured=tuple(
                self._resources.added_to(_summary(*key, rates, self._how.get(key[1], "")))
                for key, rates in results.items()
            ),
            candidates=self._tried,
            options=non_default_options(str(about["backend"]), self.chosen.options),
        )

    def with_applied(self, record: BenchRecord, advice: Sequence[Advice]) -> BenchRecord:
        """Return the record with what became of the advice that follows from it, if the settings ask to apply it."""
        if not self.settings.apply:
            return record
        meter = AdviceMeter(self.settings, self.pipeline, self._opener)
        return replace(record, applied=take_advice(record, advice, self.chosen, meter, self._progress, self._budget))

    def _final_choice(self, measured: tuple[Measured, ...]) -> Tried:
        """Return what the final rounds say of the search's choice."""
        rates = {m.name: m.images_per_s for m in measured if m.kind in ("loader", "other")}
        known = {c.backend: rates[_name(c)] for c in self._winners.all if _name(c) in rates}
        best, note = final_choice(self._winners, known)
        self._notes += [note] if note else []
        about = self._abouts[best.backend]
        backend = str(about["backend"])
        options = all_options(backend, best.options, about)
        full = replace(best, backend=backend, decoder=str(about["decoder"]), options=options)
        return tried_candidate(full, Turn(images_per_s=rates[_name(best)]))

    def _searched(self) -> BenchSettings:
        """Return the settings of the search: it ends in time although its data took time to open."""
        if self._budget.seconds is None or self.settings.tune_seconds is not None:
            return self.settings
        return replace(self.settings, tune_seconds=max(1.0, self.settings.search_seconds - self._budget.used))

    def _timed(self) -> BenchSettings:
        """Return the settings with measurements as short as the time that is left asks for."""
        wanted = self.settings
        if self._budget.seconds is None:
            return wanted
        lengths = 4.0 + 2 * len(self._winners.others) + 2 * wanted.baseline + 4 * bool(wanted.model)
        left = self._budget.left - self._budget.share(ADVICE_SHARE)
        return replace(wanted, seconds=min(wanted.seconds, max(_MIN_SECONDS, left / lengths / _ROUNDS_WANTED)))

    def _measured(self, loader: Loader, probes: dict[Key, Probe]) -> BenchRecord:
        """Measure all in turn; what fails and may, and what there is no time for, is left out with a note.

        The time that is kept for trying the advice goes into further rounds where there is none to be tried.
        """
        decoder = str(loader.describe()["decoder"])
        say: dict[str, Any] = {"progress": self._progress, "measured": self._say_measured, "failed": self._failed}
        rounds = Rounds(self.settings, self._budget, probes, decoder=decoder, **say)
        rounds.run(self._budget.share(ADVICE_SHARE) if self.settings.apply else 0.0)
        if ("loader", _name(self.chosen)) in rounds.late:
            raise self._too_short()
        record = self._record(loader, rounds.results)
        spare = self._budget.seconds is not None and self.settings.apply
        if spare and not worth_trying(record, judge(record, "").advice or (), self._budget):
            record = self._record(loader, rounds.results) if rounds.run() else record
        if rounds.late:
            names = ", ".join(name for _, name in rounds.late)
            self._notes.append(f"not measured in {self._budget.seconds:g} s (--budget): {names}")
        return record

    def _too_short(self) -> ValueError:
        return ValueError(
            f"the budget of {self._budget.seconds:g} s was over before the loader could be measured: pass a longer "
            "--budget"
        )

    def _failed(self, key: Key, error: Exception) -> None:
        """Note why a measurement is left out. Raises `error` if it is not of something that may fail."""
        # A baseline's is of whatever kind: it takes no bad file.
        may = {READ_COLD: ValueError, LOSSLESS_CACHE: LoaderError}
        if key[0] not in ("baseline", "other") and not isinstance(error, may.get(key[1], ())):
            raise error
        self._leave_out(key[1], error)

    def _leave_out(self, name: str, error: Exception) -> None:
        named = f"{type(error).__name__}: {error}" if name != READ_COLD else str(error)
        why = error.cause if isinstance(error, LoaderError) else named.splitlines()[-1]
        self._notes.append(f"{name} was left out: {why}")

    def _probes(self, stack: ExitStack, loader: Loader) -> dict[Key, Probe]:
        wanted, seconds = self.settings, self.settings.seconds
        probes: dict[Key, Probe] = {}
        about = loader.describe()
        served = self._opener.source(cached=self.chosen.cached)
        for name, probe in ceiling_probes(served, self.pipeline, wanted, self._decoders(), str(about["decoder"])):
            probes["ceiling", name] = probe
        wants_cache = about["backend"] == "torch" and not self._opener.has(cached=True) and can_be_cached(self.source)
        if wants_cache and self._has_time_for_a_cache():
            probes["ceiling", LOSSLESS_CACHE] = Prepared(lambda: self._cache_probe(str(about["decoder"])))
        again = replayed(served, self.pipeline, wanted, about)
        if again is not None:
            name, probe = replay_probe(again, wanted)
            probes["ceiling", name] = probe
        own = ("loader", _name(self.chosen))
        probes[own] = self._watched(
            own, loader, lambda batches: loader_rate(batches, seconds=seconds, device=wanted.device)
        )
        for other in self._winners.others:
            probes["other", _name(other)] = self._other(other)
        if wanted.baseline:
            probes["baseline", BASELINE_NAME] = self._baseline(stack)
            if about["backend"] == "dali":
                probes["baseline", DALI_PIPELINE] = Prepared(lambda: self._dali_pipeline(stack))
        if wanted.model:
            probes |= self._model_probes(wanted.model, loader, again)
        return probes

    def _decoders(self) -> dict[str, DecodeCeiling]:
        """Return decoder -> its ceiling on what the chosen loader reads."""
        ceilings, cached = self._ceilings, self.chosen.cached
        names = ceilings.decoders(cached=cached) if self.settings.decoder == "auto" else [self.settings.decoder]
        return {name: ceilings.of(name, cached=cached) for name in names}

    def _other(self, candidate: Candidate) -> Probe:
        """Measure another backend's best, opened for that alone: else its workers would burden the others."""
        self._how[_name(candidate)] = candidate.describe().partition(" of the ")[2]

        def probe() -> Rate:
            with self._opener.open(candidate) as loader:
                self._abouts[candidate.backend] = loader.describe()
                return loader_rate(loader, seconds=self.settings.seconds, device=self.settings.device)

        return probe

    def _cache_probe(self, decoder: str) -> Probe:
        """Measure what decoding from a lossless cache would do. Raises LoaderError where none can be built."""
        images = MAX_SAMPLES if self._budget.seconds is None else _CACHED_IN_TIME
        cached = lossless_cache_ceiling(self.source, self.pipeline, decoder, self.settings.seed, self.workers, images)
        return partial(cached.measure, self.settings.seconds / 2)

    def _has_time_for_a_cache(self) -> bool:
        """Say whether a cache of a sample may be built, which takes seconds; a note where not."""
        enough = self._budget.left >= self._budget.share(CACHE_SHARE)
        if not enough:
            self._notes.append(f"{LOSSLESS_CACHE} was left out: no time for it (--budget)")
        return enough

    def _watched(self, key: Key, loader: Loader, measure: Callable[[Any], Rate | StepTimes]) -> Probe:
        """Measure the loader's batches, and log what that takes of the machine."""
        return lambda: self._resources.watched(key, loader, measure, self._others)

    def _baseline(self, stack: ExitStack) -> Probe:
        wanted = self.settings
        loader = baseline_loader(
            self._plain,
            self.pipeline,
            batch_size=wanted.batch_size,
            workers=self.workers,
            dtype=DTYPES[wanted.dtype],
            pin_memory=wanted.device != "cpu",
        )
        stack.callback(end_workers, loader)
        self._how[BASELINE_NAME] = f"{self.workers} workers"
        self._others = lambda: worker_pids(loader)
        return partial(loader_rate, OnDevice(loader, wanted.device), seconds=wanted.seconds, device=wanted.device)

    def _peer_settings(self) -> BenchSettings:
        """Return the settings of the search of DALI's own options: our search has used its part of a budget."""
        if self._budget.seconds is None:
            return self.settings
        return replace(self.settings, tune_seconds=max(1.0, _PEER_SHARE * self._budget.left))

    def _dali_pipeline(self, stack: ExitStack) -> Probe:
        """Measure DALI's own pipeline, its options searched as ours are. Raises LoaderError where it cannot serve."""
        largest = next(iter(self._decoders().values())).largest
        wanted = self._peer_settings()
        found, how = tuned_pipeline(wanted, self.pipeline, self.source, self._plain, largest, self._progress)
        self._how[DALI_PIPELINE] = how
        stack.enter_context(closing(found))
        return partial(loader_rate, found, seconds=wanted.seconds, device=wanted.device)

    def _model_probes(self, name: str, loader: Loader, again: ReplayedBatches | None) -> dict[Key, Probe]:
        wanted = self.settings
        patience = math.inf if self._budget.seconds is None else _PATIENCE
        num_classes = max(2, len(self.source.classes))
        settings = TrainSettings(model=name, device=wanted.device, amp=wanted.amp, seed=wanted.seed)
        model = create_model(name, num_classes, seed=wanted.seed)
        shape = (wanted.batch_size, 3, wanted.size, wanted.size)
        handed_out = torch.float32 if wanted.dtype == "uint8" else DTYPES[wanted.dtype]
        probes: dict[Key, Probe] = {}
        probes["model", f"{name} on a resident batch"] = partial(
            resident_batch_rate,
            model,
            settings,
            shape=shape,
            num_classes=num_classes,
            seconds=wanted.seconds,
            dtype=handed_out,
            patience=patience,
        )
        if wanted.amp == "off":
            probes["ceiling", bf16_name(name)] = partial(
                resident_batch_rate,
                model,
                replace(settings, amp="bf16"),
                shape=shape,
                num_classes=num_classes,
                seconds=wanted.seconds / 2,
                dtype=handed_out,
                patience=patience,
            )
        train = partial(training_times, model, settings, patience=patience)
        if wanted.dtype != "uint8":
            key = ("both", f"penstock + {name}")
            probes[key] = self._watched(key, loader, lambda batches: train(loader=batches, seconds=wanted.seconds))
            if again is not None:
                probes["ceiling", replayed_model_name(name)] = partial(train, loader=again, seconds=wanted.seconds / 2)
        return probes


def _summed(ledgers: list[EpochLedger]) -> dict[str, object]:
    """Return the sum of `ledgers` as a record holds it, without paths; a bad sample is listed once."""
    whole = EpochLedger(0)
    for ledger in ledgers:
        whole.add_saved(ledger.as_dict())
    document = {name: value for name, value in whole.as_dict().items() if name != "epoch"}
    found = {
        name: list({e.sample: {"sample": e.sample, "code": e.code, "cause": e.cause} for e in entries}.values())
        for name, entries in (("bad", whole.bad), ("repairs", whole.repairs))
    }
    return {**document, "epochs": len(ledgers), **found}


def _name(candidate: Candidate) -> str:
    return f"penstock, {candidate.backend} backend"


def _summary(kind: str, name: str, results: Sequence[Rate | StepTimes], note: str) -> Measured:
    steps = [result for result in results if isinstance(result, StepTimes)]
    found = rates_of(results)
    windows = tuple(rate.rounded() for rate in found if kind in OVER_TIME)
    made = Measured.of(name, kind, [rate.median for rate in found] or [0.0], note=note, over_time=windows)
    return replace(made, wait_share=statistics.median(s.wait_share for s in steps)) if steps else made
