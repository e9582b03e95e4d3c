"""Measures the loader, the other loaders, the model and the ceilings in alternation, and writes the record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from penstock.bench.probe.ceilings.read import bytes_an_image
from penstock.bench.probe.search.settings_search import final_choice, tried_candidate
from penstock.bench.probe.search.trials import Trial
from penstock.bench.record.bench_record import FETCH, LOSSLESS_CACHE, OVER_TIME, READ_COLD, BenchRecord, Measured, Tried
from penstock.bench.record.clock import Rate, StepTimes
from penstock.bench.record.environment import describe_environment
from penstock.bench.record.non_default_options import all_options, non_default_options
from penstock.bench.run.measured_loader import LoaderTurns
from penstock.bench.run.rounds import ADVICE_SHARE, Display, Key, Rounds, rates_of
from penstock.bench.run.run_probes import RunProbes, Subject, loader_name
from penstock.bench.run.take_advice import trial_seconds
from penstock.loaders.order.ledger import EpochLedger
from penstock.pipelines.errors import LoaderError

_ROUNDS_WANTED = 2.5  # rounds that should fit into a budget, to choose the length of a measurement
_MIN_SECONDS = 0.5  # minimum length of a measurement: shorter ones have too few batches


def measure_all(subject: Subject, display: Display) -> BenchRecord:
    """Measure everything that the settings request, round after round; return the record without a verdict.

    The measurements alternate, so that a drift of the machine's speed affects all equally. Optional measurements that
    fail or do not fit the time are left out with a note. Raises ValueError if there was no time for the loader itself.
    """
    found, notes = subject.found, list(subject.found.notes)
    budget, own = subject.budget, ("loader", loader_name(subject.chosen))
    with ExitStack() as stack:
        turns = LoaderTurns(subject.data.opener, subject.chosen, stack)
        subject = _with_short_measurements(subject)
        probes = RunProbes(subject, turns, stack, notes)
        rounds = Rounds(
            subject.settings,
            budget,
            probes.all(),
            decoder=probes.decoder,
            display=display,
            failed=partial(_note_failure, notes),
        )

        def measured() -> tuple[Measured, ...]:
            return tuple(
                turns.with_resources(_summarise(key, results, rounds.turns(key), probes.how.get(key[1], "")))
                for key, results in rounds.results.items()
            )

        def note_round() -> None:
            if own not in rounds.late:
                found_so_far = replace(_record(subject, turns.about, measured()), candidates=found.tried)
                display.recorded(replace(found_so_far, notes=tuple(notes)))

        rounds.run(keep=_time_for_advice(subject), after=note_round)
        if own in rounds.late:
            raise budget.too_short()
        if rounds.late:
            names = ", ".join(name for _, name in rounds.late)
            notes.append(f"not measured in {budget.seconds:g} s (--budget): {names}")
        store = probes.describe_store()
        made = measured()
        chosen = _final_choice(subject, probes, made, notes)
        return replace(
            _record(subject, turns.about, made),
            candidates=found.tried,
            chosen=chosen,
            store=store,
            notes=tuple(notes),
            ledger=_sum_ledgers(turns.ledgers()),
        )


def _with_short_measurements(subject: Subject) -> Subject:
    """Return the subject with measurements short enough for the remaining time."""
    wanted, budget = subject.settings, subject.budget
    if budget.seconds is None:
        return subject
    lengths = 4.0 + 2 * len(subject.found.others) + 2 * wanted.baseline + 4 * bool(wanted.model)
    left = budget.left - budget.share(ADVICE_SHARE)
    seconds = min(wanted.seconds, max(_MIN_SECONDS, left / lengths / _ROUNDS_WANTED))
    return replace(subject, settings=replace(wanted, seconds=seconds))


def _time_for_advice(subject: Subject) -> float:
    """Return the seconds of the budget to reserve for trying advice; 0 if they are too few."""
    share = subject.budget.share(ADVICE_SHARE) if subject.settings.apply else 0.0
    return share if share >= trial_seconds(subject.settings) else 0.0


def _note_failure(notes: list[str], key: Key, error: Exception) -> None:
    """Note why a measurement is left out. Raises `error` if the measurement must not fail."""
    kind, name = key
    # A baseline may fail with any error: it does not handle bad files.
    allowed = {READ_COLD: ValueError, LOSSLESS_CACHE: LoaderError}
    may_fail = (LoaderError, ValueError) if name.startswith(FETCH) else allowed.get(name, ())
    if kind not in ("baseline", "other") and not isinstance(error, may_fail):
        raise error
    text = str(error) if isinstance(error, ValueError) and kind == "ceiling" else f"{type(error).__name__}: {error}"
    why = error.cause if isinstance(error, LoaderError) else text.splitlines()[-1]
    notes.append(f"{name} was left out: {why}")


def _record(subject: Subject, about: dict[str, object], measured: tuple[Measured, ...]) -> BenchRecord:
    """Return the record of the measurements without a choice."""
    served = subject.served
    return BenchRecord(
        settings=subject.settings,
        workers=subject.chosen.workers,
        decoder=str(about["decoder"]),
        data={
            "summary": served.describe(),
            "images": len(served),
            "bytes_an_image": bytes_an_image(served),
            "fingerprint": served.fingerprint,
        },
        environment=describe_environment(subject.settings.device),
        loader=about,
        measured=measured,
        options=non_default_options(str(about["backend"]), subject.chosen.options),
    )


def _final_choice(subject: Subject, probes: RunProbes, measured: tuple[Measured, ...], notes: list[str]) -> Tried:
    """Return the candidate to recommend: the search's choice, or a backend that was faster in the final rounds."""
    rates = {m.name: m.images_per_s for m in measured if m.kind in ("loader", "other")}
    known = {c.backend: rates[loader_name(c)] for c in subject.found.all if loader_name(c) in rates}
    best, note = final_choice(subject.found, known)
    notes += [note] if note else []
    about = probes.abouts[best.backend]
    backend = str(about["backend"])
    options = all_options(backend, best.options, about)
    full = replace(best, backend=backend, decoder=str(about["decoder"]), options=options)
    return tried_candidate(full, Trial(images_per_s=rates[loader_name(best)]))


def _sum_ledgers(ledgers: list[EpochLedger]) -> dict[str, object]:
    """Return the sum of `ledgers` for a record, without paths; a bad sample is listed once."""
    whole = EpochLedger(0)
    for ledger in ledgers:
        whole.add_saved(ledger.as_dict())
    document = {name: value for name, value in whole.as_dict().items() if name != "epoch"}
    found = {
        name: list({e.sample: {"sample": e.sample, "code": e.code, "cause": e.cause} for e in entries}.values())
        for name, entries in (("bad", whole.bad), ("repairs", whole.repairs))
    }
    return {**document, "epochs": len(ledgers), **found}


def _summarise(key: Key, results: Sequence[Rate | StepTimes], turns: tuple[int, ...], note: str) -> Measured:
    """Return the measurement that summarises the results of the rounds `turns`."""
    kind, name = key
    steps = [result for result in results if isinstance(result, StepTimes)]
    found = rates_of(results)
    windows = tuple(rate.rounded() for rate in found if kind in OVER_TIME)
    turns = turns if len(turns) == len(found) else ()
    made = Measured.of(name, kind, [rate.median for rate in found] or [0.0], turns=turns, note=note, over_time=windows)
    return replace(made, wait_share=statistics.median(s.wait_share for s in steps)) if steps else made
