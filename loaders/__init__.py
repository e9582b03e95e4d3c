"""Who runs it: interchangeable backends behind one iterator.

`create_loader` makes the image path; `DataLoader` is the swap-in for torch's.
"""

from penstock.loaders.contract import EpochLedger, LoaderStats
from penstock.loaders.create import create_loader
from penstock.loaders.data_loader import DataLoader
from penstock.loaders.loader import Batch, Loader
from penstock.loaders.open_source import open_source
from penstock.loaders.order import Permutation, Schedule
from penstock.loaders.source import Source
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
