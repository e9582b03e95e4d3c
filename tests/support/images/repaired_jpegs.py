"""JPEGs that libjpeg repairs: every decoder accepts them, and fills in missing data."""

from __future__ import annotations

import jpeg_parts as jp

from penstock.pipelines.jpeg.header import parse_header


def cut(data: bytes, share: float) -> bytes:
    """The file with only a share of its coded data and an end marker, as an interrupted download may leave it."""
    start = parse_header(data).scan_offset
    end = start + int((len(data) - 2 - start) * share)
    while end > start and data[end - 1] == 0xFF:
        end -= 1
    return data[:end] + jp.EOI


def remove_a_restart(data: bytes) -> bytes:
    at = data.index(b"\xff\xd2", parse_header(data).scan_offset)
    return data[:at] + data[at + 2 :]


def lengthen_segment(data: bytes) -> bytes:
    """The file with bytes before a restart marker that no MCU needs, as after a flipped bit."""
    at = data.index(b"\xff\xd1", parse_header(data).scan_offset)
    return data[:at] + b"\x55" * 40 + data[at:]
