"""What a benchmark prints: measurements, what was searched, verdict and advice."""

from __future__ import annotations

import io
from dataclasses import replace

from bench_records import of_cpu, record, tried
from rich.console import Console

from penstock.bench.measure.resources import Resources
from penstock.bench.record.advice import BOTH
from penstock.bench.record.bench_record import BenchRecord, Measured, TriedAdvice
from penstock.bench.report.terminal import render
from penstock.bench.verdict.judge import judge


def shown(made: BenchRecord) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(replace(made, verdict=judge(made, "photos"))))
    return " ".join(console.export_text().split())


def test_every_measurement_the_ratio_and_the_verdict_are_shown() -> None:
    made = record(loader=2000, baseline=1000, decode=1050, model=5000, both=1990)
    text = shown(made)
    for words in ("2,000", "1,000", "1,050", "2,100", "5,000", "2.00 times", "25% of the step", "some CPU", "2,400"):
        assert words in text, words
    assert judge(made, "photos").sentence in text
    assert "loader = create_loader(" in text


def test_resources_and_advice_are_shown_and_only_where_there_are_any() -> None:
    text = shown(record(loader=2000, decode=1050, cache=1365, taken={"loader": of_cpu(0.75, memory_mb=1234.0)}))
    for words in ("75% CPU", "1,234 MB", "To change: a lossless cache", "predicted 2,600 images/s, 1.30 times"):
        assert words in text, words
    assert "GPU" not in text
    assert "took" not in shown(record(loader=2000, decode=1050))
    gpu = shown(record(loader=2000, decode=1050, taken={"loader": of_cpu(0.75, gpu_share=0.4, gpu_memory_mb=5000.0)}))
    assert "40% GPU" in gpu
    assert "5,000 MB GPU" in gpu


def test_what_was_searched_and_left_out_is_shown() -> None:
    peer = Measured.of("DALI's own", "baseline", [500.0], note="2 threads")
    plain = record(loader=1000, baseline=400, decode=1050)
    made = replace(
        plain,
        measured=(*plain.measured, peer),
        candidates=(
            tried("dali of the files, workers 2, readers 1", 900.4, workers=2, readers=1),
            tried("dali of the files, workers 2, readers 2", 1000.0, workers=2, readers=2),
            replace(tried("dali of the files, workers 2, readers 4", None, workers=2, readers=4), why="out of memory"),
        ),
        chosen=tried("dali of the files", 1000.0, workers=2, readers=2, prefetch=2),
        notes=("a peer was left out: it has no files",),
    )
    text = shown(made)
    for words in (
        "Tried dali of the files, workers 2, readers 1, images/s by short measurements: readers 2: 1,000, as it is",
        "as it is: 900; readers 4: out of memory.",
        "a peer was left out: it has no files",
        "2.50 times the images/s of torch DataLoader + Pillow.",
        "2.00 times the images/s of DALI's own, 2 threads.",
        "Recommended: backend 'dali', 2 workers, readers 2,",
    ):
        assert words in text, words


def test_predicted_is_shown_beside_measured_and_what_did_not_hold() -> None:
    def taken(*advice: TriedAdvice, others: float = 0.1) -> str:
        resources = {"loader": Resources(cpu_cores=1.0, cpu_share=0.5, others_share=others)}
        return shown(replace(record(loader=100, taken=resources), applied=advice))

    good = TriedAdvice(
        what="--workers 4", quantity="loader", predicted=220.0, before=110.0, measured=180.0, note="of 9"
    )
    failed = TriedAdvice(what="x", quantity=BOTH, predicted=None, failed="y")
    text = taken(good, replace(good, quantity=BOTH, measured=99.0), failed)
    for words in ("220", "180", "2.00", "1.64", "loader, of 9", "loader + model", "did not hold here: 0.90 "):
        assert words in text, words
    assert "x could not be tried: y" in text
    assert "did not hold" not in taken(good)
    assert "Other programs" not in taken(good)
    assert "Other programs kept 40% of the processors busy" in taken(good, others=0.4)
    assert "advice taken" not in taken()
