"""The torch backend: worker processes of a torch DataLoader over any source."""

from __future__ import annotations

from penstock.loaders.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.engine.producer import ProducerSettings

TorchOptions = ProcessOptions
needs_of = process_needs


class TorchEngine(ProcessEngine):
    """See ProcessEngine."""

    def __init__(self, settings: ProducerSettings, options: TorchOptions) -> None:
        super().__init__("torch", settings, options)
