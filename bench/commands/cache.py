"""`penstock cache`: builds, describes or checks a cache of a data set, or advises which kind to build."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.record.cache_advice import AdviceSettings
from penstock.bench.record.settings import Workers

if TYPE_CHECKING:
    from penstock.bench.report.section_types import Section
    from penstock.loaders.cache_build.build import BuiltCache
    from penstock.loaders.cache_build.verify import CacheReport
    from penstock.loaders.data.cache.format import About

cache = typer.Typer(
    help="Build, describe or check a cache: only the part of an image under the crop is read and decoded.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_STORED = {"strips": "as JPEGs in strips", "file": "as the files they were", "pixels": "as pixels"}
Cache = Annotated[Path, typer.Argument(metavar="PATH", help="A cache file, or a folder of shards.")]


@cache.command(cls=common.NamingCommand)
@common.takes_settings(data_options=DataOptions)
def build(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=common.DATA_HELP, parser=common.data_path)],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The cache file; a folder with --shards.")],
    encoding: Annotated[str, typer.Option(help="jpeg: the same JPEGs, cut into strips; raw: decoded pixels.")] = "jpeg",
    resize: Annotated[int | None, typer.Option(help="Shrink the shorter side to this many pixels. Lossy.")] = None,
    longer_side: Annotated[bool, typer.Option("--longer-side", help="--resize sets the longer side.")] = False,
    quality: Annotated[int | None, typer.Option(help="Re-encode JPEGs, 1 to 100; 90 with --resize. Lossy.")] = None,
    workers: Workers = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Number of files; under torchrun one per rank by default.")
    ] = None,
    rescan: Annotated[bool, typer.Option("--rescan", help="Scan the folder even if its index looks current.")] = False,
    *,
    data_options: dict[str, Any],
) -> None:
    """Build a cache of SOURCE, or continue a build that was stopped; a cache that is up to date is left alone.

    A cache that is stale or damaged is replaced.

    With --shards N, the ranks of torchrun or the tasks of a SLURM job array build N files together.
    """
    from penstock.bench.report.terminal import print_sections
    from penstock.loaders.cache_build.build import build_cache
    from penstock.loaders.cache_build.build_progress import BuildDisplay, BuildProgress
    from penstock.loaders.cache_build.build_ranks import build_ranks
    from penstock.loaders.data.cache.format import Encoding
    from penstock.loaders.data.cache.shards import shard_range
    from penstock.loaders.front.open_source import open_source

    coded = Encoding(kind=encoding, resize=resize, longer_side=longer_side, quality=quality)
    with build_ranks(arrays=shards is not None and shards > 1) as ranks:
        if rescan:
            data_options["rescan"] = True
        data = open_source(source, **data_options)
        count = shards or ranks.world_size
        ranges = [shard_range(shard, count, len(data)) for shard in ranks.shards(count)]
        display = BuildDisplay(sum(end - first for first, end in ranges)) if ranks.rank == 0 else None
        with display or nullcontext():
            built = build_cache(
                data,
                dest,
                coded,
                workers=workers,
                shards=count,
                ranks=ranks,
                replace_stale=True,
                progress=display or BuildProgress(),
            )
        if ranks.rank == 0 or ranks.group is None:
            print_sections([_build_section(built)])


@cache.command(cls=common.NamingCommand)
def info(path: Cache, as_json: common.AsJson = False) -> None:
    """Show the contents, storage and source of a cache."""
    from penstock.bench.report.terminal import print_sections
    from penstock.loaders.data.cache.hdf5_cache import open_cache

    abouts = open_cache(path).about
    files = _cache_files(path)
    if as_json:
        typer.echo(json.dumps(_cache_record(path, files, abouts), indent=2))
    else:
        print_sections([_cache_section(path, files, abouts)])


@cache.command(cls=common.NamingCommand)
def verify(
    path: Cache,
    source: Annotated[Path | None, typer.Option(help="Compare names, labels and times with this folder.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Check every byte of a cache; exit code 4 if it is damaged or does not match --source."""
    from penstock.loaders.cache_build.verify import refuse_other_source, verify_cache
    from penstock.loaders.data.cache.hdf5_cache import open_cache
    from penstock.loaders.data.cache.shards import check_shards, read_manifest
    from penstock.loaders.front.open_source import open_source
    from penstock.loaders.system.progress_bar import ProgressBar
    from penstock.pipelines.errors import EXIT_CACHE

    opened = open_cache(path)
    if path.is_dir():
        folder = os.fsencode(path)
        check_shards(folder, read_manifest(folder), opened.about)
    if source is not None:
        refuse_other_source(opened, open_source(source))
    with ProgressBar("checking", len(opened)) as bar:
        report = verify_cache(opened, progress=bar.advance)
    typer.echo(json.dumps(_findings_record(report), indent=2) if as_json else report.describe())
    if not report.sound:
        raise typer.Exit(EXIT_CACHE)


@cache.command(cls=common.NamingCommand)
@common.takes_settings(settings=AdviceSettings)
def advise(
    source: common.Data, json_file: common.JsonFile = None, report: common.Page = None, *, settings: dict[str, Any]
) -> None:
    """Report the disk space, images/s and loss of quality of each kind of cache of DATA.

    Small caches of a sample are built in a temporary folder (TMPDIR), measured in alternation, and removed.
    """
    from penstock.bench.report.page import make_page, write_page
    from penstock.bench.report.sections_choices import tradeoff_section
    from penstock.bench.report.terminal import print_sections
    from penstock.bench.run.advise_cache import advise_cache
    from penstock.loaders.front.open_source import open_source
    from penstock.loaders.system.json_file import write_json
    from penstock.loaders.system.progress_bar import ProgressBar

    data = open_source(training_folder(source))
    with ProgressBar("starting") as bar:
        advice = advise_cache(data, AdviceSettings(**settings), bar.show)
    section, about = tradeoff_section(advice), str(advice.data["summary"])
    typer.echo(about)
    print_sections([section])
    if json_file:
        write_json(json_file, asdict(advice))
    if report:
        write_page(make_page("cache advice", section.title, [section], about=about), report)


def _cache_files(path: Path) -> list[bytes]:
    """Return the files of a whole cache. Raises LoaderError E-CACHE."""
    from penstock.loaders.data.cache.shards import shard_paths

    name = os.fsencode(path)
    return shard_paths(name) if os.path.isdir(name) else [name]


def _cache_record(path: Path, files: Sequence[bytes], abouts: Sequence[About]) -> dict[str, Any]:
    """Return what `penstock cache info --json` prints."""
    from penstock.pipelines.errors import printable

    first = abouts[0]
    source_bytes, file_bytes = sum(about.source_bytes for about in abouts), sum(map(os.path.getsize, files))
    return {
        "path": printable(os.fsencode(path))[1:-1],
        "shards": len(abouts),
        "samples": sum(about.samples for about in abouts),
        "classes": len(first.classes),
        "encoding": first.encoding,
        "lossless": first.coded.lossless,
        "psnr_db": _mean_psnr(abouts),
        "file_bytes": file_bytes,
        "source_bytes": source_bytes,
        "ratio": round(file_bytes / source_bytes, 4) if source_bytes else None,
        "counts": _sum_tables([about.counts for about in abouts]),
        "kept": _sum_tables([about.kept for about in abouts]),
        "fingerprint": first.fingerprint,
        "source": first.source,
        "versions": first.versions,
    }


def _cache_section(path: Path, files: Sequence[bytes], abouts: Sequence[About], owner: str = "") -> Section:
    """Return the section that describes a cache; `owner` precedes the counts of an incomplete set."""
    from penstock.bench.report.section_types import Section
    from penstock.pipelines.errors import count_text, size_text

    record = _cache_record(path, files, abouts)
    built, of = record["shards"], abouts[0].shard[1]
    part = built < of
    shards = f" in {f'{built} of ' if part else ''}{of} shards" if of > 1 else ""
    title = (
        f"{record['path']}: {owner if part else ''}{count_text(record['samples'], 'image')}, "
        f"{count_text(record['classes'], 'class')}{shards} ({abouts[0].coded.describe()})"
    )
    source_size = size_text(record["source_bytes"])
    lines = [f"{size_text(record['file_bytes'])}, {record['ratio'] or 0:.3f} times its source ({source_size})"]
    counts = record["counts"]
    stored = (f"{counts[name]:,} {text}" for name, text in _STORED.items() if counts.get(name))
    lines.append(f"stored {', '.join(stored)}")
    if record["kept"]:
        kept = sorted(record["kept"].items(), key=lambda item: -item[1])
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in kept)
        lines.append(f"JPEGs without restart markers (read whole): {reasons}")
    if counts.get("bad"):
        lines.append(f"{count_text(counts['bad'], 'bad image')}, stored unchanged: reading it reports the error")
    if not record["lossless"]:
        psnr = record["psnr_db"]
        lines.append("lossy" + (f": PSNR {psnr:.1f} dB against the source" if psnr is not None else ""))
    return Section(title=title, texts=lines)


def _build_section(built: BuiltCache) -> Section:
    """Return the section that summarises a finished build."""
    from penstock.bench.report.section_types import Section
    from penstock.loaders.data.cache.shards import MANIFEST

    encoded, seconds = sum(file.built for file in built.files), sum(file.seconds for file in built.files)
    resumed = sum(file.resumed for file in built.files)
    section = Section(title="")
    if built.files:
        # Only the files that this process built: other processes may still be building theirs.
        files, abouts = [file.path for file in built.files], [file.about for file in built.files]
        section = _cache_section(Path(os.fsdecode(built.path)), files, abouts, "this process: ")
    lines = [*section.texts]
    if seconds:
        continued = f"; {resumed:,} came from a build that was stopped" if resumed else ""
        lines.append(f"built {encoded:,} images in {seconds:,.1f} s: {encoded / seconds:,.0f} images/s{continued}")
    else:
        lines.append("nothing to do: it was already built from this source with these settings")
    if not built.complete:
        lines.append(f"not complete: {MANIFEST.decode()} is written with the last shard")
    return replace(section, texts=lines)


def _findings_record(report: CacheReport) -> dict[str, Any]:
    """Return what `penstock cache verify --json` prints."""
    from penstock.pipelines.errors import printable

    return {
        "samples": report.samples,
        "bytes": report.num_bytes,
        "kinds": report.kinds,
        "sound": report.sound,
        "damaged": [
            {"sample": found.sample, "name": printable(found.name)[1:-1], "cause": found.cause}
            for found in report.damaged
        ],
    }


def _mean_psnr(abouts: Sequence[About]) -> float | None:
    known = [about.psnr_db for about in abouts if about.psnr_db is not None]
    return round(sum(known) / len(known), 3) if known else None


def _sum_tables(tables: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0) for table in tables) for name in names}
