"""Refused tars: the error's code, tar or sample, and words."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import re
from bz2 import compress as bzip2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_folder import photo
from tar_files import END, entry, header, pax, write_tar

from penstock.loaders import open_source
from penstock.pipelines.errors import LoaderError

PHOTO = photo(0)
NOT_KNOWN = type("NAType", (), {})()  # the name that pandas uses
FIRST, CLS = entry(b"first.jpg", b"1"), {"cls": b"1"}
PLAIN = bytes(entry(b"a.jpg", b"1") + END)
Members = list[tuple[str, bytes]]
Case = tuple[dict[str, Any], dict[str, Any], str]  # tars, options, and the error as a pattern


def refuse(tars: Any, code: str, where: str = "x.tar", words: str = "", **options: Any) -> Case:
    """tars: name -> members or bytes, or only those of x.tar; where: end of the path; "..." in words: any text."""
    path = f".* path='[^']*{re.escape(where)}'" if where else ""
    text = ".*".join(map(re.escape, words.split("...")))
    return tars if isinstance(tars, dict) else {"x.tar": tars}, options, f"{code}{path}.*{text}"


def sample(
    samples: dict[str, dict[str, bytes]], key: str, words: str = "", code: str = "E-FORMAT", **more: Any
) -> Case:
    """Refuse samples (key -> suffix -> content, each with a .jpg); the error names one of them."""
    members = [(f"{key}.{suffix}", data) for key in samples for suffix, data in (samples[key] | {"jpg": PHOTO}).items()]
    return refuse(members, code, f"x.tar:{key}.jpg", words, **more)


def members(names: str, where: str, words: str = "") -> Case:
    """Refuse members with these names; the last digit of a key is its label."""
    files = [(name, name[-5:-4].encode() if name.endswith("cls") else name.encode()) for name in names.split()]
    return refuse(files, "E-FORMAT", where, words)


def json_of(value: Any, field: str = "label") -> dict[str, bytes]:
    return {"json": json.dumps({field: value}).encode()}


FLAW = bytes(FIRST) + b"x" + bytes(entry(b"b.jpg", b"2"))[1:]
CUT = bytes(FIRST) + bytes(header(b"b.jpg", 1000)) + b"2" * 600
HEADERS = [
    *(
        refuse(compress(PLAIN), "E-FORMAT", words=f"compressed with {name}...decompress it")
        for name, compress in (("gzip", gzip.compress), ("bzip2", bzip2), ("xz", lzma.compress))
    ),
    refuse(b"\x28\xb5\x2f\xfd" + PLAIN, "E-FORMAT", words="compressed with zstd...decompress it"),
    *(refuse({name: gzip.compress(PLAIN)}, "E-FORMAT", name, "decompress") for name in ("x.tgz", "x.tar.zst")),
    *(
        refuse(content, "E-FORMAT", words="not a tar file")
        for content in (b"\xff\xd8\xff" + bytes(5000), b"<html>", b"x" * 512, b"1" * 2000)
    ),
    *(
        refuse({"a.tar": PLAIN, "x.tar": content}, "E-NODATA", words="the tar contains no file")
        for content in (b"", bytes(1024), bytes(10240), bytes(entry(b"d/", kind=b"5") + END))
    ),
    refuse(FLAW, "E-CORRUPT", words="the header at byte 1,024 is damaged"),
    refuse(bytes(entry(b"a.jpg", b"1", b"M") + END), "E-UNSUPPORTED"),  # one of several volumes
    refuse(CUT, "E-TRUNC", words="the tar is truncated: the member 'b.jpg' needs 400 more bytes"),
    *(
        refuse(bytes(FIRST + block + END), "E-CORRUPT")
        for block in (
            header(b"a.jpg", size_field=b"\xff" * 12),
            header(b"a.jpg", size_field=b"0000000000-1"),
            header(b"a.jpg", size_field=b"00000-00001\0"),
            header(b"a.jpg", size_field=b"-0000000001\0"),
            pax({b"size": b"-1"}) + header(b"a.jpg", 0),
            pax({b"size": b"many"}) + header(b"a.jpg", 0),
            entry(b"x", b"8 path=a\n", b"x") + header(b"a.jpg", 0),
            entry(b"x", b"0 path=a\n", b"x") + header(b"a.jpg", 0),
            entry(b"x", b"6 a=b\n0 path=a\n", b"x") + header(b"a.jpg", 0),
            entry(b"x", b"-9 path=a\n", b"x") + header(b"a.jpg", 0),
            entry(b"x", b"path", b"x") + header(b"a.jpg", 0),
            header(b"x", 2 << 20, b"L") + bytes(2 << 20) + header(b"a.jpg", 0),
            header(b"x", kind=b"L", size_field=b"-0000000512\0") + header(b"a.jpg", 0),
        )
    ),
]
SKIPPED = "no sample in 2 tar files, skipped: 2 other suffix, 1 sample without an image, 2 tar without samples"
LOST = "the sample has no .cls member; 2 of the 2 samples have no label; 'labels/0.cls' has the key of no image"
TWICE = "two members have the same key and suffix: "
KEYS = [
    refuse({"0.tar": [("a.txt", b"")], "1.tar": [("a.txt", b""), ("b.mp3", b"1")]}, "E-NODATA", "", SKIPPED),
    members("0.png 1.png 1.cls", ":0.png"),
    members("0.png 0.cls 1.png 2.png 2.cls", ":1.png"),
    members("0.png 0.cls 1.png", ":1.png"),
    members("a/0.png b/1.png b/1.cls", ":a/0.png"),
    members("images/0.png images/1.png labels/0.cls labels/1.cls", ":images/0.png", LOST),
    members("images/0.png images/1.png labels/0.png labels/1.png", ":images/0.png"),
    members("images/0.png masks/0.png", ":images/0.png"),
    members("0.png 1.cls", ":0.png"),
    members("0.png 0.cls 0.png", "", f"{TWICE}'0.png' and '0.png'"),
    members("0.png 0.cls 1.png 1.cls 0.PNG", "", f"{TWICE}'0.png' and '0.PNG'"),
    members("0.png 0.cls 1.png 1.cls 0.CLS", "", f"{TWICE}'0.cls' and '0.CLS'"),
]
COUNTED = "the field 'label' of its .json member is null or empty; 2 of the 5 samples have no label...leave_out"
EMPTY = "empty; 3 of the 3 samples have no label"
THREE: dict[str, dict[str, bytes]] = {"a/0": {}, "a/1": {}, "./b/2": {}}
BROKEN = (b"", b"[1]", b"3", b"{}", b'{"label": null}', b'{"label": {}}', b'{"label": NaN}', b"{" * 9, b"[" * 99999)
LABELS = [
    *(
        sample({"a": CLS, "b": {"cls": content}, "c": CLS}, "b", words)
        for content, words in (
            (b"", "is empty"),
            (b"1\n2", "more than one line"),
            ("1".encode("utf-16"), "not text in UTF-8"),
            (pickle.dumps(1), "not text in UTF-8"),
            (b"1" * 20, "too large for a class number"),
            (b"-1", "is negative"),
            (b"5000000", "too large for a class number"),
        )
    ),
    sample({"a": {"cls": b"0.5"}, "b": {"cls": b"x"}, "c": CLS}, "b", "label 'x' is a name, but label '0.5' of"),
    sample({"a": CLS, "b": {}, "c": CLS}, "b", "has no .cls member"),
    *(sample({"a": {"json": text}, "b": json_of(1)}, "a", label="json:label") for text in BROKEN),
    *(sample({"a": {"json": text}, "b": json_of(1)}, "a") for text in BROKEN),
    *(sample({"b": json_of(1), "c": {"json": text}}, "c") for text in BROKEN),
    sample({str(n): json_of(value) for n, value in enumerate([1, None, 2, float("nan"), 3])}, "1", COUNTED),
    *(  # neither the folder nor a single class replaces them
        sample(dict.fromkeys(("a/0", "b/1", "c/2"), empty), "a/0", EMPTY)
        for empty in (json_of(None), {"cls": b""}, json_of(float("nan"), "cls"))
    ),
    refuse(
        {"a.tar": [("x/0.cls", b"1"), ("x/0.jpg", PHOTO)], "b.tar": [("y/0.jpg", PHOTO), ("y/0.txt", b"1")]},
        *("E-FORMAT", "", "the tars store labels differently: cls in 'a.tar', folder in 'b.tar'"),
    ),
    refuse(
        {"a.tar": [("0.cls", b"1"), ("0.jpg", PHOTO)], "b.tar": [("1.jpg", PHOTO), ("2.jpg", PHOTO)]},
        *("E-FORMAT", "", "missing_labels='leave_out'"),
    ),
    refuse([("0.jpg", PHOTO)], "E-FORMAT", "", "no member is in a folder", label="folder"),
    refuse(
        {f"{name}.tar": [("000.jpg", PHOTO), (f"{name}01.jpg", PHOTO)] for name in "ab"},
        *("E-FORMAT", "b.tar:000.jpg", "the key '000' of the table also belongs to '000.jpg'"),
        label={"000": 0, "a01": 1, "b01": 1},
    ),
    sample({"0": {}}, "0", "the table has two labels for it, under '0.jpg' and under '0'", label={"0": 0, "0.jpg": 1}),
    sample(THREE, "a/1", code="E-MISUSE", label={"a/0": 1, "b/2": 1}),
    *(
        sample(THREE, "a/1", code="E-MISUSE", label={"a/0": "cat", "a/1": missing, "b/2": "cat"})
        for missing in (None, float("nan"), "", NOT_KNOWN, np.float32("nan"))
    ),
    sample(THREE, "./b/2", "not one of classes", label="folder", classes=["a"]),
    sample(THREE, "./b/2", "has no name", label={"a/0": 0, "a/1": 0, "b/2": 2}, classes=["x", "y"]),
]


@pytest.mark.parametrize(("tars", "options", "words"), HEADERS + KEYS + LABELS)
def test_invalid_tars_are_refused(tmp_path: Path, tars: dict[str, Any], options: dict[str, Any], words: str) -> None:
    for name, content in tars.items():
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            write_tar(tmp_path / name, content)
    for spec in [tmp_path, str(tmp_path / "*.tar")] if len(tars) > 1 else [tmp_path / next(iter(tars))]:
        with pytest.raises(LoaderError, match=f"^LoaderError.{words}[^\n]*$"):
            open_source(spec, **options)


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"image": value}, "image must") for value in (7, "", ";", ["jpg"], "*", "*.jpg;png", "*.left.jpg", "*.*")),
    *(({"classes": value}, "classes must") for value in ("dog", [], {"a", "b"}, [1])),
    *(({"rescan": value}, "rescan must") for value in (1, "no")),
    *(({"max_file_bytes": value}, "max_file_bytes must") for value in (0, 1.5)),
    ({"allow_empty": True}, "no option allow_empty: it accepts image, label"),
    *(
        ({"label": label}, "several labels must be a list of different 'json:FIELD' and 'cls', got")
        for label in ([], ["cls", "cls"], ["cls", "folder"])
    ),
    *(
        ({"label": label}, r"label must be 'cls', 'json:FIELD', a list of these, 'folder', 'shard', a dict .*, got")
        for label in ("clss", 7, "absent.csv")
    ),
]
# Tables of labels: text, and words of the error.
MORE = "a first line with the column names 'key' and 'label', got"
TABLES = [
    ("id,split,label\na/0,train,dog\na/1,train,cat\nb/2,val,dog\n", MORE),
    (",image,label\n0,a/0,dog\n1,a/1,cat\n2,b/2,dog\n", MORE),
    ("a/0,dog\na/1,cat,striped\nb/2,dog\n", MORE),
    ("key,label,label\na/0,dog,1\na/1,cat,2\nb/2,dog,3\n", "2 columns of the table are named 'label'"),
    ("\ufeffkey,label\n000,1\na01,2\n000,1\n", "must have each key once, but '000' occurs twice"),
    ("a,1\nb\n", re.escape("must have a key and a label in each line, got ['b']")),
]


@pytest.mark.parametrize(("options", "words"), WRONG + [({"label": text}, words) for text, words in TABLES])
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"{key}.jpg", PHOTO) for key in ("a/0", "a/1", "./b/2")])
    if "\n" in str(options.get("label")):
        (tmp_path / "labels.csv").write_text(options["label"])
        options = {"label": tmp_path / "labels.csv"}
    with pytest.raises(ValueError, match=words):
        open_source(path, **options)
