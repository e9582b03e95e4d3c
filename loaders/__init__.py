"""Who runs it: interchangeable backends behind one iterator.

`create_loader` makes the image path; `DataLoader` is the swap-in for torch's.
"""

from penstock.loaders.create import create_loader
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.loader import Batch, Loader
from penstock.loaders.metrics.stats import LoaderStats
from penstock.loaders.open_source import open_source
from penstock.loaders.sources.contract import Source
from penstock.loaders.stream.ledger import EpochLedger
from penstock.loaders.stream.order import Permutation, Schedule
from penstock.pipelines.errors import LoaderError

__all__ = [
    "Batch",
    "DataLoader",
    "EpochLedger",
    "Loader",
    "LoaderError",
    "LoaderStats",
    "Permutation",
    "Schedule",
    "Source",
    "create_loader",
    "open_source",
]
