"""Who runs it: interchangeable backends behind one iterator.

`create_loader` makes the image path; `DataLoader` is the swap-in for torch's.
"""

from importlib.metadata import PackageNotFoundError, version

from penstock.loaders.batch import Batch
from penstock.loaders.cache.format import Encoding
from penstock.loaders.choose_order import Blocks
from penstock.loaders.compose import concat, mix, split, with_fields, with_labels
from penstock.loaders.create import create_loader
from penstock.loaders.dali.dali_engine import DaliOptions
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.fields.field_specs import Boxes, Coco, Keypoints, Masks, Yolo
from penstock.loaders.fields.geometry import Geometry
from penstock.loaders.loader import Loader
from penstock.loaders.metrics.prometheus import serve_prometheus
from penstock.loaders.metrics.stats import LoaderStats
from penstock.loaders.metrics.values import loader_metrics
from penstock.loaders.open_source import open_source
from penstock.loaders.sizes.patch_budget import PatchBudget
from penstock.loaders.sizes.size_schedule import ByUpdate
from penstock.loaders.sources.contract import Source
from penstock.loaders.stream.ledger import EpochLedger
from penstock.loaders.tables.field_columns import Column
from penstock.pipelines.errors import LoaderError

__all__ = [
    "Batch",
    "Blocks",
    "Boxes",
    "ByUpdate",
    "Coco",
    "Column",
    "DaliOptions",
    "DataLoader",
    "Encoding",
    "EpochLedger",
    "Geometry",
    "Keypoints",
    "Loader",
    "LoaderError",
    "LoaderStats",
    "Masks",
    "PatchBudget",
    "Source",
    "Yolo",
    "concat",
    "create_loader",
    "loader_metrics",
    "mix",
    "open_source",
    "serve_prometheus",
    "split",
    "with_fields",
    "with_labels",
]

try:
    __version__ = version("penstock-loader")
except PackageNotFoundError:
    __version__ = "unknown"  # a source tree that is not installed
