"""What a benchmark prints: measurements, what was searched, verdict and advice."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from bench_records import of_cpu, record, tried
from rich.console import Console

from penstock.bench.measure.resources import Resources
from penstock.bench.record.advice import BOTH
from penstock.bench.record.bench_record import BenchRecord, Measured, TriedAdvice
from penstock.bench.report.terminal import render
from penstock.bench.verdict.judge import judge

PLAIN = record(loader=2000, decode=1050)
COMPARED = record(loader=2000, baseline=1000, decode=1050, model=5000, both=1990)
CACHED = record(loader=2000, decode=1050, cache=1365, taken={"loader": of_cpu(0.75, memory_mb=1234.0)})
ON_GPU = record(loader=2000, decode=1050, taken={"loader": of_cpu(0.75, gpu_share=0.4, gpu_memory_mb=5000.0)})
BEFORE = record(loader=1000, baseline=400, decode=1050)
READERS = {n: tried(f"dali of the files, workers 2, readers {n}", 900.4, workers=2, readers=n) for n in (1, 2, 4)}
SEARCHED = replace(
    BEFORE,
    measured=(*BEFORE.measured, Measured.of("DALI's own", "baseline", [500.0], note="2 threads")),
    candidates=(
        READERS[1],
        replace(READERS[2], images_per_s=1000.0),
        replace(READERS[4], images_per_s=None, why="out of memory"),
    ),
    chosen=tried("dali of the files", 1000.0, workers=2, readers=2, prefetch=2),
    notes=("a peer was left out: it has no files",),
)
GOOD = TriedAdvice(what="--workers 4", quantity="loader", predicted=220.0, before=110.0, measured=180.0, note="of 9")
FAILED = TriedAdvice(what="x", quantity=BOTH, predicted=None, failed="y")


def applied(*advice: TriedAdvice, others: float = 0.1) -> BenchRecord:
    resources = {"loader": Resources(cpu_cores=1.0, cpu_share=0.5, others_share=others)}
    return replace(record(loader=100, taken=resources), applied=advice)


@pytest.mark.parametrize(
    ("made", "words", "absent"),
    [
        (
            COMPARED,
            "2,000|1,000|1,050|2,100|5,000|2.00 times the images/s of torch DataLoader + Pillow, 2.00 to 2.00 in 3 "
            "paired rounds.|25% of the step|some CPU|2,400|loader = create_loader(",
            "",
        ),
        (CACHED, "75% CPU|1,234 MB|To change: a lossless cache|predicted 2,600 images/s, 1.30 times", "GPU"),
        (PLAIN, "2,000", "took"),
        (ON_GPU, "40% GPU|5,000 MB GPU", ""),
        (
            SEARCHED,
            "Tried dali of the files, workers 2, readers 1, images/s by short measurements: readers 2: 1,000, as it is"
            "|as it is: 900; readers 4: out of memory.|a peer was left out: it has no files"
            "|2.50 times the images/s of torch DataLoader + Pillow, |1.80 times the images/s of DALI's own, 2 threads, "
            "|Recommended: backend 'dali', 2 workers, readers 2,",
            "",
        ),
        # predicted beside measured, and what did not hold
        (
            applied(GOOD, replace(GOOD, quantity=BOTH, measured=99.0), FAILED),
            "220|180|2.00|1.64|loader, of 9|loader + model|did not hold here: 0.90 |x could not be tried: y",
            "",
        ),
        (applied(GOOD), "180", "did not hold|Do not keep"),
        (
            applied(GOOD, others=0.4),
            "run: other programs kept 40% of the processors busy.",
            "",
        ),
        (applied(), "100", "advice taken"),
    ],
)
def test_terminal_output(made: BenchRecord, words: str, absent: str) -> None:
    console, verdict = Console(width=200, record=True, file=io.StringIO()), judge(made, "photos")
    console.print(render(replace(made, verdict=verdict)))
    text = " ".join(console.export_text().split())
    assert [word for word in (verdict.sentence, *words.split("|")) if word not in text] == []
    assert [word for word in absent.split("|") if word and word in text] == []
