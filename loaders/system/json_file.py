"""Untrusted JSON as typed values, and atomic writing of JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from penstock.loaders.system.durable_file import replace_file

T = TypeVar("T")
# An integer from 0 to 2**63 - 1: a larger one overflows when it is converted to a float.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# Text that represents bytes, as UTF-8 with surrogateescape.
ByteText = Annotated[str, msgspec.Meta(pattern="^[^\ud800-\udc7f\udd00-\udfff]*\\Z")]


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Return `text` as a value of `kind`, such as a dataclass or `dict[str, int]`, with every field's type checked.

    Unknown fields are ignored. Raises ValueError, in one line that names the field, for invalid JSON, wrong or
    missing fields, and nesting that is too deep.
    """
    try:
        # Not msgspec's own reader, because it refuses text that represents bytes (see ByteText).
        return msgspec.convert(json.loads(text), kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def write_json(path: str | os.PathLike[str], document: Mapping[str, object]) -> None:
    """Write `document` as indented JSON to `path`, completely or not at all; create a missing folder. Raises OSError.

    A link, a pipe or a device, such as /dev/stdout, is written to instead of replaced.
    """
    file, text = Path(path), json.dumps(document, indent=2).encode() + b"\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        file.write_bytes(text)
    else:
        replace_file(os.fsencode(file), text, private=False)
