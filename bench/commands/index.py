"""`penstock index`: builds the index of data in advance, so that a job starts without a scan."""

from __future__ import annotations

from typing import Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder


@common.takes_settings(data_options=DataOptions)
def index(data: common.Data, data_options: dict[str, Any]) -> None:
    """Rebuild the index of a folder, a table or tars, in the cache folder of this user (XDG_CACHE_HOME).

    A loader uses it while the data is unchanged. Arrow, Parquet and HDF5 files contain their own index.
    """
    from penstock.bench.record.clock import Stopwatch
    from penstock.loaders.front.open_source import open_source

    watch = Stopwatch()
    try:
        source = open_source(training_folder(data), **data_options, rescan=True)
    except TypeError:  # a source without an index
        source = open_source(training_folder(data), **data_options)
    typer.echo(f"{source.describe()}\nindexed in {watch.seconds:.1f} s")
