"""Reading JSON into typed values, and writing it atomically."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.loaders.system.json_file import ByteText, decode_json, write_json


@dataclass(frozen=True)
class Point:
    x: int
    name: str = ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"x": "1"}', "Expected `int`, got `str` - at `$.x`"),
        (b'{"x": 1.5}', "Expected `int`, got `float`"),
        (b'{"x": true}', "Expected `int`, got `bool`"),
        (b'{"name": "a"}', "missing required field `x`"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"x": 1', "Expecting"),
        (b"\xff", "decode byte"),
        (b'{"x": 1, "y": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("$", r"\$").replace("[", r"\[")) as caught:
        decode_json(text, Point)
    assert "\n" not in str(caught.value)


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert decode_json(b'{"x": 1, "y": [[]]}', Point) == Point(1)


def test_text_that_encodes_bytes_is_read() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert decode_json(json.dumps({"name": name}), dict[str, ByteText]) == {"name": name}
    with pytest.raises(ValueError, match="Expected `str` matching"):
        decode_json(b'{"name": "\\ud800"}', dict[str, ByteText])


def test_a_file_is_replaced_atomically_with_the_users_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_json(path, {"x": 1})
    assert json.loads(path.read_text()) == {"x": 1}
    before = os.umask(0o027)
    try:
        write_json(path, {"x": 2})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert json.loads(path.read_text()) == {"x": 2}
    assert list(path.parent.iterdir()) == [path]


def test_a_link_is_written_through_and_stays(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("target.json")
    write_json(tmp_path / "link.json", {"x": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "target.json").read_text()) == {"x": 1}
