"""`penstock cache`: builds a cache of a data set, describes one, checks one, or advises which kind to build."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import takes_data_options
from penstock.bench.probe.data.training_folder import training_folder

cache = typer.Typer(
    help="Build a cache of a data set, from which crops are read and decoded alone; look at one, check one.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Cache = Annotated[Path, typer.Argument(metavar="PATH", help="A cache file, or a folder of shards.")]


@cache.command(cls=common.NamingCommand)
@takes_data_options
def build(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=common.DATA_HELP, parser=common.data_path)],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The cache file; a folder with --shards.")],
    encoding: Annotated[str, typer.Option(help="jpeg: as they are, cut into strips; raw: decoded pixels.")] = "jpeg",
    resize: Annotated[int | None, typer.Option(help="Shrink: pixels of the shorter side. Lossy.")] = None,
    longer_side: Annotated[bool, typer.Option("--longer-side", help="--resize is of the longer side.")] = False,
    quality: Annotated[int | None, typer.Option(help="Encode JPEGs anew, 1 to 100; 90 with --resize. Lossy.")] = None,
    workers: common.Workers = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Files to spread it over; under torchrun one per rank by default.")
    ] = None,
    rescan: Annotated[bool, typer.Option("--rescan", help="Scan the folder even if its index looks true.")] = False,
    *,
    data_options: dict[str, Any],
) -> None:
    """Build a cache of SOURCE, or go on with one whose building was stopped; nothing is done if it is there and fresh.

    A cache that is stale or damaged is replaced.

    With --shards N, the ranks of torchrun or the tasks of a SLURM job array build N files together.
    """
    from penstock.bench.report.cache_text import describe_build
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
            typer.echo(describe_build(built))


@cache.command(cls=common.NamingCommand)
def info(path: Cache, as_json: common.AsJson = False) -> None:
    """Show what a cache holds, how it is stored and what it was built from."""
    from penstock.bench.report.cache_text import cache_files, cache_record, describe_cache
    from penstock.loaders.data.cache.hdf5_cache import open_cache

    abouts = open_cache(path).about
    files = cache_files(path)
    if as_json:
        typer.echo(json.dumps(cache_record(path, files, abouts), indent=2))
    else:
        typer.echo(describe_cache(path, files, abouts))


@cache.command(cls=common.NamingCommand)
def verify(
    path: Cache,
    source: Annotated[Path | None, typer.Option(help="Compare names, labels and times with this folder.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="With --source: compare every image's pixels as well.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Check every byte of a cache; exit code 4 if it is damaged, or not of --source."""
    from penstock.bench.report.cache_text import findings_record
    from penstock.loaders.cache_build.verify import verify_against, verify_cache
    from penstock.loaders.data.cache.hdf5_cache import open_cache
    from penstock.loaders.data.cache.shards import check_shards, read_manifest
    from penstock.loaders.front.open_source import open_source
    from penstock.loaders.system.progress_bar import ProgressBar
    from penstock.pipelines.errors import EXIT_CACHE

    if deep and source is None:
        raise ValueError("--deep compares with the images of --source: give that as well")
    opened = open_cache(path)
    if path.is_dir():
        folder = os.fsencode(path)
        check_shards(folder, read_manifest(folder), opened.about)
    with ProgressBar("checking", len(opened)) as bar:
        reports = [verify_cache(opened, progress=bar.advance)]
    if source is not None:
        data = open_source(source)
        with ProgressBar("comparing", len(opened)) as bar:
            reports.append(verify_against(opened, data, deep=deep, progress=bar.advance))
    if as_json:
        typer.echo(json.dumps(findings_record(reports), indent=2))
    else:
        typer.echo("\n".join(report.describe() for report in reports))
    if not all(report.sound for report in reports):
        raise typer.Exit(EXIT_CACHE)


@cache.command(cls=common.NamingCommand)
def advise(
    source: common.Data,
    sample: Annotated[int, typer.Option(min=1, help="Images to try it with, spread over the data.")] = 200,
    size: common.Size = 224,
    batch_size: common.BatchSize = 64,
    workers: common.Workers = None,
    seconds: common.Seconds = 2.0,
    rounds: common.Rounds = 3,
    seed: common.Seed = 0,
    json_file: common.JsonFile = None,
) -> None:
    """Say what each kind of cache of DATA would take on the disk and give in images/s, and what it would lose.

    Small caches of a sample are built in a temporary folder (TMPDIR), measured alternating, and removed.
    """
    from penstock.bench.record.cache_advice import AdviceSettings
    from penstock.bench.report.terminal import print_advice
    from penstock.bench.run.advise_cache import advise_cache
    from penstock.loaders.front.open_source import open_source
    from penstock.loaders.system.json_file import write_json
    from penstock.loaders.system.progress_bar import ProgressBar

    settings = AdviceSettings(
        sample=sample, size=size, batch_size=batch_size, workers=workers, seconds=seconds, rounds=rounds, seed=seed
    )
    data = open_source(training_folder(source))
    with ProgressBar("starting") as bar:
        advice = advise_cache(data, settings, bar.show)
    print_advice(advice)
    if json_file:
        write_json(json_file, asdict(advice))
