"""A warning about training and evaluation loaders of one process that number the same classes differently."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from penstock.loaders.data.sources.contract import Source, field_kinds_of
from penstock.loaders.make.train_and_evaluation import TrainAndEvaluation
from penstock.pipelines.fields.field_kinds import of_kind
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user


class Numbered(NamedTuple):
    """Class names in the order of their numbers, which begin with `first`."""

    names: tuple[bytes, ...]
    first: int = 0


class ClassNumbering(NamedTuple):
    """How a loader numbers classes.

    Attributes:
        classes: the classes of each label, "" for the only one, and of each field of boxes.
        trains: whether it serves shuffled samples; otherwise it evaluates.
    """

    classes: Mapping[str, Numbered]
    trains: bool

    def is_related(self, other: ClassNumbering) -> bool:
        """Return whether `other` has at least half of the classes of each label; otherwise it is for other data."""
        if self.classes.keys() != other.classes.keys():
            return False
        pairs = ((own.names, other.classes[label].names) for label, own in self.classes.items())
        return all(names == known or 2 * len(set(names) & set(known)) >= len(names) for names, known in pairs)

    def differences(self, other: ClassNumbering) -> tuple[str, bytes, int, int] | None:
        """Return the first class with another number in `other`: label, name, and both numbers; None if all agree."""
        for label, own in self.classes.items():
            if own == other.classes[label]:
                continue
            number_of = {name: number for number, name in enumerate(*other.classes[label])}
            for number, name in enumerate(*own):
                if number_of.get(name, number) != number:
                    return label, name, number, number_of[name]
        return None


_loaders = TrainAndEvaluation[ClassNumbering]()


def note_classes(loader: object, source: Source, num_views: int, *, trains: bool) -> None:
    """Note the classes of a loader, and warn once per process if an evaluation numbers them as no training does.

    Only existing loaders are compared, and an evaluation only with trainings that have at least half of its classes:
    others are for other data. It needs to agree with one of them. Loaders that train on several views are not compared:
    they need no labels.
    """
    if trains and num_views > 1:
        return
    of_labels = getattr(source, "label_classes", {}) or {"": tuple(source.classes)}
    classes = {label: Numbered(names) for label, names in of_labels.items()}
    boxes = of_kind(field_kinds_of(source), "boxes").items()
    classes |= {name: Numbered(kind.classes, kind.first_class) for name, kind in boxes if kind.classes}
    found = _loaders.add(loader, ClassNumbering(classes, trains))
    if found is None:
        return
    evaluation, training = found
    moved = evaluation.differences(training)
    assert moved is not None
    label, name, ours, theirs = moved
    why, fix = "their data has different classes", "pass the training loader's classes to the evaluation as classes="
    if evaluation.classes[label].first != training.classes[label].first:
        why, fix = "first_class differs", "give both the same first_class="
    elif label in field_kinds_of(source):
        fix = "give both the same names=, or the same categories in their COCO files"
    warn_user(
        f"{f'{label}: ' * bool(label)}class {shown(os.fsdecode(name))} has number {ours} in the evaluation and "
        f"{theirs} in the training, because {why}: {fix}"
    )
