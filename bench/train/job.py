"""Sets up a training run from a folder of images: data, model, and training, sweep or batch search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from penstock.bench.record.loader_rate import endless
from penstock.bench.train.batch_finder import BatchSearch, BatchTrial, find_batch_size, probe_of
from penstock.bench.train.loop import EpochReport, OnStep, TrainReport, train
from penstock.bench.train.lr_finder import LrSweep, find_lr
from penstock.bench.train.resident_run import ResidentRun
from penstock.bench.train.step.models import build_model, check_model
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.technique_settings import CheckpointPlan
from penstock.bench.train.step.torch_switches import torch_switches
from penstock.bench.train.step.train_step import TrainStep, on_device
from penstock.loaders.data.sources.contract import Source, refuse_targets
from penstock.loaders.front.advance_checks import check_arguments
from penstock.loaders.front.create import create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.open_source import open_source, select_options
from penstock.pipelines.errors import printable
from penstock.pipelines.spec import ImagePipeline, imagenet_eval, imagenet_train


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Define the data and settings of a training run.

    Raises ValueError for settings that cannot work, before the data is opened, and if training and validation data
    have different classes.

    Attributes:
        data, validation: folders or caches; None for no validation.
        settings: training settings, including batch_size.
        size: height and width of the crops, in pixels.
        training: further arguments of imagenet_train.
        policy: on_bad_sample, on_repaired and max_bad of the training loader, as for create_loader.
        loading: arguments of create_loader for both loaders, such as backend and workers.
        cache: folder for train.h5 and val.h5; None for no cache.
        data_options: options of open_source for the training data. Those that do not select a part also apply to the
            validation data if its kind supports them.
        validation_options: more options of open_source for the validation data, such as `subset`.
    """

    data: str | Path
    validation: str | Path | None
    settings: TrainSettings
    size: int
    training: dict[str, Any]
    policy: dict[str, Any]
    loading: dict[str, Any]
    cache: Path | None
    data_options: dict[str, Any] = field(default_factory=dict)
    validation_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(**self.loading, **self.policy)
        check_model(self.settings.model)
        imagenet_train(self.size, **self.training)
        refuse_targets(self.source, "penstock train")
        if self.held_out is not None and self.held_out.classes != self.source.classes:
            raise ValueError(
                f"{printable(str(self.validation))} has other classes than {printable(str(self.data))}: their labels "
                "would mean different things"
            )

    @cached_property
    def source(self) -> Source:
        """The training images."""
        return open_source(self.data, **self.data_options)

    @cached_property
    def held_out(self) -> Source | None:
        """The validation images."""
        if self.validation is None:
            return None
        options = select_options(self.validation, self.data_options) | self.validation_options
        return open_source(self.validation, **options)

    @property
    def num_classes(self) -> int:
        """The number of classes, at least 2."""
        return max(2, len(self.source.classes))

    def train(
        self, *, checkpoint: CheckpointPlan | None, on_epoch: Callable[[EpochReport], None], on_step: OnStep
    ) -> TrainReport:
        """Train and validate; arguments as for `penstock.bench.train.loop.train`."""
        model = build_model(self.settings, self.num_classes)
        with ExitStack() as stack:
            loader = stack.enter_context(self._training_loader())
            validation = None
            if self.held_out is not None:
                validation = stack.enter_context(self._loader(self.held_out, self._evaluation, cache="val.h5"))
            watch: dict[str, Any] = {"on_epoch": on_epoch, "on_step": on_step}
            return train(model, loader, self.settings, validation=validation, checkpoint=checkpoint, **watch)

    @property
    def _evaluation(self) -> ImagePipeline:
        """The pipeline of the validation images, with the filter of the training images; bicubic if that is drawn."""
        chosen = self.training.get("interpolation", "bilinear")
        return imagenet_eval(self.size, interpolation="bicubic" if chosen == "random" else chosen)

    def sweep_lr(self) -> tuple[LrSweep, float]:
        """Return the sweep over the training set, and the `lr` with its suggestion as peak learning rate."""
        settings = self.settings
        with torch_switches(settings), self._training_loader() as loader, closing(endless(loader)) as batches:
            step = TrainStep(build_model(settings, self.num_classes), settings)
            sweep = find_lr(step, on_device(batches, settings))
            factor = settings.peak_lr(torch.distributed.get_world_size() if step.parallel else 1) / settings.lr
        return sweep, sweep.suggestion / factor

    def search_batch_size(self, *, budget_bytes: int | None, on_trial: Callable[[BatchTrial], None]) -> BatchSearch:
        """Return the largest batch of random images of this size that fits into memory, or into the budget.

        Raises ValueError without a budget on a CPU, because the system swaps and kills before an error is raised, and
        under torchrun, where the other ranks would wait for the one that ran out of memory.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise ValueError("find_batch_size works in one process: run it without torchrun")
        settings = self.settings
        if torch.device(settings.device).type == "cpu" and budget_bytes is None:
            raise ValueError("find_batch_size on a CPU needs --memory-budget: the system would kill the process")
        run = ResidentRun(
            settings=settings,
            num_classes=self.num_classes,
            batch_size=settings.accumulate,
            size=self.size,
            seconds=0.01,
        )
        return find_batch_size(probe_of(run, budget_bytes=budget_bytes), on_trial=on_trial)

    def _training_loader(self) -> Loader:
        pipeline = imagenet_train(self.size, **self.training)
        return self._loader(self.source, pipeline, cache="train.h5", **self.policy)

    def _loader(self, source: Source, pipeline: ImagePipeline, *, cache: str, **more: Any) -> Loader:
        if self.cache is not None:
            more["cache"] = self.cache / cache
        return create_loader(
            source,
            pipeline=pipeline,
            batch_size=self.settings.batch_size or 1,
            device=self.settings.device,
            dtype=self.settings.image_dtype,
            seed=self.settings.seed,
            pad=True,  # constant shape, for torch.compile and cuDNN's benchmark
            **self.loading,
            **more,
        )
