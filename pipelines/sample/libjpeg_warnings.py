"""Asks libjpeg for its first warning about a JPEG, for decoders that do not report it."""

from __future__ import annotations

import importlib

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.jpeg.strips import end_at_restart


def find_first_message(data: bytes, header: jpeg.JpegHeader, rows: int) -> str | None:
    """Return libjpeg's first warning or error while it decodes the rows above `rows`; "" if there is none.

    None if simplejpeg is missing. Takes about two thirds of the time of decoding. Warnings about metadata are left out.
    Sampling factors that TurboJPEG does not know are an error.
    """
    try:
        decoder = importlib.import_module("penstock.pipelines.sample.decode_simplejpeg")
    except LoaderError:
        return None
    part = end_at_restart(jpeg.stop_below(data, header, rows), header, rows)
    message: str = decoder.find_first_message(jpeg.keep_scans_only(part, header))
    return message
