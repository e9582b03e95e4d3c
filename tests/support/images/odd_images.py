"""A corpus of unusual images that every decoder setting must accept, with the pixels, or reject, with the code.

The decode contract: HxWx3 uint8 RGB always; alpha dropped; CMYK as Pillow's `convert("RGB")`; 16 bits scaled by
`>> 8`; the first frame of an animation; the format by magic bytes; EXIF orientation ignored unless applied; truncation
an error.
References are the arrays that were encoded, not a decoder's output.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache

import jpeg_parts as jp
import numpy as np
import simplejpeg
from jpeg_parts import Component
from PIL import Image
from stored_jpegs import stored_jpegs

ANY = "ANY"
"""Code of an image that may be accepted or refused with E-UNSUPPORTED, depending on the build of libjpeg."""
JFIF = jp.segment(jp.APP0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
CUT_PERCENT = (0.1, 2, 10, 50, 90, 99)


@dataclass(frozen=True, eq=False)
class OddImage:
    """One entry.

    code: None if each decoder setting must accept the bytes, otherwise the code of the LoaderError, or ANY.
    reference: HxWx3 uint8 if accepted, None if not; `tolerance` is the mean absolute difference allowed, in levels.
    oriented_reference: the same with EXIF orientation applied; None if nothing changes.
    """

    name: str
    data: bytes
    code: str | None
    reference: np.ndarray | None
    tolerance: float
    note: str
    oriented_reference: np.ndarray | None = None


def corpus() -> list[OddImage]:
    """Return all entries; the bytes are equal in each process with the same libraries."""
    return list(_corpus())


@lru_cache(maxsize=1)
def _corpus() -> tuple[OddImage, ...]:
    groups = (
        _subsampled_jpegs,
        _handmade_jpegs,
        _colour_space_jpegs,
        _extreme_sizes,
        _jpegs_with_odd_segments,
        _exif_orientations,
        _pngs,
        _other_formats,
        _animations,
        _empty_and_foreign,
        _cut_jpegs,
        _cut_others,
        _corrupt,
        _bombs,
        _unsupported,
    )
    return tuple(image for group in groups for image in group())


def scene(height: int, width: int) -> np.ndarray:
    """A smooth HxWx3 uint8 picture that changes with any flip, turn, inversion or swap of channels."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    red = 30 + 190 * x**2 + 20 * np.sin(9 * y)
    green = 215 - 170 * y + 25 * np.cos(7 * x)
    blue = 70 + 60 * np.exp(-20 * ((x - 0.25) ** 2 + (y - 0.2) ** 2)) + 50 * x * y
    return np.rint(np.stack([red, green, blue], axis=-1)).clip(0, 255).astype(np.uint8)


def textured(height: int, width: int) -> np.ndarray:
    """A scene with noise: JPEGs of it have a realistic share of entropy-coded data."""
    noise = np.random.default_rng(7).normal(0, 14, (height, width, 1))
    return (scene(height, width) + noise).clip(0, 255).astype(np.uint8)


def encoded(image: np.ndarray | Image.Image, fmt: str, **options: object) -> bytes:
    """`image` as a file, written by Pillow."""
    file = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(file, fmt, **options)
    return file.getvalue()


def jpeg(pixels: np.ndarray, **options: object) -> bytes:
    """A JPEG of quality 95, 4:4:4 by default."""
    return encoded(pixels, "JPEG", **{"quality": 95, "subsampling": 0, **options})


def luma(rgb: np.ndarray) -> np.ndarray:
    """HxWx3 uint8 grey of an RGB image by ITU-R BT.601: the expected pixels of a grey file."""
    grey = np.rint(jp.ycc(rgb)[0]).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def _accept(
    name: str, data: bytes, reference: np.ndarray, tolerance: float, note: str, oriented: np.ndarray | None = None
) -> OddImage:
    return OddImage(name, data, None, np.ascontiguousarray(reference, np.uint8), tolerance, note, oriented)


def _reject(name: str, data: bytes, code: str, note: str) -> OddImage:
    return OddImage(name, data, code, None, 0.0, note)


# ---- JPEG, accepted -------------------------------------------------------------------------------------------------


def _subsampled_jpegs() -> list[OddImage]:
    rgb = scene(61, 83)
    images = [
        _accept(f"jpeg_{s}", simplejpeg.encode_jpeg(rgb, 95, "RGB", s), rgb, tolerance, "odd size, ends within an MCU")
        for s, tolerance in (("444", 1.5), ("422", 1.5), ("420", 1.5), ("440", 1.5), ("411", 2.0))
    ]
    grey = luma(rgb)
    images.append(_accept("jpeg_grey", jpeg(grey[..., 0]), grey, 1.0, "one component"))
    options = {
        "optimised": {"optimize": True},
        "progressive": {"progressive": True, "subsampling": 2},
        "progressive_444": {"progressive": True},
        "restart_rows": {"restart_marker_rows": 1, "subsampling": 2},
        "restart_blocks": {"restart_marker_blocks": 3},
        "progressive_restart": {"progressive": True, "restart_marker_blocks": 5},
        "quality_100": {"quality": 100},
    }
    images += [_accept(f"jpeg_{n}", jpeg(rgb, **o), rgb, 1.5, f"Pillow with {o}") for n, o in options.items()]
    rough = jpeg(rgb, quality=30, subsampling=2)
    images.append(_accept("jpeg_quality_30", rough, rgb, 3.5, "coarsest tables"))
    grey_progressive = jpeg(grey[..., 0], progressive=True)
    images.append(_accept("jpeg_grey_progressive", grey_progressive, grey, 1.0, "one component, several scans"))
    return images


def _parts(planes: list[np.ndarray], factors: tuple[tuple[int, int], ...], ids: bytes = b"\1\2\3\4") -> list[Component]:
    return [Component(plane, ident, h, v) for plane, ident, (h, v) in zip(planes, ids, factors, strict=False)]


def _handmade_jpegs() -> list[OddImage]:
    rgb = scene(45, 70)
    planes, same = jp.ycc(rgb), ((1, 1),) * 4
    halved = ((2, 2), (1, 1), (1, 1))
    grey = [Component(planes[0], 1, 2, 2)]
    plain = {
        "non_interleaved": (_parts(planes, halved), {"interleaved": False}, "baseline, one scan per component"),
        "non_interleaved_restart": (_parts(planes, same), {"interleaved": False, "restart": 4}, "blocks are counted"),
        "extended_sequential": (_parts(planes, halved), {"sof": jp.SOF1}, "SOF1 with 8 bits"),
        "odd_ids": (_parts(planes, halved, b"\0\1\2"), {}, "component ids 0, 1, 2 instead of 1, 2, 3"),
    }
    images = [_accept(f"jpeg_{n}", jp.encode(p, head=JFIF, **o), rgb, 1.5, note) for n, (p, o, note) in plain.items()]
    images += [
        _accept("jpeg_bare", jp.encode(_parts(planes, halved)), rgb, 1.5, "neither JFIF nor Adobe marker"),
        _accept("jpeg_grey_factor_22", jp.encode(grey, head=JFIF), luma(rgb), 1.0, "one component that claims 2x2"),
    ]
    odd_factors = {
        "luma_below_chroma": ((1, 1), (2, 2), (2, 2)),
        "chromas_differ": ((2, 2), (2, 1), (1, 2)),
        "410": ((4, 2), (1, 1), (1, 1)),
        "thirds": ((3, 1), (1, 1), (1, 1)),
        "all_22": ((2, 2), (2, 2), (2, 2)),  # too many blocks for one MCU: one scan per component
    }
    for name, factors in odd_factors.items():
        data = jp.encode(_parts(planes, factors), head=JFIF, interleaved=name != "all_22")
        images.append(_accept(f"jpeg_factors_{name}", data, rgb, 2.0, f"sampling factors {factors}"))
    bare = jp.remove_segments(simplejpeg.encode_jpeg(rgb, 95, "RGB", "420"), jp.DHT)
    images.append(_accept("jpeg_no_dht", bare, rgb, 1.5, "a Motion JPEG frame: Huffman tables of the standard"))
    return images


def _adobe(transform: int) -> bytes:
    return jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


def _colour_space_jpegs() -> list[OddImage]:
    rgb = scene(45, 70)
    same, halved = ((1, 1),) * 4, ((2, 2), (1, 1), (1, 1), (2, 2))
    red_green_blue = [rgb[..., i] for i in range(3)]
    images = [
        _accept("jpeg_adobe_rgb", jp.encode(_parts(red_green_blue, same), head=_adobe(0)), rgb, 1.5, "transform 0"),
        _accept("jpeg_rgb_ids", jp.encode(_parts(red_green_blue, same, b"RGB")), rgb, 1.5, "ids R, G, B, no marker"),
        _accept("jpeg_adobe_ycc", jp.encode(_parts(jp.ycc(rgb), halved), head=_adobe(1)), rgb, 1.5, "transform 1"),
    ]
    # Ink 0 is none, 255 is full: R = (255 - C)(255 - K) / 255. Files store 255 - ink, as by Adobe and all others.
    key = np.rint(np.linspace(0, 120, 70)[None, :] * np.ones((45, 1))).astype(np.uint8)
    ink = 255 - rgb[:, ::-1]
    printed = np.rint((255.0 - ink) * (255.0 - key[..., None]) / 255).astype(np.uint8)
    plain = [255 - ink[..., i] for i in range(3)] + [255 - key]
    # libjpeg defines YCCK by RGB, the complement of CMY: with inverted values, this RGB is the ink itself.
    ycck = [*jp.ycc(ink), 255 - key]
    pillow = encoded(Image.merge("CMYK", [Image.fromarray(255 - p) for p in plain]), "JPEG", quality=95)
    images += [
        _accept("jpeg_cmyk_pillow", pillow, printed, 2.0, "CMYK as Pillow writes it, Adobe-inverted"),
        _accept("jpeg_cmyk_adobe", jp.encode(_parts(plain, same), head=_adobe(0)), printed, 1.5, "transform 0"),
        _accept("jpeg_cmyk_bare", jp.encode(_parts(plain, same)), printed, 1.5, "no Adobe marker: inverted too"),
        _accept("jpeg_ycck", jp.encode(_parts(ycck, same), head=_adobe(2)), printed, 1.5, "transform 2"),
        _accept("jpeg_ycck_420", jp.encode(_parts(ycck, halved), head=_adobe(2)), printed, 2.0, "chroma halved"),
    ]
    return images


def _extreme_sizes() -> list[OddImage]:
    images = []
    for height, width in ((1, 1), (1, 3000), (3000, 1), (2, 2), (7, 9), (17, 1), (1, 17), (8, 8), (16, 16)):
        rgb = np.ascontiguousarray(scene(max(height, 48), max(width, 48))[:height, :width])
        for subsampling in ("420", "444"):
            data = simplejpeg.encode_jpeg(rgb, 97, "RGB", subsampling)
            images.append(_accept(f"jpeg_{subsampling}_{width}x{height}", data, rgb, 2.5, "extreme size"))
        images.append(_accept(f"png_{width}x{height}", encoded(rgb, "PNG"), rgb, 0.0, "extreme size"))
    return images


def _jpegs_with_odd_segments() -> list[OddImage]:
    rgb = scene(61, 83)
    plain = jpeg(rgb, subsampling=2)
    exif = b"Exif\0\0"
    profile = b"ICC_PROFILE\0"
    chunks = [profile + bytes([i, 3]) + bytes(65000) for i in (1, 2, 3)]
    header = {
        "exif_garbage": jp.segment(jp.APP1, exif + b"\xde\xad\xbe\xef" * 9),
        "exif_far_offset": jp.segment(jp.APP1, exif + b"II*\0\xff\xff\xff\x7f"),
        "exif_endless_ifd": jp.segment(jp.APP1, exif + b"MM\0*\0\0\0\x08\xff\xff\x01\x12\0\3"),
        "exif_empty": jp.segment(jp.APP1, exif),
        "icc_garbage": jp.segment(jp.APP2, profile + b"\1\1" + b"no profile" * 5),
        "icc_part_of_many": jp.segment(jp.APP2, profile + b"\3\7" + bytes(40)),
        "icc_large": b"".join(jp.segment(jp.APP2, chunk) for chunk in chunks),
        "comment": jp.segment(jp.COM, b"\xff\xd8\xff\xd9 a comment that looks like a file"),
        "fill_bytes": b"\xff" * 5 + jp.segment(jp.COM, b"fill bytes before a marker"),
    }
    images = [_accept(f"jpeg_{n}", jp.insert(plain, extra), rgb, 1.5, "odd segment") for n, extra in header.items()]
    two_frames = Image.fromarray(rgb)
    mpo = encoded(two_frames, "MPO", save_all=True, append_images=[Image.fromarray(255 - rgb)], quality=95)
    tails = {
        "garbage": plain + b"\0garbage\xff\xff\xda" * 20,
        "zeros": plain + bytes(4096),
        "second_image": plain + jpeg(255 - rgb),
        "fill_before_eoi": plain[:-2] + b"\xff" * 3 + jp.EOI,
    }
    images += [_accept(f"jpeg_tail_{n}", data, rgb, 1.5, "bytes after, or before, EOI") for n, data in tails.items()]
    images.append(_accept("jpeg_mpo", mpo, rgb, 1.5, "multi-picture file of a phone: the first picture"))
    thumbnail = jp.insert(plain, exif_segment(thumbnail=jpeg(255 - rgb[::4, ::4])))
    images.append(_accept("jpeg_exif_thumbnail", thumbnail, rgb, 1.5, "a JPEG within the header"))
    return images


def exif_segment(orientation: int | None = None, *, big_endian: bool = False, thumbnail: bytes = b"") -> bytes:
    """An APP1 segment: the orientation tag in the first directory, a JPEG thumbnail in the second."""
    order = ">" if big_endian else "<"
    tiff = struct.pack(f"{order}2sHI", b"MM" if big_endian else b"II", 42, 8)
    entries = [] if orientation is None else [struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)]
    next_directory = 8 + 2 + 12 * len(entries) + 4
    tiff += struct.pack(f"{order}H", len(entries)) + b"".join(entries)
    tiff += struct.pack(f"{order}I", next_directory if thumbnail else 0)
    if thumbnail:
        start = next_directory + 2 + 3 * 12 + 4
        fields = ((0x0103, 6), (0x0201, start), (0x0202, len(thumbnail)))  # compression, offset, length
        tiff += struct.pack(f"{order}H", len(fields))
        tiff += b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in fields)
        tiff += struct.pack(f"{order}I", 0) + thumbnail
    return jp.segment(jp.APP1, b"Exif\0\0" + tiff)


def orient(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The upright picture of stored pixels, by the EXIF 2.3 table of the sides of row 0 and column 0."""
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],  # row 0 top, column 0 right
        3: lambda a: a[::-1, ::-1],  # bottom, right
        4: lambda a: a[::-1],  # bottom, left
        5: lambda a: a.swapaxes(0, 1),  # left, top
        6: lambda a: a.swapaxes(0, 1)[:, ::-1],  # right, top
        7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],  # right, bottom
        8: lambda a: a.swapaxes(0, 1)[::-1],  # left, bottom
    }
    return np.ascontiguousarray(turns[orientation](pixels))


def _exif_orientations() -> list[OddImage]:
    rgb = scene(61, 83)
    plain = jpeg(rgb, subsampling=2)
    images = []
    for value in range(1, 9):
        data = jp.insert(plain, exif_segment(value, big_endian=value % 2 == 0))
        note = "ignored by default, applied on demand"
        images.append(_accept(f"jpeg_orientation_{value}", data, rgb, 1.5, note, orient(rgb, value)))
    for value in (0, 9):
        data = jp.insert(plain, exif_segment(value))
        images.append(_accept(f"jpeg_orientation_{value}", data, rgb, 1.5, "no such orientation: as stored"))
    return images


# ---- other formats, accepted ----------------------------------------------------------------------------------------


def png(
    samples: np.ndarray, *, depth: int, colour: int, extra: bytes = b"", level: int = 9, interlaced: bool = False
) -> bytes:
    """A PNG from HxWxC samples (0 to 2**depth - 1), unfiltered. colour: 0 grey, 2 RGB, 3 palette, +4 with alpha."""
    height, width = samples.shape[:2]
    adam7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    passes = [samples[y::dy, x::dx] for y, x, dy, dx in adam7] if interlaced else [samples]
    rows = b"".join(b"\0" + _packed(row, depth) for part in passes if part.size for row in part)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    body = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(rows, level))
    return b"\x89PNG\r\n\x1a\n" + body + png_chunk(b"IEND", b"")


def _packed(row: np.ndarray, depth: int) -> bytes:
    if depth == 16:
        return row.astype(">u2").tobytes()
    bits = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, 8 - depth :]
    return np.packbits(bits.ravel()).tobytes()


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    """A PNG chunk with length and CRC."""
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def _pngs() -> list[OddImage]:
    rgb = scene(37, 50)
    grey = luma(rgb)[..., :1]
    alpha = np.rint(np.linspace(0, 255, 50)[None, :, None] * np.ones((37, 1, 1))).astype(np.uint8)
    deep = rgb.astype(np.uint16) * 256 + np.arange(50, dtype=np.uint16)[None, :, None] * 5
    deep_alpha = alpha.astype(np.uint16) * 257
    triple = np.repeat(grey, 3, axis=2)
    deep_grey = deep[..., 1:2]
    grey_alpha, high_byte = np.dstack([deep_grey, deep_alpha]), np.repeat(deep_grey >> 8, 3, 2)
    images = [
        _accept("png_rgb", png(rgb, depth=8, colour=2), rgb, 0.0, "PNG named .JPEG: the magic bytes decide"),
        _accept("png_interlaced", png(rgb, depth=8, colour=2, interlaced=True), rgb, 0.0, "Adam7"),
        _accept("png_rgba", png(np.dstack([rgb, alpha]), depth=8, colour=6), rgb, 0.0, "alpha is dropped"),
        _accept("png_grey", png(grey, depth=8, colour=0), triple, 0.0, "8 bits"),
        _accept("png_grey_alpha", png(np.dstack([grey, alpha]), depth=8, colour=4), triple, 0.0, "alpha is dropped"),
        _accept("png_rgb_16", png(deep, depth=16, colour=2), deep >> 8, 1.0, "scaled by >> 8"),
        _accept("png_rgba_16", png(np.dstack([deep, deep_alpha]), depth=16, colour=6), deep >> 8, 1.0, "alpha dropped"),
        _accept("png_grey_16", png(deep_grey, depth=16, colour=0), high_byte, 1.0, "not saturated"),
        _accept("png_grey_alpha_16", png(grey_alpha, depth=16, colour=4), high_byte, 1.0, "alpha dropped"),
    ]
    for depth in (1, 2, 4):
        levels = grey >> (8 - depth)
        full = np.repeat(levels * (255 // (2**depth - 1)), 3, axis=2)
        images.append(_accept(f"png_grey_{depth}", png(levels, depth=depth, colour=0), full, 0.0, f"{depth} bits"))
    key = png_chunk(b"tRNS", struct.pack(">HHH", *(int(v) for v in rgb[5, 5])))
    images.append(_accept("png_rgb_key", png(rgb, depth=8, colour=2, extra=key), rgb, 0.0, "a transparent colour"))
    for depth, see_through in ((8, False), (8, True), (4, True), (1, False)):
        index = (np.indices((37, 50)).sum(0) * 2**depth // 90 % 2**depth)[..., None]
        palette = scene(1, 256)[0, :: 256 // 2**depth][: 2**depth]
        extra = png_chunk(b"PLTE", palette.tobytes())
        extra += png_chunk(b"tRNS", bytes(range(2**depth))) if see_through else b""
        data = png(index, depth=depth, colour=3, extra=extra)
        name = f"png_palette_{depth}" + ("_alpha" if see_through else "")
        images.append(_accept(name, data, palette[index[..., 0]], 0.0, "the palette's colour for any alpha"))
    profile = png_chunk(b"iCCP", b"x\0\0" + zlib.compress(b"no profile"))
    images.append(_accept("png_icc_garbage", png(rgb, depth=8, colour=2, extra=profile), rgb, 0.0, "not looked at"))
    text = png_chunk(b"tEXt", b"Comment\0\xff\xd8\xff")
    trailing = png(rgb, depth=8, colour=2, extra=text) + b"trailing garbage"
    images.append(_accept("png_tail", trailing, rgb, 0.0, "bytes after IEND"))
    return images


def _other_formats() -> list[OddImage]:
    rgb = scene(37, 50)
    alpha = np.rint(np.linspace(0, 255, 50)[None, :, None] * np.ones((37, 1, 1))).astype(np.uint8)
    grey = luma(rgb)
    indexed = Image.fromarray(rgb).quantize(64)
    palette = np.asarray(indexed.getpalette(), np.uint8).reshape(-1, 3)
    colours = palette[np.asarray(indexed)]
    bmp = encoded(rgb, "BMP")
    # A negative height means rows from top to bottom: the picture turns upside down.
    top_down = bmp[:22] + struct.pack("<i", -37) + bmp[26:]
    bits, white = grey[..., 0] > 128, np.full(3, 255, np.uint8)
    exact = {"lossless": True, "exact": True}
    return [
        _accept("webp_lossless", encoded(rgb, "WEBP", **exact), rgb, 0.0, "WebP named .JPEG"),
        _accept("webp_lossy", encoded(rgb, "WEBP", quality=90), rgb, 3.0, "VP8"),
        _accept("webp_rgba", encoded(np.dstack([rgb, alpha]), "WEBP", **exact), rgb, 0.0, "alpha is dropped"),
        _accept("gif", encoded(indexed, "GIF"), colours, 0.0, "GIF named .JPEG"),
        _accept("gif_transparent", encoded(indexed, "GIF", transparency=3), colours, 0.0, "alpha is dropped"),
        _accept("gif_grey", encoded(grey[..., 0], "GIF"), grey, 0.0, "grey palette"),
        _accept("bmp", bmp, rgb, 0.0, "BMP named .JPEG"),
        _accept("bmp_top_down", top_down, rgb[::-1], 0.0, "negative height"),
        _accept("bmp_palette", encoded(indexed, "BMP"), colours, 0.0, "8-bit palette"),
        _accept("bmp_bits", encoded(Image.fromarray(bits), "BMP"), np.where(bits[..., None], white, 0), 0.0, "1 bit"),
    ]


def _animations() -> list[OddImage]:
    rgb = scene(37, 50)
    frames = [Image.fromarray(np.roll(rgb, 11 * i, axis=1)) for i in range(3)]
    later = {"save_all": True, "append_images": frames[1:], "duration": 40, "loop": 0}
    indexed = [frame.quantize(64) for frame in frames]
    palette = np.asarray(indexed[0].getpalette(), np.uint8).reshape(-1, 3)
    gif = encoded(indexed[0], "GIF", **{**later, "append_images": indexed[1:]})
    webp = encoded(frames[0], "WEBP", lossless=True, exact=True, **later)
    return [
        _accept("gif_animated", gif, palette[np.asarray(indexed[0])], 0.0, "first frame"),
        _accept("webp_animated", webp, rgb, 0.0, "first frame"),
        _accept("apng", encoded(frames[0], "PNG", **later), rgb, 0.0, "first frame"),
    ]


# ---- rejected -------------------------------------------------------------------------------------------------------


def _empty_and_foreign() -> list[OddImage]:
    rgb = scene(37, 50)
    page = b"<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head><body>no</body></html>\n"
    foreign = {
        "zeros": bytes(5000),
        "one_zero": b"\0",
        "html": page,
        "text": b"lorem ipsum dolor sit amet " * 40,
        "json": b'{"error": "quota exceeded"}',
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 37\nshowpage\n%%EOF\n",
        "eps_dos": b"\xc5\xd0\xd3\xc6" + struct.pack("<IIIIII", 30, 100, 0, 0, 0, 0) + bytes(200),
        "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 37, 50, 8, 3) + bytes(500),
        "big_tiff": b"II+\0\x08\0\0\0" + struct.pack("<Q", 16) + bytes(200),
        "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n",
        "wav": b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(28),
        "heif": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200),
        "jpeg2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(200),
        "zip": b"PK\3\4" + bytes(200),
        "ppm": b"P6\n50 37\n255\n" + rgb.tobytes(),
        "shifted_jpeg": b"\r\n" + jpeg(rgb),
    }
    images = [_reject("empty", b"", "E-EMPTY", "zero bytes"), _accept("tiff", encoded(rgb, "TIFF"), rgb, 0.0, "TIFF")]
    images.append(_reject("tiff_empty", b"MM\0*\0\0\0\x08" + bytes(500), "E-CORRUPT", "TIFF without an image"))
    return images + [
        _reject(f"foreign_{n}", data, "E-FORMAT", "not a supported image format") for n, data in foreign.items()
    ]


def _cut_jpegs() -> list[OddImage]:
    pixels = textured(200, 260)
    whole = {
        "baseline": jpeg(pixels, quality=90, subsampling=2),
        "progressive": jpeg(pixels, quality=90, progressive=True),
    }
    images = []
    for kind, data in whole.items():
        for percent in CUT_PERCENT:
            cut = data[: max(4, int(len(data) * percent / 100))]
            images.append(_reject(f"jpeg_{kind}_cut_{percent}", cut, "E-TRUNC", f"{percent} % of the file"))
        images.append(_reject(f"jpeg_{kind}_no_eoi", data[:-2], "E-EOI", "all pixels are there, EOI is not"))
    exif = exif_segment(thumbnail=jpeg(pixels[::8, ::8]))
    with_thumbnail = jp.insert(whole["baseline"], exif)
    grey = jpeg(luma(pixels)[..., 0])
    restart = jpeg(pixels, restart_marker_rows=1)
    cmyk = encoded(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=90)
    plane = jp.ycc(pixels[:45, :70])
    scans = jp.encode(_parts(plane, ((1, 1),) * 3), interleaved=False, head=JFIF)
    last_scan = scans.rindex(b"\xff\xda")
    images += [
        _reject(
            "jpeg_thumbnail_cut", with_thumbnail[: len(with_thumbnail) // 2], "E-TRUNC", "its thumbnail has an EOI"
        ),
        _reject("jpeg_thumbnail_no_eoi", with_thumbnail[:-2], "E-EOI", "the thumbnail has an EOI"),
        _reject("jpeg_thumbnail_only", with_thumbnail[: len(exif) + 20], "E-TRUNC", "cut directly after the thumbnail"),
        _reject("jpeg_grey_cut_50", grey[: len(grey) // 2], "E-TRUNC", "one component"),
        _reject("jpeg_restart_cut_50", restart[: len(restart) // 2], "E-TRUNC", "restart markers before the cut"),
        _reject("jpeg_cmyk_cut_50", cmyk[: len(cmyk) // 2], "E-TRUNC", "four components"),
        _reject("jpeg_last_scan_cut", scans[: last_scan + 20], "E-TRUNC", "two of three scans are whole"),
    ]
    return images


def _cut_others() -> list[OddImage]:
    pixels = textured(80, 100)
    whole = {
        "png": encoded(pixels, "PNG"),
        "webp": encoded(pixels, "WEBP", quality=90),
        "webp_lossless": encoded(pixels, "WEBP", lossless=True),
        "gif": encoded(Image.fromarray(pixels).quantize(64), "GIF"),
        "bmp": encoded(pixels, "BMP"),
    }
    images = [_reject(f"{n}_cut_50", data[: len(data) // 2], "E-TRUNC", "half a file") for n, data in whole.items()]
    images.append(_reject("png_cut_in_header", whole["png"][:20], "E-TRUNC", "within IHDR"))
    return images


def _corrupt() -> list[OddImage]:
    rgb = scene(37, 50)
    whole = jpeg(rgb, subsampling=2)

    def flipped(data: bytes, at: int) -> bytes:
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    deflated, stored = png(rgb, depth=8, colour=2), png(rgb, depth=8, colour=2, level=0)
    middle = deflated.index(b"IDAT") + (len(deflated) - deflated.index(b"IDAT")) // 2
    lying = deflated[:8] + png_chunk(b"gAMA", struct.pack(">II", 50, 37)) + deflated[8:]
    return [
        _reject("png_bit_flipped", flipped(deflated, middle), "E-CORRUPT", "the CRC of IDAT is wrong"),
        _reject("png_stored_bit_flipped", flipped(stored, len(stored) // 2), "E-CORRUPT", "only the CRC shows it"),
        _reject("png_other_chunk_first", lying, "E-CORRUPT", "a chunk before IHDR, with a size at the place of IHDR's"),
        _reject("jpeg_no_sof", jp.remove_segments(whole, jp.SOF0), "E-CORRUPT", "no frame header, but EOI"),
        _reject("jpeg_no_sos", jp.remove_segments(whole, jp.SOS), "E-CORRUPT", "no scan, but EOI"),
        _reject("jpeg_no_segments", jp.SOI + jp.EOI, "E-CORRUPT", "SOI and EOI only"),
    ]


def _bombs() -> list[OddImage]:
    rgb = scene(37, 50)
    side = 20_000
    row = b"\0" + bytes(side // 8)
    press = zlib.compressobj(9)
    packed = b"".join(press.compress(row * 500) for _ in range(side // 500)) + press.flush()
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    real_png = b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")

    gif = encoded(Image.fromarray(rgb).quantize(16), "GIF")
    huge = struct.pack("<HH", 60_000, 60_000)
    frame = gif.index(b"\x2c\0\0\0\0") + 5
    bmp = encoded(rgb, "BMP")
    lossless = encoded(rgb, "WEBP", lossless=True)
    size_at = lossless.index(b"VP8L") + 9
    flags = int.from_bytes(lossless[size_at : size_at + 4], "little") & 0xF << 28
    bits = (16_383 | 16_383 << 14 | flags).to_bytes(4, "little")
    lossy = encoded(rgb, "WEBP", quality=80)
    frame_at = lossy.index(b"\x9d\x01\x2a") + 3
    extended = encoded(np.dstack([rgb, rgb[..., :1]]), "WEBP", quality=80)
    canvas_at = extended.index(b"VP8X") + 12
    limit = (16_383).to_bytes(3, "little") * 2
    files = {
        "jpeg": jp.with_frame(jpeg(rgb, subsampling=2), size=(65_500, 65_500)),
        "jpeg_progressive": jp.with_frame(jpeg(rgb, progressive=True), size=(65_500, 65_500)),
        "jpeg_wide": jp.with_frame(jpeg(rgb), size=(65_500, 1_600)),
        "png": real_png,
        "gif": gif[:6] + huge + gif[10:],
        "gif_frame": gif[:frame] + huge + gif[frame + 4 :],
        "bmp": bmp[:18] + struct.pack("<ii", 30_000, 30_000) + bmp[26:],
        "bmp_top_down": bmp[:18] + struct.pack("<ii", 30_000, -30_000) + bmp[26:],
        "webp_lossless": lossless[:size_at] + bits + lossless[size_at + 4 :],
        "webp_lossy": lossy[:frame_at] + struct.pack("<HH", 16_383, 16_383) + lossy[frame_at + 4 :],
        "webp_canvas": extended[:canvas_at] + limit + extended[canvas_at + 6 :],
    }
    return [_reject(f"bomb_{name}", data, "E-BOMB", "declares more than 100 M pixels") for name, data in files.items()]


def _unsupported() -> list[OddImage]:
    rgb = scene(37, 50)
    whole = jpeg(rgb, subsampling=2)
    planes = [rgb[..., i] for i in range(2)]
    files = {
        "12_bit": jp.with_frame(whole, marker=jp.SOF1, precision=12),
        "lossless": jp.with_frame(whole, marker=jp.SOF3),
        "dnl": jp.with_frame(whole, size=(50, 0))[:-2] + jp.segment(jp.DNL, struct.pack(">H", 37)) + jp.EOI,
        "two_components": jp.encode(_parts(planes, ((1, 1),) * 2)),
    }
    images = [_reject(f"jpeg_{n}", data, "E-UNSUPPORTED", "valid, but rare") for n, data in files.items()]
    arithmetic = stored_jpegs()["arithmetic/420_37x50.jpg"]
    return [*images, OddImage("jpeg_arithmetic", arithmetic, ANY, rgb, 1.5, "arithmetic coding")]
