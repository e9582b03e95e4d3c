"""Backend "hdf5": threads or processes read the crops out of a cache file."""

from __future__ import annotations

from functools import partial

from penstock.loaders.cache_build.for_source import SOURCE_OPTIONS as SOURCE_OPTIONS
from penstock.loaders.cache_build.for_source import prepare_source as prepare_source
from penstock.loaders.engine.choose import needs_of as needs_of
from penstock.loaders.engine.choose import open_engine
from penstock.loaders.engine.process_engine import ProcessOptions

Hdf5Options = ProcessOptions
Hdf5Engine = partial(open_engine, "hdf5")
