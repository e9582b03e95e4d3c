"""Tar headers of every format and program: members, their positions, refusals."""

from __future__ import annotations

import os
import random
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tar_files import BLOCK, END, entry, gnu_tar, header, pad, pax, seal, write_tar

from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.samples.version import Container
from penstock.loaders.data.tars.tar_headers import (
    AFTER_END,
    FOLDER,
    MOST_REMOTE,
    NO_END,
    Member,
    OpenTar,
    TarReader,
    open_tar,
)
from penstock.pipelines.errors import LoaderError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
SAMPLE = ("json", "jpg")
LONG = "/".join(["folder-of-twenty-chars"] * 12) + "/" + "x" * 120 + ".jpg"  # 400 bytes
NAMES = [
    "a.jpg",
    "b/c.jpg",
    "d" * 96 + ".jpg",
    "e" * 60 + "/" + "f" * 90 + ".jpg",
    "g/\u00e9\u4e2d.jpg",
    "with space\n.jpg",
]


def read(path: Path) -> tuple[list[Member], Counter[str]]:
    with open_tar(os.fsencode(path), ObjectStore()) as tar:
        reader = TarReader(tar)
        return list(reader.members()), +reader.left_out.counts


def by_tarfile(path: Path) -> list[Member]:
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as tar:
        return [Member(os.fsencode(i.name), i.offset_data, i.size) for i in tar if i.isreg()]


def refusal_of(path: Path) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        read(path)
    assert caught.value.path == os.fsencode(path)
    assert "\n" not in str(caught.value)
    return caught.value


def put(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(map(bytes, parts)))
    return path


# ---- formats ----


@pytest.mark.parametrize("form", FORMATS)
def test_names_and_positions_equal_those_of_tarfile(tmp_path: Path, form: str) -> None:
    names: list[str | bytes] = [*NAMES, b"not/utf\xff\xfe8\xe9.jpg"]
    names += [LONG] if form != "ustar" else []
    files = [(name, bytes([65 + number]) * (number * 300)) for number, name in enumerate(names)]
    path = write_tar(tmp_path / "x.tar", files, FORMATS[form])
    members, skipped = read(path)
    assert members == by_tarfile(path)
    assert [m.name for m in members] == [os.fsencode(name) for name in names]
    assert not skipped
    data = path.read_bytes()
    assert [data[m.start : m.start + m.size] for m in members] == [content for _, content in files]


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_tars_by_gnu_tar_are_read(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "data"
    name = "n" * 60 if form == "v7" else "n" * 90 if form == "ustar" else "n" * 200
    for number, path in enumerate(["a/0.jpg", "a/1.jpg", f"b/{name}/2.jpg", "b/\udcff\udce9.jpg"]):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * (1000 * number))
    (folder / "link.jpg").symlink_to("a/0.jpg")
    os.mkfifo(folder / "pipe.jpg")
    path = gnu_tar(tmp_path / "x.tar", folder, f"--format={form}", *(["--exclude=pipe.jpg"] if form == "v7" else []))
    members, skipped = read(path)
    assert members == by_tarfile(path)
    assert [m.size for m in members] == [0, 1000, 2000, 3000]
    others = {FOLDER: 4, "link": 1} if form == "v7" else {FOLDER: 4, "link": 1, "not a regular file": 1}
    assert skipped == Counter(others)


def test_pax_headers_of_bsdtar_are_read(tmp_path: Path) -> None:
    records = {
        b"mtime": b"1700000000.123456789",
        b"LIBARCHIVE.xattr.user.x": b"AAE=\n\0 12 path=no\n",
        b"SCHILY.xattr.user.x": b"\x00\x01\n",
        b"path": b"long/" + b"p" * 300 + b"/\xff\xe9.jpg",
        b"hdrcharset": b"BINARY",
    }
    parts = [pax(records), entry(b"long/ppp", b"abc"), entry(b"plain.jpg", b"de"), END]
    path = put(tmp_path / "x.tar", *parts)
    assert read(path)[0] == [
        Member(records[b"path"], 2 * BLOCK + len(parts[0]) - BLOCK, 3),
        Member(b"plain.jpg", len(parts[0]) + 3 * BLOCK, 2),
    ]


def test_global_pax_headers_apply_until_they_are_reset(tmp_path: Path) -> None:
    path = put(
        tmp_path / "x.tar",
        pax({b"comment": b"of git archive", b"path": b"all.jpg"}, b"g"),
        entry(b"1.jpg", b"1"),
        pax({b"path": b"own.jpg"}),
        entry(b"2.jpg", b"2"),
        pax({b"path": b""}),
        entry(b"3.jpg", b"3"),
        END,
    )
    assert [m.name for m in read(path)[0]] == [b"all.jpg", b"own.jpg", b"3.jpg"]


def test_sizes_above_8_gib_in_base_256_and_in_pax_headers_are_read(tmp_path: Path) -> None:
    big = 9 << 30
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        file.write(header(b"big.jpg", magic=b"ustar  \0", size_field=b"\x80" + big.to_bytes(11, "big")))
        file.seek(big, os.SEEK_CUR)
        file.write(pax({b"size": b"%d" % (big + 1)}) + bytes(header(b"more.jpg", 7)))
        file.seek(big + BLOCK, os.SEEK_CUR)
        file.write(entry(b"last.jpg", b"abc") + END)
    assert path.stat().st_blocks * 512 < 1 << 20
    members, _ = read(path)
    assert members == by_tarfile(path)
    assert [m.size for m in members] == [big, big + 1, 3]
    with open(path, "rb") as file:
        file.seek(members[2].start)
        assert file.read(3) == b"abc"


def test_old_headers_are_read(tmp_path: Path) -> None:
    """V7 has no magic or prefix and marks folders by a slash; some programs computed checksums of signed bytes."""
    signed = header(b"\xe9\xff.jpg", 2, magic=b"")
    signed[148:156] = b"%06o\0 " % (sum(signed[:148]) + sum(signed[156:]) + 256 - 512)
    loose = header(b"c.jpg", magic=b"", size_field=b"         4 \0")
    path = put(
        tmp_path / "x.tar",
        *(entry(b"d/", b"", b"\0", magic=b""), entry(b"d/a.jpg", b"a", b"\0", magic=b"")),
        *(signed, pad(b"bb"), loose, pad(b"cccc")),
        entry(b"e.jpg", b"", magic=b"ustar  \0", prefix=b"12345670123"),  # GNU headers store times there
        entry(b"f.jpg", b"", prefix=b"folder"),
    )
    members, skipped = read(path)
    assert [(m.name, m.size) for m in members] == [
        *((b"d/a.jpg", 1), (b"\xe9\xff.jpg", 2), (b"c.jpg", 4), (b"e.jpg", 0), (b"folder/f.jpg", 0)),
    ]
    assert skipped == {FOLDER: 1, NO_END: 1}
    ours = [m for m in members if m.name != b"e.jpg"]  # tarfile mistakes its times for a folder
    assert ours == [m for m in by_tarfile(path) if not m.name.endswith(b"e.jpg")]


def test_members_of_random_sizes_and_names_are_read(tmp_path: Path) -> None:
    random_ = random.Random(7)
    for trial in range(10):
        files = [
            (
                "k" * random_.choice([1, 30, 99, 100, 101, 250]) + f"{i}.jpg",
                bytes(random_.choice([0, 1, 511, 512, 513, 9000])),
            )
            for i in range(random_.randrange(40))
        ]
        path = write_tar(tmp_path / f"{trial}.tar", files, random_.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        assert read(path)[0] == by_tarfile(path)


# ---- links ----


def test_hard_links_use_the_content_of_the_earlier_member(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jpg").write_bytes(b"a" * 700)
    os.link(tmp_path / "data/a.jpg", tmp_path / "data/b.jpg")
    members, skipped = read(gnu_tar(tmp_path / "x.tar", tmp_path / "data"))
    assert [(m.name, m.start, m.size) for m in members] == [
        (n, members[0].start, 700) for n in (b"./a.jpg", b"./b.jpg")
    ]
    assert skipped == {FOLDER: 1}


def test_hard_links_without_an_earlier_member_are_counted(tmp_path: Path) -> None:
    long = b"t" * 150 + b".jpg"
    path = put(
        tmp_path / "x.tar",
        entry(b"forward.jpg", kind=b"1", linkname=b"a.jpg"),
        entry(b"a.jpg", b"1"),
        entry(b"a.jpg", b"22"),  # added by tar -r: the later one counts
        entry(b"b.jpg", kind=b"1", linkname=b"a.jpg"),
        entry(b"c.jpg", kind=b"1", linkname=b"b.jpg"),
        pax({b"path": long}),
        entry(b"t", b"333"),
        pax({b"linkpath": long}),
        entry(b"d.jpg", kind=b"1", linkname=b"t"),
        entry(b"././@LongLink", long + b"\0", b"K"),
        entry(b"e.jpg", kind=b"1", linkname=b"t"),
        END,
    )
    members, skipped = read(path)
    assert [(m.name, m.size) for m in members if m.name != long] == [
        *((b"a.jpg", 1), (b"a.jpg", 2), (b"b.jpg", 2), (b"c.jpg", 2), (b"d.jpg", 3), (b"e.jpg", 3)),
    ]
    assert skipped == {"broken link": 1}


def test_links_and_folders_have_no_content_even_with_a_size(tmp_path: Path) -> None:
    """Some programs write the size of the linked file or of the folder's contents."""
    path = put(
        tmp_path / "x.tar",
        entry(b"a.jpg", b"1" * 600),
        header(b"b.jpg", 600, b"1", linkname=b"a.jpg"),
        header(b"d/", 700, b"5"),
        header(b"c.jpg", 600, b"2", linkname=b"a.jpg"),
        entry(b"e.jpg", b"2"),
        END,
    )
    members, skipped = read(path)
    assert [(m.name, m.size) for m in members] == [(b"a.jpg", 600), (b"b.jpg", 600), (b"e.jpg", 1)]
    assert skipped == {FOLDER: 1, "link": 1}
    assert [m for m in members if m.name != b"b.jpg"] == by_tarfile(path)


# ---- refusals ----


@pytest.mark.parametrize(
    "options", [["--format=gnu"], *(["--format=posix", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0"))]
)
def test_sparse_members_are_refused(tmp_path: Path, options: list[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with (folder / "holes.jpg").open("wb") as file:
        file.write(b"x" * 4096)
        file.truncate(1 << 20)
    error = refusal_of(gnu_tar(tmp_path / "x.tar", folder, "--sparse", "--hole-detection=raw", *options))
    assert error.code == "E-UNSUPPORTED"
    assert "holes.jpg" in error.cause
    assert "--sparse" in error.fix


# ---- ends ----


def test_a_tar_cut_anywhere_is_refused_or_complete(tmp_path: Path) -> None:
    parts = [entry(b"a.jpg", b"a" * 700), pax({b"path": b"b" * 200}), entry(b"b", b"b" * 512), entry(b"c.jpg", b"c")]
    whole = b"".join(parts)
    b_end = len(parts[0]) + len(parts[1]) + 2 * BLOCK
    complete = {**dict.fromkeys(range(BLOCK + 700, 3 * BLOCK + 1), 1), 0: 0, b_end: 2}  # padding may be missing
    complete |= dict.fromkeys(range(len(whole) - BLOCK + 1, len(whole) + 1), 3)
    bounds = (0, BLOCK + 700, 3 * BLOCK, b_end, len(whole) - BLOCK + 1, len(whole))
    for length in sorted({*range(0, len(whole), 37), *bounds}):
        path = put(tmp_path / "x.tar", whole[:length])
        if length in complete:
            assert len(read(path)[0]) == complete[length], length
        else:
            assert refusal_of(path).code == ("E-TRUNC" if length >= BLOCK else "E-FORMAT"), length


def test_data_after_the_end_is_counted_and_not_read(tmp_path: Path) -> None:
    one = entry(b"a.jpg", b"1")
    for parts, after in (
        ([one, END], 0),
        ([one, END, bytes(20 * BLOCK)], 0),
        ([one, bytes(BLOCK)], 0),
        ([one, END, one], 1),
        ([one], 0),
    ):
        members, skipped = read(put(tmp_path / "x.tar", *parts))
        assert [m.name for m in members] == [b"a.jpg"]
        assert (skipped[AFTER_END], skipped[NO_END]) == (after, len(parts) == 1)


def test_a_tar_that_shrinks_meanwhile_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"{i}.jpg", bytes(5000)) for i in range(9)])
    with open_tar(os.fsencode(path), ObjectStore()) as tar:
        members = TarReader(tar).members()
        assert next(members).name == b"0.jpg"
        os.truncate(path, 20000)
        with pytest.raises(LoaderError, match=r"E-CHANGED.*shrank"):
            list(members)
        path.write_bytes(b"")
        os.truncate(path, tar.container.size)
        os.utime(path, ns=(tar.container.version.number, tar.container.version.number))


# ---- mutations ----


def test_mutated_headers_give_an_error_or_members_within_the_file(tmp_path: Path) -> None:
    """A short run by default; the environment variable PENSTOCK_FUZZ sets the number of rounds."""
    seeds = [
        write_tar(
            tmp_path / f"{form}.tar",
            [(n, b"x" * 300) for n in [*NAMES[:5], *([LONG] if form != "ustar" else [])]],
            FORMATS[form],
        )
        for form in FORMATS
    ]
    links = (
        entry(b"a.jpg", b"1") + entry(b"b.jpg", kind=b"1", linkname=b"a.jpg") + pax({b"size": b"1"}) + entry(b"c", b"c")
    )
    blobs = [path.read_bytes()[: 24 * BLOCK] for path in seeds] + [links]
    random_ = random.Random(1)
    results: Counter[str] = Counter()
    path = tmp_path / "fuzz.tar"
    for _ in range(int(os.environ.get("PENSTOCK_FUZZ", "1000"))):
        data = bytearray(random_.choice(blobs))
        at = random_.randrange(len(data) // BLOCK) * BLOCK
        for _ in range(random_.choice([1, 1, 2, 8])):
            data[at + random_.randrange(BLOCK)] = random_.choice(
                [0, 32, 48, 55, 57, 0x80, 0xFF, random_.randrange(256)]
            )
        if random_.random() < 0.3:
            data[at + 156] = random_.choice(b"01234567LKxgXSMNDV\0")
        if random_.random() < 0.9:  # so that more than the checksum is tested
            data[at : at + BLOCK] = seal(data[at : at + BLOCK])
        if random_.random() < 0.2:
            del data[random_.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            members, _ = read(path)
        except LoaderError as error:
            results[error.code] += 1
        else:
            results["read"] += 1
            assert all(m.size >= 0 and m.start >= BLOCK and m.start + m.size <= len(data) for m in members)
    assert results["read"] > 50
    assert {"E-TRUNC", "E-CORRUPT", "E-FORMAT", "E-UNSUPPORTED"} <= results.keys() <= {*results, "E-CHANGED"}


def test_only_headers_are_read(tmp_path: Path) -> None:
    """At most one window is read per member of 1 MB, counted by /proc."""

    def count_bytes() -> int:
        return int(Path("/proc/thread-self/io").read_text().split()[1])

    path = write_tar(tmp_path / "x.tar", [(f"{i}.jpg", bytes(1 << 20)) for i in range(20)])
    before = count_bytes()
    assert len(read(path)[0]) == 20
    assert count_bytes() - before < 200_000


# ---- requests ----


def count_requests(path: Path, labels: tuple[bytes, ...] = ()) -> tuple[list[Member], list[int]]:
    """Return the members of a tar as if it was at a URL, whose `labels` are read; and the bytes of each request."""
    data, requests = path.read_bytes(), list[int]()

    def read(start: int, count: int) -> bytes:
        assert 0 <= start < len(data)
        requests.append(len(data[start : start + count]))
        return data[start : start + count]

    tar = OpenTar(Container.of_file(os.fsencode(path), path.stat()), read, MOST_REMOTE)
    reader, members = TarReader(tar), list[Member]()
    for member in reader.members():
        members.append(member)
        if member.name.endswith(labels or b"\0"):
            assert reader.read(member.start, member.size) == data[member.start : member.start + member.size]
    return members, requests


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("image_bytes", "label_bytes", "most_requests", "most_share"),
    [
        (110_000, (2, 3), 1.05, 0.05),  # requests per sample, share of the tar
        (1_000_000, (2, 3), 1.05, 0.005),
        (300_000, (2_000, 9_000), 1.25, 0.08),
        (110_000, (30_000, 30_001), 1.25, 0.6),
        (30_000, (2, 3), 0.1, 1.0),
        (1_000, (2, 3), 0.05, 1.0),
    ],
)
def test_requests_read_headers_with_labels_and_small_members_whole(
    tmp_path: Path,
    form: str,
    image_bytes: int,
    label_bytes: tuple[int, int],
    most_requests: float,
    most_share: float,
) -> None:
    random_, num = random.Random(3), 200
    files = [
        file
        for i in range(num)
        for file in (
            (f"{i:04d}.json", bytes(random_.randrange(*label_bytes))),
            (f"{i:04d}.jpg", bytes(int(image_bytes * random_.uniform(0.7, 1.3)))),
        )
    ]
    path = write_tar(tmp_path / "x.tar", files, FORMATS[form])
    members, requests = count_requests(path, (b"json",))
    assert members == read(path)[0]
    assert len(requests) <= num * most_requests + 6
    assert sum(requests) <= path.stat().st_size * most_share


def test_random_tars_are_read_by_requests_as_from_the_disk(tmp_path: Path) -> None:
    random_ = random.Random(11)
    for trial in range(40):
        largest = random_.choice([10, 3_000, 200_000])
        names = [
            "k" * random_.choice([1, 30, 99, 101, 250]) + f"{i}{random_.choice(['.cls', '.jpg'])}" for i in range(30)
        ]
        files = [(name, random_.randbytes(random_.choice([0, 511, random_.randrange(largest)]))) for name in names]
        path = write_tar(tmp_path / "x.tar", files, random_.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        assert count_requests(path, (b"cls",))[0] == read(path)[0], trial


def test_a_single_large_label_does_not_enlarge_all_requests(tmp_path: Path) -> None:
    files = [(f"{i}.{s}", bytes(200_000 if s == "jpg" else 60_000 * (i == 5))) for i in range(300) for s in SAMPLE]
    path = write_tar(tmp_path / "x.tar", files, tarfile.USTAR_FORMAT)
    _, requests = count_requests(path, (b"json",))
    assert len(requests) < 320
    assert np.mean(requests[-100:]) < 5000
