"""A warning about training and evaluation loaders of one process that normalise differently."""

from __future__ import annotations

from typing import NamedTuple

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.make.train_and_evaluation import TrainAndEvaluation
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.spec import ImagePipeline

_COMPARED = ("channels", "mean", "std", "interpolation")


class Normalising(NamedTuple):
    """How a loader makes floats of the images of some classes.

    Attributes:
        pipeline: the pipeline of its images.
        classes: the names of the classes of its data.
        trains: whether it serves shuffled samples; otherwise it evaluates.
    """

    pipeline: ImagePipeline
    classes: tuple[object, ...]
    trains: bool

    def is_related(self, training: Normalising) -> bool:
        """Return whether the training has the same classes; otherwise it is for other data."""
        return training.classes == self.classes

    def differences(self, other: Normalising) -> dict[str, tuple[object, object]]:
        """Return the settings that differ, with both values; a drawn interpolation agrees with any other."""
        values = {name: (getattr(self.pipeline, name), getattr(other.pipeline, name)) for name in _COMPARED}
        return {
            name: both
            for name, both in values.items()
            if both[0] != both[1] and not (name == "interpolation" and "random" in both)
        }


_loaders = TrainAndEvaluation[Normalising]()


def note_normalising(loader: object, source: Source, views: tuple[ImagePipeline, ...], *, trains: bool) -> None:
    """Note a loader of normalised floats, and warn once per process if no training loader agrees with an evaluation.

    Only existing loaders of the same two or more classes are compared. Loaders that train on several views are not:
    such a pretraining is evaluated by another model.
    """
    classes = tuple(source.classes)
    if len(classes) < 2 or (trains and len(views) > 1):
        return
    found = _loaders.add(loader, Normalising(views[0], classes, trains))
    if found is not None:
        evaluation, training = found
        values = evaluation.differences(training).items()
        differ = " and ".join(f"{name}={ours} instead of {theirs}" for name, (ours, theirs) in values)
        warn_user(
            f"the evaluation has {differ} in the training of the same classes, so the model sees other values: pass "
            "pipeline.evaluation() of the training's pipeline"
        )
