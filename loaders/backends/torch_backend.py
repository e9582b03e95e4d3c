"""Backend "torch": worker processes of a torch DataLoader read and decode the images of any source."""

from __future__ import annotations

from penstock.loaders.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.engine.producer import ProducerSettings

TorchOptions = ProcessOptions
needs_of = process_needs


def TorchEngine(settings: ProducerSettings, options: TorchOptions) -> ProcessEngine:
    """Return the engine that `options` ask for."""
    return ProcessEngine("torch", settings, options)
