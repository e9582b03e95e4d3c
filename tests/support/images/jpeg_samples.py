"""Small JPEGs of every common kind: samplings, odd sizes, restart intervals, progressive."""

from __future__ import annotations

from functools import lru_cache

import jpeg_parts as jp
import simplejpeg
from jpeg_parts import Component
from odd_images import JFIF, jpeg, luma, textured

SAMPLINGS = {"444": (1, 1), "422": (2, 1), "420": (2, 2), "440": (1, 2), "411": (4, 1)}
PILLOW_SAMPLINGS = {"444": 0, "422": 1, "420": 2}


@lru_cache(maxsize=1)
def stoppable() -> dict[str, bytes]:
    """Files coded from top to bottom in one scan."""
    files = {}
    for height, width in ((61, 83), (48, 64), (17, 33), (130, 40)):
        pixels = textured(height, width)
        for name in SAMPLINGS:
            files[f"{name}_{width}x{height}"] = simplejpeg.encode_jpeg(pixels, 85, "RGB", name)
        files[f"grey_{width}x{height}"] = jpeg(luma(pixels)[..., 0], quality=85)
        for name, value in PILLOW_SAMPLINGS.items():
            options = {"subsampling": value, "quality": 80}
            files[f"{name}_restart_rows_{width}x{height}"] = jpeg(pixels, restart_marker_rows=1, **options)
            files[f"{name}_restart_3_{width}x{height}"] = jpeg(pixels, restart_marker_blocks=3, **options)
            files[f"{name}_optimised_{width}x{height}"] = jpeg(pixels, optimize=True, **options)
    pixels = textured(53, 45)
    for name, factors in SAMPLINGS.items():  # by hand: restart intervals with samplings that Pillow does not write
        all_factors = (factors, (1, 1), (1, 1))
        parts = [Component(p, i + 1, *f) for i, (p, f) in enumerate(zip(jp.ycc(pixels), all_factors, strict=True))]
        files[f"{name}_restart_5_handmade"] = jp.encode(parts, head=JFIF, restart=5, quality=85)
    files["grey_restart_2_factor_22"] = jp.encode([Component(jp.ycc(pixels)[0], 1, 2, 2)], head=JFIF, restart=2)
    files["420_sof1"] = jp.with_frame(files["420_83x61"], marker=jp.SOF1)
    return files


@lru_cache(maxsize=1)
def unstoppable() -> dict[str, bytes]:
    """Files of several scans: the first row needs the whole file."""
    pixels = textured(61, 83)
    parts = [
        Component(p, i + 1, *f) for i, (p, f) in enumerate(zip(jp.ycc(pixels), ((2, 2), (1, 1), (1, 1)), strict=True))
    ]
    return {
        "progressive_420": jpeg(pixels, progressive=True, subsampling=2),
        "progressive_444": jpeg(pixels, progressive=True),
        "progressive_restart": jpeg(pixels, progressive=True, restart_marker_blocks=4),
        "progressive_grey": jpeg(luma(pixels)[..., 0], progressive=True),
        "scan_a_component": jp.encode(parts, interleaved=False, head=JFIF),
    }
