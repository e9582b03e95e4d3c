"""Backend "torch": threads or worker processes of a torch DataLoader read and decode the images of any source."""

from __future__ import annotations

from functools import partial

from penstock.loaders.engine.choose import needs_of as needs_of
from penstock.loaders.engine.choose import open_engine
from penstock.loaders.engine.process_engine import ProcessOptions

TorchOptions = ProcessOptions
TorchEngine = partial(open_engine, "torch")
