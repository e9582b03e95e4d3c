"""Texts in files: the option `text` as a suffix or a field of JSON, and the text in the content of a file."""

from __future__ import annotations

import codecs
import json
import os

from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown

JSON = "json:"
WHOLE_JSON = "text='json' does not name a field: pass text='json:FIELD'"  # begins the refusal of a whole JSON file
_LIST = b"\0"  # begins a list of texts in JSON
_SHOWN = 8  # number of fields in an error


def parse_place(text: object) -> tuple[bytes, str]:
    """Return the suffix of the files with texts, and the field of their JSON object, "" for plain text.

    text: a suffix such as "txt", or "json:FIELD". Raises ValueError.
    """
    if isinstance(text, str) and text.startswith(JSON) and text != JSON:
        return b"json", text[len(JSON) :]
    if isinstance(text, str) and text.strip(".") and not set("/:") & set(text):
        return os.fsencode(text.lower().lstrip(".")), ""
    raise ValueError(f"text must be a suffix such as 'txt', or 'json:FIELD', got {shown(text)}")


class Twice:
    """The value of a name that occurs twice in a JSON object, so that no one can say which value is meant."""

    def __repr__(self) -> str:
        return "there twice"


def _take_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                found[name] = Twice()
            seen.add(name)
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_take_once)


def load_json(content: str | bytes) -> object:
    """Return the value of JSON text; a name that an object has twice gets the value Twice. Raises ValueError."""
    text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_json(content: bytes) -> object:
    """Return the value of a JSON file as load_json does; None for other text."""
    try:
        return load_json(content)
    except ValueError:
        return None


def encode_texts(content: object, field: str, what: str) -> bytes | None:
    """Return a text, or a list of texts, for read_texts; None without the field, b"" for a missing text.

    content: the bytes of a file, or of a JSON file the value from parse_json. what: the name of its place. Raises
    ValueError with the cause.
    """
    if field:
        if not isinstance(content, dict):
            raise ValueError(f"{what} is not a JSON object with field {field!r}")
        if field not in content:
            return None
        content, what = content[field], f"the field {field!r} of {what}"
        if isinstance(content, list):
            return _LIST + json.dumps(content, default=repr).encode() if content else b""
        if content is not None and not isinstance(content, str):
            raise ValueError(f"{what} is {shown(content)}, not a text")
        content = (content or "").encode("utf-8", "surrogatepass")
    if not isinstance(content, bytes):
        raise ValueError(f"{WHOLE_JSON}; {_describe_fields(content, what)}")
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not text in UTF-8 (byte {error.start})") from None
    if text.startswith("\0"):
        raise ValueError(f"{what} is not text")
    return text.encode()


def _describe_fields(content: object, what: str) -> str:
    """Return the fields of a JSON object in words."""
    if not isinstance(content, dict) or not content:
        return f"{what} is not a JSON object with fields"
    return f"the fields are {', '.join(map(printable, list(content)[:_SHOWN]))}{', ...' * (len(content) > _SHOWN)}"


def read_texts(found: bytes | None) -> object:
    """Return a text or a list of texts encoded by encode_texts; None for a missing one."""
    if not found:
        return None
    return json.loads(found[len(_LIST) :]) if found.startswith(_LIST) else found.decode()
