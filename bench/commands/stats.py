"""`penstock stats`: mean and standard deviation of each channel, for the arguments of a pipeline."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder


@common.takes_settings(data_options=DataOptions)
def stats(
    data: common.Data,
    channels: Annotated[
        int | None, typer.Option(min=1, max=64, help="Channels; by default those of the images.")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="8, 16 or 32; by default that of the images.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Images, chosen at random; all by default.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of this choice.")] = 0,
    ignore: Annotated[float | None, typer.Option(help="Level to leave out, such as 0 for no data.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Count images that cannot be read, instead of stopping.")] = False,
    json: Annotated[bool, typer.Option(help="Print JSON.")] = False,
    *,
    data_options: dict[str, Any],
) -> None:
    """Compute mean and standard deviation of each channel over whole images, as ImagePipeline takes them."""
    from penstock.loaders.front.statistics import channel_statistics

    found = channel_statistics(
        training_folder(data),
        channels=channels,
        depth=depth,  # type: ignore[arg-type]
        samples=samples,
        seed=seed,
        ignore=ignore,
        on_bad_sample="skip" if skip_bad else "raise",
        **data_options,
    )
    if json:
        from json import dumps

        typer.echo(dumps(asdict(found)))
        return
    names = ("channel", "mean", "std", "lowest", "highest", "values")
    rows = zip(range(found.channels), found.mean, found.std, found.lowest, found.highest, found.counts, strict=True)
    typer.echo("{:>7} {:>10} {:>10} {:>10} {:>10} {:>15}".format(*names))
    for row in rows:
        typer.echo("{:>7} {:>10.6g} {:>10.6g} {:>10.6g} {:>10.6g} {:>15,}".format(*row))
    bad = f", {found.bad:,} bad" * bool(found.bad)
    mean, std = (", ".join(f"{value:.6g}" for value in values) for values in (found.mean, found.std))
    comma = "," * (found.channels == 1)
    typer.echo(f"{found.samples:,} images{bad}")
    typer.echo(
        f"ImagePipeline(channels={found.channels}, depth={found.depth}, mean=({mean}{comma}), std=({std}{comma}))"
    )
