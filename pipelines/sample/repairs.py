"""Asks libjpeg what it repairs in a JPEG, for decoders that do not tell."""

from __future__ import annotations

import importlib

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.jpeg.strips import end_at_restart


def first_message(data: bytes, header: jpeg.JpegHeader, rows: int) -> str | None:
    """Return libjpeg's first warning while it decodes the rows above `rows`, or its error; "" if it has none to give.

    None where simplejpeg is missing. Takes about two thirds of the time of decoding. Warnings about metadata are left
    out, and sampling factors for which TurboJPEG has no name are an error to it.
    """
    try:
        decoder = importlib.import_module("penstock.pipelines.sample.decode_simplejpeg")
    except LoaderError:
        return None
    part = end_at_restart(jpeg.stop_below(data, header, rows), header, rows)
    message: str = decoder.first_message(jpeg.scans_alone(part, header))
    return message
