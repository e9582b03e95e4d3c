"""Reads JSON that others may have written into typed values, and writes JSON files whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from penstock.loaders.system.durable_file import replace_file

T = TypeVar("T")
# An integer of 0 to 2**63 - 1: a larger one overflows where it meets a float.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# Text that stands for bytes, as UTF-8 with surrogateescape.
ByteText = Annotated[str, msgspec.Meta(pattern="^[^\ud800-\udc7f\udd00-\udfff]*\\Z")]


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Return `text` as a value of `kind`, such as a dataclass or `dict[str, int]`, with every field's type checked.

    Fields that `kind` does not know are ignored. Raises ValueError, in one line that names the field, for anything
    else: text that is no JSON, wrong or missing fields, and nesting too deep to be read.
    """
    try:
        # Not msgspec's own reader, which refuses text that stands for bytes (see ByteText).
        return msgspec.convert(json.loads(text), kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def write_json(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Write `document` as indented JSON to `path`, whole or not at all; a missing folder is made. Raises OSError.

    A link, a pipe or a device, such as /dev/stdout, is written to: replacing it would put a file in its place.
    """
    file, text = Path(path), json.dumps(document, indent=2).encode() + b"\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        file.write_bytes(text)
    else:
        replace_file(os.fsencode(file), text, private=False)
