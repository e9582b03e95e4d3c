"""Joins the members of a tar into samples by their keys; the members of a sample need not be adjacent."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.left_out import HIDDEN, NO_IMAGE, OTHER_IMAGE, SIDECAR, explain_name
from penstock.loaders.data.labels.text_places import parse_json
from penstock.loaders.data.samples.samples_writer import LeftOut, PackedNames, SamplesWriter
from penstock.loaders.data.samples.version import Container
from penstock.loaders.data.tars.packed_members import ImageNames, KeyNumbers, PlacedTexts
from penstock.loaders.data.tars.tar_headers import Member, TarReader
from penstock.loaders.data.tars.tar_labels import LabelPlaces
from penstock.loaders.data.tars.tar_samples import (
    EVERY,
    NO_RANK,
    UNREAD,
    Role,
    find_role,
    is_hidden,
    plain_key,
    sample_key,
    split_series,
)
from penstock.pipelines.errors import LoaderError, printable

REPORT_INTERVAL = 1024  # samples
_MOST_LABEL_BYTES = 16 << 20  # limit for a member with a label
_FIX_IMAGES = "pass image={!r} if they are parts of one sample, image={!r} if each is a sample"
_FIX_TWICE = "write the tar again with each name once, or with a separate key for each sample"


@dataclass
class TarSamples:
    """The samples of one tar, in the order in which their keys first occur.

    Attributes:
        container: the file.
        names: names of the image members.
        starts, sizes: their offsets and sizes in bytes.
        texts: for each place of labels or texts, that of each sample; empty if no member has this place.
        faults: place, sample and cause for each label that cannot be read.
        stray_labels: place -> name of the first label without an image.
        longer_label, longer_text: name of a member that would be a label, or a text, if its key ended at the last dot.
        series: names of two images that differ only in numbers after the first dot.
        left_out: entries that are not served.
        suffixes: suffixes of all members.
        is_empty: whether the tar has no regular file.
        unused_list: why the list of its members was not used; "" if there was none to use, or it was.
    """

    container: Container
    names: Sequence[bytes] = field(default_factory=PackedNames)
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    texts: list[PlacedTexts] = field(default_factory=list)
    faults: list[tuple[int, int, str]] = field(default_factory=list)
    stray_labels: dict[int, bytes] = field(default_factory=dict)
    longer_label: bytes = b""
    longer_text: bytes = b""
    series: tuple[bytes, bytes] | None = None
    left_out: LeftOut = field(default_factory=LeftOut)
    suffixes: tuple[bytes, ...] = ()
    is_empty: bool = False
    unused_list: str = ""

    def move_samples(self, writer: SamplesWriter) -> None:
        """Add the samples to `writer`; afterwards only it holds their names, and places in the tar."""
        first, count = len(writer.keys), len(self.names)
        writer.add_samples(np.full(count, writer.add_container(self.container)), self.starts, self.sizes, self.names)
        self.names, self.starts, self.sizes = writer.keys.part(first, first + count), array("q"), array("q")

    def take_texts(self, place: int) -> Iterable[bytes | None]:
        """Return the text of each sample at a place, to read once."""
        texts, self.texts[place] = self.texts[place], PlacedTexts()
        return texts if texts else repeat(None, len(self.names))

    def has_place(self, place: int) -> bool:
        """Return whether any member of the tar has a label at this place."""
        return bool(self.texts[place]) or place in self.stray_labels or place in (fault[0] for fault in self.faults)


class MemberJoin:
    """Joins members to samples in one pass over the headers, which also reads the labels.

    Args:
        samples: filled with the samples.
        wanted: suffixes of the images; none for automatic.
        places: where labels may be.
        whole: whether keys end at the last dot of a name and not at the first.
        report: called every REPORT_INTERVAL samples.
    """

    def __init__(
        self, samples: TarSamples, wanted: Sequence[bytes], places: LabelPlaces, whole: bool, report: Callable[[], None]
    ) -> None:
        self._samples, self._places, self._whole, self._report = samples, places, whole, report
        self._wanted = [suffix.removeprefix(EVERY) for suffix in wanted]
        self._every = any(suffix.startswith(EVERY) for suffix in wanted)
        self._names = ImageNames()  # of each sample, its image, or its first member if it has no image
        self._left_out = samples.left_out
        self._numbers = KeyNumbers(self._names, partial(plain_key, whole=whole))  # number of the sample of a key
        self._ranks = array("i")  # ranks of their images
        self._matters = bytearray()  # for each sample, whether it needs a warning if it has no image
        self._ties: dict[int, tuple[bytes, bytes]] = {}  # sample -> its first two images of the same rank
        self._middles: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}  # sample and form of numbered names -> first
        self._series: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}  # the same -> two names
        self._forms: dict[bytes, tuple[bytes, bytes]] = {}  # key up to the first dot -> form of its images, first name
        self._has_text = False
        samples.texts = [PlacedTexts() for _ in places.places]

    def read(self, reader: TarReader) -> None:
        """Join all members. Raises LoaderError as TarReader.members, and E-FORMAT for images that share a key."""
        self._reader = reader
        samples, numbers, ranks, whole = self._samples, self._numbers, self._ranks, self._whole
        roles: dict[bytes, Role] = {}
        last, number = b"", -1
        for member in reader.members():
            name, start, size = member
            slash = name.rfind(b"/") + 1
            dot = name.rfind(b".", slash) if whole else name.find(b".", slash)
            if dot <= slash or name[slash] == 46 or (slash and is_hidden(name[:slash])):
                hidden = is_hidden(name[:slash]) or name[slash : slash + 1] == b"."
                self._left_out.add(HIDDEN if hidden else explain_name(os.fsdecode(name[slash:])), name)
                continue
            key, suffix = name[:dot], name[dot + 1 :]
            role = roles.get(suffix)
            if role is None:
                role = roles[suffix] = find_role(suffix, self._wanted, self._places.places)
            rank = role.rank
            if key != last:
                last, count = key, len(ranks)
                number = numbers.find(key.removeprefix(b"./"))
                if number == count:
                    self._names.append(name)
                    samples.starts.append(start)
                    samples.sizes.append(size)
                    ranks.append(NO_RANK)
                    self._matters.append(False)
                    if count % REPORT_INTERVAL == REPORT_INTERVAL - 1:
                        self._report()
            if rank != NO_RANK:
                if ranks[number] == NO_RANK:
                    ranks[number], self._names[number] = rank, name
                    samples.starts[number], samples.sizes[number] = start, size
                else:
                    self._add_another_image(number, rank, member)
                if (whole and not self._every) or (role.is_dotted and not self._wanted):
                    self._note_form(number, name)
            elif not role.is_sidecar:
                self._matters[number] = True
                if role.is_dotted and suffix.rpartition(b".")[2].lower() in self._wanted:
                    self._note_form(number, name)
            if role.places:
                self._add_labels(number, role, member)
        samples.suffixes = tuple(sorted({suffix.lower() for suffix in roles}))
        self._finish()

    def _add_another_image(self, number: int, rank: int, member: Member) -> None:
        names, best, name = self._names, self._ranks[number], member.name
        if not self._wanted:
            self._left_out.add(OTHER_IMAGE, names[number] if rank < best else name)
        if rank < best:
            self._ties.pop(number, None)
            self._ranks[number], names[number] = rank, name
            self._samples.starts[number], self._samples.sizes[number] = member.start, member.size
        elif rank == best < UNREAD:
            self._ties.setdefault(number, (names[number], name))

    def _note_form(self, number: int, name: bytes) -> None:
        """Find images of one key that differ only in numbers; with keys up to the last dot, refuse other images."""
        middle, form = split_series(name)
        if self._whole:
            first_form, first = self._forms.setdefault(sample_key(name), (form, name))
            if first_form != form:
                raise self._shared(first, name)
        elif middle != form:
            known, first = self._middles.setdefault((number, form), (middle, name))
            if known != middle:
                self._series.setdefault((number, form), (first, name))

    def _add_labels(self, number: int, role: Role, member: Member) -> None:
        """Read the labels in a member."""
        samples, all_places = self._samples, self._places.places
        is_json, found = role.is_json, role.places
        if is_json and self._places.is_choice and self._has_text:  # label members take precedence
            found = tuple(place for place in found if all_places[place].is_text)
            if not found:
                return
        is_large = member.size > _MOST_LABEL_BYTES
        data = b"" if is_large else self._reader.read(member.start, member.size)
        content: object = data
        if is_json and not is_large:
            if self._places.is_choice:  # parsing every sample's metadata takes longer than reading its header
                found = tuple(place for place in found if all_places[place].quoted_field in data)
            if not found:
                return
            content = parse_json(data)
        for place in found:
            try:
                if is_large:
                    raise ValueError(f"its .{os.fsdecode(all_places[place].suffix)} member has {member.size:,} bytes")
                text = all_places[place].find(content)
            except ValueError as error:
                if not role.is_longer:
                    samples.faults.append((place, number, str(error)))
                continue
            if text is not None and role.is_longer and all_places[place].is_text:
                samples.longer_text = samples.longer_text or member.name
            elif text is not None and role.is_longer:
                samples.longer_label = samples.longer_label or member.name
            elif text is not None:
                self._add_label(place, number, text, member.name)
                self._has_text = self._has_text or not (is_json or all_places[place].is_text)

    def _add_label(self, place: int, number: int, text: bytes, name: bytes) -> None:
        if not self._samples.texts[place].add(number, text):
            raise self._twice(self._key_of(name) + b"." + self._places.places[place].suffix, name)

    def _finish(self) -> None:
        """Keep the samples with an image. Raises LoaderError E-FORMAT for a sample with two images of the same role."""
        samples, ranks = self._samples, np.array(self._ranks, np.int64)
        for number, (one, other) in self._ties.items():
            form = split_series(one)[1]
            if (number, form) not in self._series or form != split_series(other)[1]:
                suffixes = [name[len(self._key_of(name)) + 1 :].lower() for name in (one, other)]
                raise self._twice(one, other) if suffixes[0] == suffixes[1] else self._shared(one, other)
        for (number, form), names in self._series.items():
            if self._wanted or (ranks[number] < UNREAD and split_series(self._names[number])[1] == form):
                samples.series = samples.series or names
        served = ranks < UNREAD
        if not served.all():
            self._leave_out(served)
        for texts in samples.texts:
            texts.keep(served)
        samples.names = self._names.pack(served)
        samples.is_empty = not len(ranks) and not self._left_out.counts
        self._left_out.add_all(self._reader.left_out)

    def _leave_out(self, served: npt.NDArray[np.bool_]) -> None:
        """Count samples without an image and drop them."""
        samples = self._samples
        last_names = {self._last_name(number) for number in np.flatnonzero(served).tolist()}
        for number in np.flatnonzero(~served).tolist():
            name = self._names[number]
            has_text = any(texts.has(number) for texts in samples.texts)
            matters = has_text or self._matters[number] or self._ranks[number] != NO_RANK
            is_apart = self._last_name(number) in last_names  # images/0.jpg and labels/0.txt
            self._left_out.add(NO_IMAGE if matters or is_apart else SIDECAR, name)
            for place, texts in enumerate(samples.texts):
                if texts.has(number):
                    samples.stray_labels.setdefault(place, name)
        new_numbers = np.cumsum(served) - 1
        samples.faults = [(place, int(new_numbers[n]), why) for place, n, why in samples.faults if served[n]]
        samples.starts = array("q", np.array(samples.starts)[served].tobytes())
        samples.sizes = array("q", np.array(samples.sizes)[served].tobytes())

    def _last_name(self, number: int) -> bytes:
        return os.path.basename(self._key_of(self._names[number]))

    def _key_of(self, name: bytes) -> bytes:
        return sample_key(name, whole=self._whole)

    def _twice(self, one: bytes, other: bytes) -> LoaderError:
        cause = f"two members have the same key and suffix: {printable(one)} and {printable(other)}"
        return LoaderError("E-FORMAT", cause, fix=_FIX_TWICE, path=self._samples.container.name)

    def _shared(self, one: bytes, other: bytes) -> LoaderError:
        suffix = os.fsdecode(one[len(sample_key(one)) + 1 :].lower())
        what = "two images have the same key, which ends at the first dot"
        cause = f"{what}: {printable(one)} and {printable(other)}"
        fix = _FIX_IMAGES.format(suffix, f"*.{suffix.rpartition('.')[2]}")
        return LoaderError("E-FORMAT", cause, fix=fix, path=self._samples.container.name)
