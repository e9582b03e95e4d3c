"""The sections of a record's page as text for the terminal."""

from __future__ import annotations

from rich.console import Console

from penstock.bench.record.bench_record import BenchRecord
from penstock.bench.record.cache_advice import CacheAdvice
from penstock.bench.report.console import plain_console, plain_text, print_table
from penstock.bench.report.page import about_text, record_sections
from penstock.bench.report.section_types import Section
from penstock.bench.report.sections_choices import tradeoff_section
from penstock.bench.report.summary import summary


def print_record(record: BenchRecord) -> None:
    """Print everything that a record holds to standard output, and the summary at the end."""
    console = plain_console()
    console.print(plain_text(about_text(record)))
    for section in record_sections(record):
        console.print()
        print_section(section, console)
    console.print()
    console.print(summary(record, whole=True))


def print_advice(advice: CacheAdvice) -> None:
    """Print the ways to store the data to standard output."""
    console = plain_console()
    console.print(plain_text(advice.data["summary"]))
    print_section(tradeoff_section(advice), console)


def print_section(section: Section, console: Console) -> None:
    """Print a section; of its charts only those whose figures stand in no table, in words."""
    charts = [figure.chart.text for figure in section.figures if not section.tables]
    console.print(plain_text(section.title, "bold"))
    for text in (*section.texts, *charts):
        console.print(plain_text(text))
    for table in section.tables:
        print_table(table, console)
    for heading, pairs in section.facts:
        console.print(plain_text(f"{heading}: {', '.join(f'{name} {value}' for name, value in pairs)}"))
    for code in section.code:
        console.print(plain_text(f"{code['caption']}\n{code['text']}"), soft_wrap=True)
    for note in section.notes:
        console.print(plain_text(note))
