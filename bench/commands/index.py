"""`penstock index`: makes the index of data ahead of time, so that a job begins at once."""

from __future__ import annotations

from typing import Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder


@common.takes_settings(data_options=DataOptions)
def index(data: common.Data, data_options: dict[str, Any]) -> None:
    """Make the index of a folder, a table or tars anew, in the cache folder of this user (XDG_CACHE_HOME).

    A loader uses it while the data is unchanged. Arrow, Parquet and HDF5 files hold their own index.
    """
    from penstock.bench.record.clock import Stopwatch
    from penstock.loaders.front.open_source import open_source

    watch = Stopwatch()
    try:
        source = open_source(training_folder(data), **data_options, rescan=True)
    except TypeError:  # a kind that keeps no index
        source = open_source(training_folder(data), **data_options)
    typer.echo(f"{source.describe()}\nindexed in {watch.seconds:.1f} s")
