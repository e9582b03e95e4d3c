"""Interchangeable backends behind one iterator.

`create_loader` builds a complete image loader; `DataLoader` is a drop-in replacement for torch's.
"""

from importlib.metadata import PackageNotFoundError, version

from penstock.loaders.dali.dali_engine import DaliOptions
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.fields.field_specs import Boxes, Coco, Keypoints, Masks, Yolo
from penstock.loaders.data.fields.geometry import Geometry
from penstock.loaders.data.fields.image_targets import ImageTargets
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.sample import Sample
from penstock.loaders.data.tables.field_columns import Column
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.front.batch import Batch
from penstock.loaders.front.compose import concat, mix, split, stack, with_fields, with_labels
from penstock.loaders.front.create import create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.loader_options import LoaderOptions, OpenOptions
from penstock.loaders.front.open_source import open_source
from penstock.loaders.front.shuffles import Blocks, PerClass, Repeated
from penstock.loaders.front.statistics import ChannelStatistics, channel_statistics
from penstock.loaders.make.sizes.size_schedule import ByUpdate, PatchBudget
from penstock.loaders.order.ledger import EpochLedger
from penstock.loaders.run.metrics.stats import LoaderStats, loader_metrics, serve_prometheus
from penstock.pipelines.errors import LoaderError

__all__ = [
    "Batch",
    "Blocks",
    "Boxes",
    "ByUpdate",
    "ChannelStatistics",
    "Coco",
    "Column",
    "DaliOptions",
    "DataLoader",
    "Encoding",
    "EpochLedger",
    "Geometry",
    "ImageTargets",
    "Keypoints",
    "Loader",
    "LoaderError",
    "LoaderOptions",
    "LoaderStats",
    "Masks",
    "OpenOptions",
    "PatchBudget",
    "PerClass",
    "Repeated",
    "Sample",
    "Source",
    "Yolo",
    "channel_statistics",
    "concat",
    "create_loader",
    "loader_metrics",
    "mix",
    "open_source",
    "serve_prometheus",
    "split",
    "stack",
    "with_fields",
    "with_labels",
]

try:
    __version__ = version("penstock-loader")
except PackageNotFoundError:
    __version__ = "unknown"  # the package runs from a source tree and is not installed
