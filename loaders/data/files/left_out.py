"""Reasons for files and samples that are left out, and one warning about them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from penstock.pipelines.errors import count_text, printable
from penstock.pipelines.messages.user_warnings import warn_user

_JPEG = "jpg jpeg jpe jfif jfi jif pjpeg pjp"
_UNREAD = (
    "ppm pgm pbm pnm heic heif hif avif jxl jp2 j2k j2c jpf jpx jpc exr hdr tga psd svg dng cr2 cr3 nef arw orf rw2 "
    "raf raw ico pcx dds qoi dcm"
)
_SIDECAR = (
    "cls class label labels names txt text caption json jsonl ndjson xml csv tsv yaml yml toml ini cfg conf md rst log "
    "lab id idx index inx lst py ipynb sh db sqlite sha1 sha256 md5 crc sum sig asc license bib url xmp aae thm lnk"
)
_SIDECAR_STEMS = (
    "readme license licence copying notice authors changes changelog version makefile dockerfile citation manifest "
    "checksums md5sums sha1sums sha256sums _success _metadata"
)
_PART_FOLDERS = (
    "image images img imgs jpegimages label labels mask masks seg segmentation segmentationclass annotation "
    "annotations annots gt groundtruth target targets"
)


def _suffixes(names: str) -> frozenset[str]:
    return frozenset(f".{name}" for name in names.split())


JPEG_SUFFIXES = _suffixes(_JPEG)
IMAGE_SUFFIXES = JPEG_SUFFIXES | _suffixes("png webp bmp gif tif tiff")
UNREAD_SUFFIXES = _suffixes(_UNREAD)  # images that this package does not decode; ImageFolder accepts the first two
# Files that accompany images: labels, texts, tables, logs, programs.
_SIDECAR_SUFFIXES, _SIDECAR_NAMES = _suffixes(_SIDECAR), frozenset(_SIDECAR_STEMS.split())
PARTS = frozenset(os.fsencode(name) for name in _PART_FOLDERS.split())  # folders with parts of samples

_SPLITS = frozenset({b"train", b"training", b"val", b"valid", b"validation", b"test", b"testing"})
_SHOWN = 5  # names in a warning

# Reasons as shown by describe().
SIDECAR, NO_SUFFIX, UNKNOWN_SUFFIX, UNREAD_FORMAT = "other suffix", "no suffix", "unknown suffix", "format not read"
HIDDEN, HIDDEN_IMAGES, NOT_REGULAR = "hidden", "hidden with images", "not a regular file"
LINK, BROKEN_LINK = "link", "broken link"
UNREADABLE, VANISHED, BESIDE_CLASSES = "unreadable", "vanished", "next to class folders"
NO_ROW_IMAGE, NO_ROW_LABEL, NO_ROW_TEXT = "row without an image", "row without a label", "row without a text"
NO_LABEL, NO_TEXT = "sample without a label", "sample without a text"
NO_IMAGE, OTHER_IMAGE, NO_SAMPLES = "sample without an image", "other image of a sample", "tar without samples"

# Reason -> words of the warning (singular noun, text after it) and the fix. Other reasons give no warning.
_WARNED = {
    BESIDE_CLASSES: ("image", f" {BESIDE_CLASSES}", "move them into the folder of their class, or {instead}"),
    UNREAD_FORMAT: ("image", " of a format that is not read", "convert them to JPEG or PNG"),
    UNKNOWN_SUFFIX: ("file", " with an unknown suffix", "{rename}"),
    NO_SUFFIX: ("file", " without a suffix", "{rename}"),
    NOT_REGULAR: ("special file", "", ""),
    LINK: ("symbolic link", "", "write the tar again with --dereference"),
    BROKEN_LINK: ("broken link", "", ""),
    UNREADABLE: ("unreadable path", "", "give this user read access"),
    VANISHED: ("path", " that vanished during the scan", ""),
    NO_ROW_IMAGE: ("row", " without an image", ""),
    NO_ROW_LABEL: ("row", " without a label", ""),
    NO_LABEL: ("sample", " without a label", ""),
    NO_ROW_TEXT: ("row", " without a text", ""),
    NO_TEXT: ("sample", " without a text", ""),
    NO_IMAGE: ("sample", " without an image", ""),
    OTHER_IMAGE: ("other image", " of samples", "set the suffix of the images with image="),
    NO_SAMPLES: ("tar", " without samples", ""),
}


def is_image_name(name: str) -> bool:
    """Return whether a file has the suffix of a supported image format."""
    return name[name.rfind(".") :].lower() in IMAGE_SUFFIXES


def explain_name(name: str) -> str:
    """Return why a file is left out that is_image_name does not accept."""
    lower = name.lower()
    stem, dot, suffix = lower.rpartition(".")
    if dot + suffix in UNREAD_SUFFIXES:
        return UNREAD_FORMAT
    is_meta = name[:2] == name[-2:] == "__"  # WebDataset skips these too
    if dot + suffix in _SIDECAR_SUFFIXES or (stem or lower) in _SIDECAR_NAMES or is_meta:
        return SIDECAR
    return UNKNOWN_SUFFIX if dot else NO_SUFFIX


def warn_of_left_out(
    skipped: Mapping[str, int],
    examples: Mapping[str, str | bytes],
    where: str,
    *,
    instead: str = "pass a list of (path, label)",
    rename: str = "give images the suffix of their format, or pass a list of (path, label)",
    unsaid: Collection[str] = (),
) -> None:
    """Warn once of everything left out, with one example per reason; except hidden files and sidecars.

    skipped, examples: as in ImagesHeader. where: the opened data, as text. instead: alternative fix for images next to
    class folders. rename: fix for suffixes. unsaid: reasons without a warning.
    """
    parts, fixes = [], dict[str, None]()
    for reason, (noun, rest, fix) in _WARNED.items():
        if skipped.get(reason) and reason not in unsaid:
            example = f" ({printable(examples[reason])})" if reason in examples else ""
            parts.append(count_text(skipped[reason], noun) + rest + example)
            if fix:
                fixes[fix.format(instead=instead, rename=rename)] = None
    if parts:
        warn_user(f"{where}: left out: {', '.join(parts)}{'; ' * bool(fixes)}{'; '.join(fixes)}")


def warn_of_parts(classes: Sequence[bytes], where: str, instead: str = "pass the folder of one of them") -> None:
    """Warn of class folders that are named like parts of the data, or like parts of samples."""
    lower, names = {name.lower() for name in classes}, " and ".join(map(printable, classes[:_SHOWN]))
    if len(classes) > 1 and _SPLITS.issuperset(lower):
        warn_user(f"{where}: its classes are {names}: {instead}, if these are parts of the data")
    if len(classes) > 1 and PARTS.issuperset(lower):
        fix = "pass the folder of the images, if the others contain their labels or masks"
        warn_user(f"{where}: its classes are {names}: {fix}")
