"""Makes the index of tars: scans them and assigns labels to every sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, compress, repeat
from os.path import basename, splitext
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.data.files.folder_scan import skipped_text
from penstock.loaders.data.files.left_out import BESIDE_CLASSES, NO_LABEL, NO_SAMPLES, NO_TEXT, PARTS
from penstock.loaders.data.labels.class_numbers import Classes
from penstock.loaders.data.labels.collect_texts import LEAVE_OUT, NO_TEXTS, RAISE, TextOptions
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.row_errors import Fail
from penstock.loaders.data.labels.stored_labels import ALONE, Labels, take_labels
from penstock.loaders.data.labels.text_places import WHOLE_JSON, read_texts
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.samples.samples_writer import LeftOut, SamplesWriter
from penstock.loaders.data.samples.saved_texts import TEXT
from penstock.loaders.data.sources.contract import ONE_CLASS
from penstock.loaders.data.tars.tar_join import TarSamples
from penstock.loaders.data.tars.tar_labels import (
    FOLDER,
    SHARD,
    LabelPlaces,
    Table,
    folder_labels,
    label_places,
    table_labels,
)
from penstock.loaders.data.tars.tar_samples import EVERY, sample_key
from penstock.loaders.data.tars.tar_scan import scan_tars
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.pipelines.errors import LoaderError, hide_secrets, printable
from penstock.pipelines.messages.user_warnings import warn_user

KIND = "tar files"
_RULES = b"penstock tars 7"  # the version of the rules by which samples are grouped, ordered and labelled
_FIX_OTHERS = "pass label='folder', 'shard', or a table of keys and labels, or missing_labels='leave_out'"
_FIX_LABEL = "pass label='cls', 'json:FIELD', 'folder', 'shard', or a table of keys and labels"
_FIX_TEXT = "repair the sample, or pass missing_text='leave_out'"
_FIX_PLACE = (
    "pass text= with the suffix of the members with texts, such as 'txt', or 'json:FIELD' with one of their fields"
)
_FIX_SAMPLE = "repair the sample, or pass missing_labels='leave_out', label='folder', or a table of keys and labels"
Text = bytes | None | tuple[bytes | None, ...]  # a label, or several
_FIX_TABLE = "add its key to the table: the name up to the first dot of its last part, or the whole name"


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """The settings that decide the content of an index, besides the tars.

    Attributes:
        image: lowercase suffixes of the images; none for automatic. One that begins with b"*." matches the last suffix
            of any name.
        label: the option `label`.
        table: key -> label, if `label` is or names a table.
        classes: class names, or class names for each label; None for automatic.
        floats: names of the labels that are floats.
        missing_labels: how samples without a label are handled, as in LabelRows.
        text: where texts are, and how samples without one are handled.
        member_list: suffix of the lists of members next to the tars; they do not change the content.
    """

    image: tuple[bytes, ...]
    label: object
    table: Table | None
    classes: Classes
    floats: frozenset[str]
    missing_labels: str
    text: TextOptions = NO_TEXTS
    member_list: str | None = None

    def digest(self, paths: Iterable[bytes] = ()) -> str:
        """Return a hex digest of the settings and of `paths`."""
        digest = hashlib.blake2b(_RULES, digest_size=16)
        label = self.label if self.table is None else "table"
        options = (self.image, label, self.classes, sorted(self.floats), self.missing_labels, *self.text.identity)
        digest.update(repr(options).encode("utf-8", "surrogateescape"))
        for part in chain(paths, *sorted((self.table or {}).items())):
            digest.update(b"%d " % len(part) + part)
        return digest.hexdigest()


def index_tars(paths: Sequence[bytes], settings: IndexSettings, access: Access) -> tuple[SamplesWriter, Labels]:
    """Scan tars; return the index to save, and labels that are not class numbers. Raises LoaderError.

    The samples are in the order of the tars and of their keys.
    """
    places = label_places(settings.label) if settings.table is None else LabelPlaces(())
    places = places.with_text(settings.text.place)
    tars, writer, whole_names = _scan(paths, settings, places, ObjectStore(access))
    _warn_of_lists(tars, settings)
    left_out = writer.left_out = _count_left_out(tars)
    names = writer.keys
    if not names:
        fix = "pass tars that contain JPEG, PNG, WebP, BMP, GIF or TIFF files"
        if settings.image:
            known = ", ".join(f".{os.fsdecode(name)}" for name in settings.image)
            fix = f"check image=: no member has the suffix {known}"
        raise LoaderError("E-NODATA", f"no sample in {_describe(paths)}{skipped_text(left_out.counts)}", fix=fix)

    def place(index: int) -> bytes:
        return paths[writer.container_of[index]] + b":" + names[index]

    def fail(sample: int, cause: str, fix: str | None = None) -> LoaderError:
        return LoaderError("E-FORMAT", cause, fix=fix, path=place(sample))

    if settings.table is not None:
        found_labels = table_labels(settings.table, names, partial(sample_key, whole=whole_names), fail)
        if None in found_labels and settings.missing_labels == RAISE:
            where = place(found_labels.index(None))
            raise LoaderError("E-MISUSE", "the table has no label for this sample", fix=_FIX_TABLE, path=where)
        labels = _Labels(found_labels)
    else:
        labels = _find_labels(tars, names, places, settings, fail)
    rows = LabelRows(
        settings.classes or labels.classes,
        are_names=labels.are_names,
        floats=settings.floats,
        missing_labels=LEAVE_OUT if labels.are_names else settings.missing_labels,
        text=settings.text,
    )
    texts = repeat(None) if places.of_text is None else _collect(tars, places, places.of_text, settings, fail)
    for number, (label, text) in enumerate(zip(labels.texts, texts, strict=False)):
        found_label: Any = _as_label(label, places.names)
        if places.of_text is not None:
            several = found_label if isinstance(found_label, dict) else {ALONE: found_label}
            found_label = {**several, TEXT: read_texts(text)}
        rows.add(found_label, fail, number)
    found = rows.finish()
    reason = BESIDE_CLASSES if labels.are_names else NO_LABEL
    for why, which in {reason: rows.left_out & ~rows.lacks_text, NO_TEXT: rows.lacks_text}.items():
        if which.any():
            lost = list(compress(names, which.tolist()))
            left_out.add(why, min(lost), len(lost))
    return writer, take_labels(writer, found, np.flatnonzero(~rows.left_out))


def _warn_of_lists(tars: Sequence[TarSamples], settings: IndexSettings) -> None:
    """Warn of tars with a list of members that was not used."""
    unused = [tar for tar in tars if tar.unused_list]
    if unused:
        warn_user(
            f"the list of members (.{settings.member_list}) of {len(unused):,} of {len(tars):,} tars was not used, and "
            f"all headers were read: {printable(unused[0].container.name)}: {unused[0].unused_list}"
        )


def _count_left_out(tars: Sequence[TarSamples]) -> LeftOut:
    """Return the entries left out of all tars; with several tars, their names include the tar."""
    left_out = LeftOut()
    for tar in tars:
        if not tar.names:
            left_out.add(NO_SAMPLES, tar.container.name)
        which = os.fsencode(basename(hide_secrets(tar.container.name))) + b":"
        for reason, count in tar.left_out.counts.items():
            name = tar.left_out.examples[reason]
            is_member = name != tar.container.name and len(tars) > 1
            left_out.add(reason, which + name if is_member else name, count)
    return left_out


def _as_label(text: Text, names: tuple[str, ...]) -> str | dict[str, str | None] | None:
    """Return a label, or several by name, as LabelRows accepts them."""
    if isinstance(text, tuple):
        return {name: _decode(part) if part else None for name, part in zip(names, text, strict=True)}
    return None if text is None else _decode(text)


_decode = lru_cache(4096)(os.fsdecode)  # many samples have the same label


class _Labels(NamedTuple):
    """The labels of all samples as text; None for a sample without a label.

    Attributes:
        texts: the labels, to read once; tuples if there are several per sample.
        are_names: whether numbers among them are also names.
        classes: class names, if known.
    """

    texts: Iterable[Text]
    are_names: bool = False
    classes: tuple[bytes, ...] | None = None


def _find_labels(
    tars: Sequence[TarSamples], names: Sequence[bytes], places: LabelPlaces, settings: IndexSettings, fail: Fail
) -> _Labels:
    """Return the labels of all samples: from the names of the tars, from members, or else from the folders."""
    if settings.label == SHARD:
        shards = [os.fsencode(splitext(basename(hide_secrets(tar.container.name)))[0]) for tar in tars]
        of_tars = (repeat(shard, len(tar.names)) for shard, tar in zip(shards, tars, strict=True))
        return _Labels(chain.from_iterable(of_tars), are_names=True)
    if places.names:
        columns = [_collect(tars, places, number, settings, fail) for number in range(len(places.of_labels))]
        return _Labels(zip(*columns, strict=True))
    numbers = range(len(places.of_labels))
    chosen = next((number for number in numbers if any(tar.has_place(number) for tar in tars)), None)
    if not places.is_choice and places.of_labels:
        chosen = 0
    if chosen is not None:
        if places.is_choice and settings.missing_labels == RAISE:
            _refuse_other_places(tars, places, chosen)
        return _Labels(_collect(tars, places, chosen, settings, fail))
    longer = next(((tar.container.name, tar.longer_label) for tar in tars if tar.longer_label), None)
    if longer is not None and places.is_choice:
        suffix = longer[1][len(sample_key(longer[1])) + 1 :]
        cause = f"the suffix of {printable(longer[1])} begins at the first dot, and is not a label's suffix"
        fix = f"pass label={os.fsdecode(suffix)!r}, or label='folder' to leave it out"
        raise LoaderError("E-FORMAT", cause, fix=fix, path=longer[0])
    folders = folder_labels(names)
    if folders is not None:
        if places.is_choice:
            _refuse_parts(folders, fail)
        return _Labels(folders, are_names=True)
    if settings.label == FOLDER:
        raise LoaderError("E-FORMAT", "no member is in a folder", fix=_FIX_LABEL, path=tars[0].container.name)
    return _Labels(repeat(b"0", len(names)), classes=(ONE_CLASS,))


def _refuse_other_places(tars: Sequence[TarSamples], places: LabelPlaces, chosen: int) -> None:
    """Raise LoaderError if a tar has samples, but does not store labels in the same place as the others."""
    has = next(tar for tar in tars if tar.has_place(chosen))
    lacks = next((tar for tar in tars if tar.names and not tar.has_place(chosen)), None)
    if lacks is None:
        return
    others = range(chosen + 1, len(places.of_labels))
    other = next((places.places[number].describe() for number in others if lacks.has_place(number)), FOLDER)
    if other == FOLDER and folder_labels(lacks.names) is None:
        other = "none"
    one, two = (printable(basename(hide_secrets(tar.container.name))) for tar in (has, lacks))
    cause = f"the tars store labels differently: {places.places[chosen].describe()} in {one}, {other} in {two}"
    raise LoaderError("E-FORMAT", cause, fix=_FIX_OTHERS)


def _collect(
    tars: Sequence[TarSamples], places: LabelPlaces, number: int, settings: IndexSettings, fail: Fail
) -> Iterator[bytes | None]:
    """Return the labels or texts at one place, which are removed from the tars as they are read.

    Raises LoaderError with the first sample without one, ValueError for texts without a field of their JSON.
    """
    place = places.places[number]
    missing, fix = settings.missing_labels, _FIX_SAMPLE
    if place.is_text:
        missing, fix = settings.text.missing, _FIX_TEXT
    firsts = list(accumulate((len(tar.names) for tar in tars), initial=0))
    faults: list[tuple[int, str]] = []
    for first, tar in zip(firsts, tars, strict=False):
        faults += [(first + sample, cause) for at, sample, cause in tar.faults if at == number]
    if faults:
        sample, cause = min(faults)
        if cause.startswith(WHOLE_JSON):
            raise ValueError(cause)
        raise fail(sample, cause, fix)
    if missing == RAISE:
        lacks = [tar.texts[number].find_missing(len(tar.names)) for tar in tars]
        which = next((at for at, samples in enumerate(lacks) if len(samples)), None)
        if which is not None:
            first = int(lacks[which][0])
            cause = _missing_cause(tars, which, first, places, number)
            count = sum(map(len, lacks))
            cause += f"; {count:,} of the {firsts[-1]:,} samples have no {place.word}" if count > 1 else ""
            if count == firsts[-1]:
                fix = _FIX_PLACE if place.is_text else _FIX_LABEL
            stray = next((tar.stray_labels[number] for tar in tars if number in tar.stray_labels), None)
            cause += "" if stray is None else f"; {printable(stray)} has the key of no image"
            raise fail(firsts[which] + first, cause, fix)
    return chain.from_iterable(tar.take_texts(number) for tar in tars)


def _missing_cause(tars: Sequence[TarSamples], which: int, sample: int, places: LabelPlaces, number: int) -> str:
    """Return why a sample of the tar `which` has no label or text at a place."""
    tar, place = tars[which], places.places[number]
    if not tar.texts[number].has(sample):
        return f"the sample has no {place.describe_member(tar.suffixes)}"
    if place.field:
        return f"the field {place.field!r} of its .json member is null or empty"
    return f"its .{os.fsdecode(place.suffix)} member is empty"


def _refuse_parts(folders: Sequence[bytes | None], fail: Fail) -> None:
    """Raise LoaderError if folders are named like parts of samples and not like classes."""
    classes = sorted({folder for folder in folders if folder is not None})
    if len(classes) > 1 and PARTS.issuperset(name.lower() for name in classes):
        some = " and ".join(map(printable, classes[:2]))
        cause = f"the folders {some} look like parts of samples and not like classes"
        fix = "give all members of a sample the same folder and name, or pass label='folder'"
        raise fail(0, cause, fix)


def _scan(
    paths: Sequence[bytes], settings: IndexSettings, places: LabelPlaces, store: ObjectStore
) -> tuple[list[TarSamples], SamplesWriter, bool]:
    """Return what was found in each tar, their samples, and whether keys go up to the last dot."""
    with ProgressBar("indexing", show_after_s=SHOW_AFTER_S) as bar:

        def show(done: int, total: int) -> None:
            bar.show(done, total, what=f"indexing {_describe(paths)}")

        def scan(*, whole_names: bool) -> tuple[list[TarSamples], SamplesWriter]:
            tars, writer = list[TarSamples](), SamplesWriter(kind=KIND)
            for tar in scan_tars(paths, image, places, store, show, whole_names, settings.member_list):
                tar.move_samples(writer)
                tars.append(tar)
                if tar.series is not None and not image and not whole_names:
                    break
            return tars, writer

        image = settings.image
        if any(suffix.startswith(EVERY) for suffix in image):
            return *scan(whole_names=True), True
        tars, writer = scan(whole_names=False)
        has_label = any(tar.has_place(number) for tar in tars for number in range(len(places.places)))
        if image:  # it sets the suffix, unless no member has it
            whole_names = not any(tar.names for tar in tars) and any(tar.series for tar in tars)
        else:
            whole_names = bool(tars[-1].series) or (
                not has_label and any(tar.longer_label or tar.longer_text for tar in tars)
            )
        if whole_names:
            tars, writer = scan(whole_names=True)
        return tars, writer, whole_names


def _describe(paths: Sequence[bytes]) -> str:
    return f"{len(paths):,} {KIND}" if len(paths) > 1 else printable(paths[0])
