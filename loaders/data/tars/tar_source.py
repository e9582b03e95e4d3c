"""Opens tars of samples (WebDataset) as a source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.loaders.data.files.folder_scan import root_error
from penstock.loaders.data.files.left_out import IMAGE_SUFFIXES, explain_name, warn_of_left_out, warn_of_parts
from penstock.loaders.data.indexes.bucket_index import BucketIndex
from penstock.loaders.data.indexes.open_samples import load_or_make, serve_samples
from penstock.loaders.data.labels.choose_columns import split_floats
from penstock.loaders.data.labels.class_numbers import checked_classes_by_label
from penstock.loaders.data.labels.collect_texts import LEAVE_OUT, RAISE, TextOptions
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.text_places import JSON
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.asked_once import list_once
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import absolute
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.remote.remote_source import REMOTE_OPTIONS, check_reading
from penstock.loaders.data.remote.url_patterns import refuse_http
from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import LeftOut
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import only_whole
from penstock.loaders.data.tars.tar_headers import AFTER_END, LONG_END, NO_END
from penstock.loaders.data.tars.tar_index import IndexSettings, index_tars
from penstock.loaders.data.tars.tar_labels import open_table
from penstock.loaders.data.tars.tar_samples import EVERY
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import checked_bool, checked_choice, shown
from penstock.pipelines.messages.user_warnings import warn_user

SUFFIX = ".tar"
_ENDS = {
    NO_END: "it may be truncated between two members; compare its size with the original's, or copy it again",
    LONG_END: "part of it may be lost; compare its digest with the original's, or copy it again",
    AFTER_END: "data after the end is not read; if tars were joined with cat, pass them one by one",
}
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")  # refused with a fix
TAR_OPTIONS = (
    "image",
    "label",
    "classes",
    "missing_labels",
    "text",
    "missing_text",
    "member_list",
    "rescan",
    "index",
    *REMOTE_OPTIONS,
)  # options of open_tars that create_loader passes on


def open_tars(
    paths: Sequence[bytes],
    *,
    image: str | None = None,
    label: str | os.PathLike[str] | Sequence[str] | Mapping[Any, Any] | None = None,
    classes: Sequence[str | bytes] | Mapping[str, Sequence[str | bytes]] | None = None,
    missing_labels: str = RAISE,
    text: str | None = None,
    missing_text: str = RAISE,
    member_list: str | None = None,
    rescan: bool = False,
    index: BucketIndex | None = None,
    **reading: Any,
) -> Source:
    """Open tar files as one source: the samples of the first tar, in the order of its members, then of the next.

    The index is made from the headers and saved in the user's cache folder. It is reused while the size and time of
    each tar are unchanged; `rescan=True` always makes a new one.

    Args:
        paths: paths of the tars.
        image: suffix of the images; several separated by ";": the first one that a sample has is used. The default is
            the JPEG, else the WebP, else another image of a sample; a warning counts the others. Two images of one
            format are refused, unless they differ only in numbers after the first dot: then each is a sample. "*.jpg"
            makes each JPEG a sample, whatever other dots its name has.
        label: where the labels are: "cls" (a .cls member; also "class", "label"), "json:FIELD" (a field of a .json
            member), "folder" (the first folder in which the names differ), "shard" (the tar's name), a dict
            {key: label}, or the path of a CSV or TSV file of keys and labels. The default is the first of these that
            any sample has: "cls", "class", "label", "json:label", "json:cls", "folder"; else all are of one class.
            Labels that are all integers, except folders and tars, are class numbers; numbers with a point and lists
            (of numbers, or of class names) are served as float32; others are class names. A list of "cls" and
            "json:FIELD" gives several labels, named by the fields. The suffix ":float" serves integers as float32.
        classes: class names, by class number; for several labels, a dict of them.
        missing_labels: "raise" for samples without a label (absent, empty, null, NaN, -1), or "leave_out".
        text: where the texts are, the field `text`: a suffix, "txt", or "json:FIELD", a text or a list of texts.
        missing_text: "raise" for samples without a text (absent, empty, null, an empty list), or "leave_out".
        member_list: suffix of lists of members next to the tars, "idx" (DALI's wds2idx) or "json" (hfutils, webshart).
        rescan: whether to make the index again.
        index: an index from a bucket, which is neither made nor compared here.
        reading: fields of RemoteOptions.

    Raises LoaderError: E-NODATA without samples or for a tar without files, E-FORMAT for a file that is not a tar,
    members with the same key and suffix, and a missing or unsuitable label, E-TRUNC for a truncated tar, E-CORRUPT for
    a damaged one, E-UNSUPPORTED for a sparse one, E-MISUSE for a table that lacks a sample; ValueError for options.
    """
    settings = _read_settings(image, label, classes, missing_labels, TextOptions.checked(text, missing_text))
    settings = replace(settings, member_list=_checked_suffix(member_list))
    reads, paths = check_reading(paths, **reading), list(map(absolute, paths))
    options: dict[str, Any] = {"image": image, "label": label, "classes": classes, "missing_labels": missing_labels}
    options |= {"text": text, "missing_text": missing_text}
    if index is None:
        samples, labels = _load_or_make(paths, settings, reads, checked_bool("rescan", rescan))
    else:
        samples, labels = index.of_tars(settings.digest(), options)
    if settings.table is not None and isinstance(label, (str, os.PathLike)):
        options["label"] = os.path.abspath(label)
    _warn_of_content(samples, paths, may_be_parts=label is None and classes is None)
    reopen = partial(open_tars, paths, **options, member_list=member_list, index=index, **reading)
    images = serve_samples(samples, reads, lambda rescan: only_whole(reopen(rescan=rescan)), index)
    return serve_labels(images, labels, has_list=classes is not None)


def _load_or_make(
    paths: Sequence[bytes], settings: IndexSettings, access: Access, rescan: bool
) -> tuple[Samples, SavedColumns | None]:
    """Return the saved index of tars, or a new one."""
    name = settings.digest(path if is_url(path) else os.path.realpath(path) for path in paths).encode() + b".index"
    return load_or_make(name, settings.digest(), partial(index_tars, paths, settings, access), access, rescan=rescan)


def _read_settings(
    image: object, label: object, classes: object, missing_labels: str, text: TextOptions
) -> IndexSettings:
    """Return the options that decide the content of an index. Raises ValueError."""
    plain, floats = (label, frozenset[str]()) if isinstance(label, Mapping) else split_floats(label, ())
    table = open_table(plain)
    return IndexSettings(
        image=_checked_image(image),
        label=plain,
        table=table,
        classes=checked_classes_by_label(classes),
        floats=frozenset(name.removeprefix(JSON) for name in floats),
        missing_labels=checked_choice("missing_labels", missing_labels, (RAISE, LEAVE_OUT)),
        text=text,
    )


def _warn_of_content(index: Samples, paths: Sequence[bytes], may_be_parts: bool) -> None:
    """Warn of entries left out of tars, and of folders that may be parts of the data and not classes."""
    skipped, examples = index.header.skipped, index.header.examples
    for reason, meaning in _ENDS.items():  # ends of a truncated tar, or of several joined tars
        if reason in skipped:
            where = f"{skipped[reason]:,} of {len(paths):,} tars ({printable(examples[reason])})"
            warn_user(f"{printable(paths[0]) if len(paths) == 1 else where}: {reason}: {meaning}")
    tars = printable(paths[0]) + (f" and {len(paths) - 1:,} more" if len(paths) > 1 else "")
    instead = "pass a table of keys and labels as label="
    rename = "give images the suffix of their format"
    warn_of_left_out(skipped, examples, tars, instead=instead, rename=rename)
    if may_be_parts:
        warn_of_parts(index.classes, tars, f"write one tar for each, or {instead}")


def is_tar_folder(path: bytes, access: Access = DEFAULT) -> bool:
    """Return whether a folder contains tars, but no images and no folders; stops at the first of these."""
    has_tar = False
    if is_url(path):
        folders, names = _list_url(path, access)
        suffixes = {os.path.splitext(name.lower())[1] for name in names}
        return not folders and SUFFIX in suffixes and not suffixes & IMAGE_SUFFIXES
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = os.fsdecode(entry.name).lower()
                if name.startswith("."):
                    continue
                if name[name.rfind(".") :] in IMAGE_SUFFIXES or entry.is_dir():
                    return False
                has_tar = has_tar or name.endswith(SUFFIX)
    except OSError:
        return False
    return has_tar


def open_tar_folder(path: bytes, **options: Any) -> Source:
    """Open the tars in a folder or below a URL, sorted by name (bytes), as open_tars does."""
    index: BucketIndex | None = options.get("index")
    if index is not None:
        found = list(index.objects())
    elif is_url(path):
        found = [name.encode() for name in _list_url(path, Access.among(options))[1]]
    else:
        try:
            found = [os.path.join(path, name) for name in sorted(os.listdir(path)) if not name.startswith(b".")]
        except OSError as error:
            raise root_error(error, path) from error
    source = open_tars([name for name in found if name.lower().endswith(SUFFIX.encode())], **options)
    left_out = LeftOut()
    for name in map(os.path.basename, found):
        if not name.lower().endswith(SUFFIX.encode()):
            left_out.add(explain_name(os.fsdecode(name)), name)
    rename = "decompress tars and give them the suffix .tar"
    warn_of_left_out(left_out.counts, left_out.examples, printable(path), rename=rename)
    return source


def _list_url(url: bytes, access: Access) -> tuple[list[str], list[str]]:
    """Return the URLs of folders and objects directly below `url`, sorted, without names that begin with a dot."""
    folder = url.decode() + "/"
    refuse_http(folder)

    def list_folder() -> dict[str, RemoteObject]:
        folders, objects = ObjectStore(access).list_folder(folder)
        return {**dict.fromkeys(folders, RemoteObject(0, MISSING)), **objects}

    shown = [name for name in list_once(url, list_folder) if name[len(folder)] != "."]
    return [name for name in shown if name.endswith("/")], [name for name in shown if not name.endswith("/")]


def _checked_suffix(member_list: object) -> str | None:
    suffix = member_list.lstrip(".") if isinstance(member_list, str) else ""
    if member_list is not None and (not suffix or "/" in suffix):
        raise ValueError(f"member_list must be a suffix such as 'idx' or 'json', got {shown(member_list)}")
    return suffix or None


def _checked_image(image: object) -> tuple[bytes, ...]:
    """Return the suffixes in the option; EVERY marks the last suffix of any name."""
    parts = [part.strip() for part in image.split(";")] if isinstance(image, str) else []
    named = [part.removeprefix("*").lstrip(".").lower() for part in parts if part.strip(". ")]
    if image is not None and not all(named or [""]):
        raise ValueError(f"image must be the suffix of the images, such as 'jpg' or 'png;jpg', got {shown(image)}")
    are_last = ["*" in part for part in parts if part.strip(". ")]
    if any(are_last) and (not all(are_last) or any(set(".*") & set(part) for part in named)):
        raise ValueError(f"image must be suffixes, or '*.jpg' for the last suffix of any name, got {shown(image)}")
    return tuple(EVERY * any(are_last) + os.fsencode(part) for part in named)
