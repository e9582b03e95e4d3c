"""JPEGs with sound header and markers, but image data that cannot be decoded, or only with repairs."""

from __future__ import annotations

import random

import jpeg_parts as jp
import simplejpeg

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg.header import check_markers, parse_header
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

KINDS = ("no quantiser", "unknown quantiser", "overfull Huffman table", "unknown component", "short restart interval")


def make_undecodable(data: bytes, kind: str) -> bytes:
    """Damage a file so that libjpeg fails after it has read the header; only decoding reveals that."""
    places = {marker: start for marker, start, _ in jp.segments(data)}
    out = bytearray(data)
    if kind == "no quantiser":
        out = bytearray(jp.remove_segments(data, jp.DQT))
    elif kind == "unknown quantiser":
        out[places[next(marker for marker in (jp.SOF0, jp.SOF2) if marker in places)] + 12] = 3
    elif kind == "overfull Huffman table":
        out[places[jp.DHT] + 5 : places[jp.DHT] + 21] = b"\xff" * 16
    elif kind == "unknown component":
        out[places[jp.SOS] + 5] = 9
    else:
        assert kind == "short restart interval"
        out[2:2] = jp.segment(jp.DRI, b"\0")
    return bytes(out)


def break_behind_the_scan(data: bytes) -> bytes:
    """A one-scan JPEG with an impossible Huffman table before its end: libjpeg fails if it reads that far."""
    return data[:-2] + jp.segment(jp.DHT, b"\0" + b"\xff" * 16 + bytes(40)) + jp.EOI


def make_repairable(data: bytes, seed: int) -> bytes:
    """Damage a scan so that libjpeg repairs it with a warning: all our decoders accept it."""
    draw, decoder, header = random.Random(seed), ImageDecoder(ImagePipeline()), parse_header(data)
    while True:
        out = bytearray(data)
        at = draw.randrange(header.scan_offset, len(data) - 20)
        out[at : at + 8] = bytes(draw.choice(range(255)) for _ in range(8))
        try:
            simplejpeg.decode_jpeg(bytes(out), "RGB", strict=True)
        except ValueError:
            try:
                check_markers(bytes(out), header)
                decoder.full(bytes(out))
            except LoaderError:
                continue
            return bytes(out)
