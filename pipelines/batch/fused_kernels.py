"""Triton kernels of the batch stage: the tables of a round, its pixels, and the steps after all rounds.

Kernels compute in integers or, like the CPU path, round after each operation. They must be launched with
enable_fp_fusion=False, so that products and sums are not fused.
"""
# mypy: ignore-errors
# (kernel bodies are written in Triton's language, which Python's types do not describe)

from __future__ import annotations

import inspect

from penstock.pipelines.batch.color import GREY
from penstock.pipelines.batch.fused import END_WORDS, ROUND_WORDS
from penstock.pipelines.plan.augmentations import Op

try:
    import triton
    import triton.language as tl
except ImportError:  # fused.py checks first
    raise

_ROUND, _END = tl.constexpr(ROUND_WORDS), tl.constexpr(END_WORDS)
_LEVELS = tl.constexpr(257)  # entries of a channel's table of results: each level, and an erased pixel
_HALF, _RED, _GREEN, _BLUE = (tl.constexpr(number) for number in (GREY[0], *GREY[1]))
_ROTATE, _BRIGHTNESS, _COLOR, _CONTRAST, _SHARPNESS = (
    tl.constexpr(int(op)) for op in (Op.ROTATE, Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS)
)
_POSTERIZE, _SOLARIZE, _AUTO_CONTRAST, _EQUALIZE, _HUE = (
    tl.constexpr(int(op)) for op in (Op.POSTERIZE, Op.SOLARIZE, Op.AUTO_CONTRAST, Op.EQUALIZE, Op.HUE)
)


def _kernel(body):
    """Compile a kernel once for all alignments and sizes of images, so that the checked kernel is the one that runs."""
    names = [name for name in inspect.signature(body).parameters if not name.isupper()]  # constants are upper case
    return triton.jit(body, do_not_specialize=names, do_not_specialize_on_alignment=names)


@triton.jit
def image_start(images, image, pixels):
    """Return where the values of an image begin; a batch may have more than 2**31 values."""
    return images + image.to(tl.int64) * (pixels * 3)


@triton.jit
def _load_pixel(start, place, inside):
    """Load red, green and blue, int32; black where not `inside`."""
    red = tl.load(start + place * 3, mask=inside, other=0).to(tl.int32)
    green = tl.load(start + place * 3 + 1, mask=inside, other=0).to(tl.int32)
    blue = tl.load(start + place * 3 + 2, mask=inside, other=0).to(tl.int32)
    return red, green, blue


@triton.jit
def _grey(red, green, blue):
    return (red * _RED + green * _GREEN + blue * _BLUE + _HALF) >> 16


@triton.jit
def _blend(start, end, factor):
    """Compute Pillow's Image.blend of integers, in float32, clamped to [0, 255] and rounded down: int32."""
    mixed = (end - start).to(tl.float32) * factor + start.to(tl.float32)
    return tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32)


@triton.jit
def _load_float(record, number):
    return tl.load(record + number).to(tl.float32, bitcast=True)


@_kernel
def make_tables(images, records, stretches, tables, pixels, BLOCK: tl.constexpr):
    """Tabulate contrast, auto-contrast and equalize by level, for images that have one of these: uint8 [n, 3, 256].

    A program makes the table of one channel of one image, from its histogram. For contrast, an image's first program
    makes the tables of all channels, from the histogram of the grey image.
    """
    image, channel = tl.program_id(0) // 3, tl.program_id(0) % 3
    record = records + image * _ROUND
    op = tl.load(record)
    if ((op == _CONTRAST) & (channel == 0)) | (op == _AUTO_CONTRAST) | (op == _EQUALIZE):
        start = image_start(images, image, pixels)
        level = tl.arange(0, 256)
        counts = level * 0
        for first in range(0, pixels, BLOCK):
            place = first + tl.arange(0, BLOCK)
            inside = place < pixels
            if op == _CONTRAST:
                red, green, blue = _load_pixel(start, place, inside)
                value = _grey(red, green, blue)
            else:
                value = tl.load(start + place * 3 + channel, mask=inside, other=0).to(tl.int32)
            counts += tl.histogram(value, 256)
        counts -= tl.where(level == 0, (pixels + BLOCK - 1) // BLOCK * BLOCK - pixels, 0)  # places outside the image
        if op == _CONTRAST:
            total = tl.sum(counts.to(tl.int64) * level, 0)
            mean = ((2 * total + pixels) // (2 * pixels)).to(tl.int32)
            table = _blend(mean, level, _load_float(record, 1))
        elif op == _AUTO_CONTRAST:
            low = tl.min(tl.where(counts > 0, level, 255), 0)
            high = tl.max(tl.where(counts > 0, level, 0), 0)
            scale, of_lowest = tl.load(stretches + 2 * (high - low)), tl.load(stretches + 2 * (high - low) + 1)
            stretched = level.to(tl.float64) * scale - low.to(tl.float64) * of_lowest
            table = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
        else:
            upto = tl.cumsum(counts, 0)
            step = tl.max(upto % pixels, 0) // 255
            spread = (upto - counts + step // 2) // tl.maximum(step, 1)
            table = tl.where(step > 0, tl.minimum(spread, 255), level)
        result = tables + (image * 3 + channel) * 256 + level
        tl.store(result, table.to(tl.uint8))
        if op == _CONTRAST:
            tl.store(result + 256, table.to(tl.uint8))
            tl.store(result + 512, table.to(tl.uint8))


@triton.jit
def _smooth(start, place, width, inner, channel):
    """Smooth over 3x3 pixels, the middle one five times: rounded as Pillow's ImageFilter.SMOOTH, int32."""
    middle = tl.load(start + place * 3 + channel, mask=inner, other=0).to(tl.int32)
    total = 4 * middle
    for row in tl.static_range(-1, 2):
        for column in tl.static_range(-1, 2):
            other = start + (place + row * width + column) * 3 + channel
            total += tl.load(other, mask=inner, other=0).to(tl.int32)
    return (2 * total + 13) // 26


@triton.jit
def _channel_of_hue(hue, offset, colour, value):
    """Return a channel's value by Pillow's HSV, at most the largest channel's; `colour` is saturation times value."""
    part = (offset * 255 + hue * 6) % 1530
    share = tl.minimum(tl.maximum(tl.minimum(part, 1020 - part), 0), 255)
    return value - (share * colour + 32512) // 65025


@_kernel
def apply_round(images, results, records, tables, hues, saturations, height, width, BLOCK: tl.constexpr):
    """Apply the operation of its record to each image: uint8 [n, height, width, 3] to `results`.

    A program handles BLOCK pixels of one image, so that all of them take the same branch.
    """
    pixels = height * width
    blocks = tl.cdiv(pixels, BLOCK)
    image = tl.program_id(0) // blocks
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    record = records + image * _ROUND
    op = tl.load(record)
    start = image_start(images, image, pixels)
    if op <= _ROTATE:  # nearest pixel, in steps of 16.16 fixed point; identity counts as a move
        y, x = place // width, place % width
        column = (tl.load(record + 1) * x + (tl.load(record + 2) * y + tl.load(record + 3))) >> 16
        row = (tl.load(record + 4) * x + (tl.load(record + 5) * y + tl.load(record + 6))) >> 16
        within = inside & (column >= 0) & (column < width) & (row >= 0) & (row < height)
        red, green, blue = _load_pixel(start, row * width + column, within)
    else:
        red, green, blue = _load_pixel(start, place, inside)
        if op == _BRIGHTNESS:
            factor, black = _load_float(record, 1), red * 0
            red, green, blue = _blend(black, red, factor), _blend(black, green, factor), _blend(black, blue, factor)
        elif op == _COLOR:
            factor, grey = _load_float(record, 1), _grey(red, green, blue)
            red, green, blue = _blend(grey, red, factor), _blend(grey, green, factor), _blend(grey, blue, factor)
        elif op == _SHARPNESS:
            factor, y, x = _load_float(record, 1), place // width, place % width
            inner = inside & (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
            red = tl.where(inner, _blend(_smooth(start, place, width, inner, 0), red, factor), red)
            green = tl.where(inner, _blend(_smooth(start, place, width, inner, 1), green, factor), green)
            blue = tl.where(inner, _blend(_smooth(start, place, width, inner, 2), blue, factor), blue)
        elif op == _POSTERIZE:
            bits = tl.load(record + 1)
            red, green, blue = red & bits, green & bits, blue & bits
        elif op == _SOLARIZE:
            threshold = tl.load(record + 1)
            red = tl.where(red < threshold, red, 255 - red)
            green = tl.where(green < threshold, green, 255 - green)
            blue = tl.where(blue < threshold, blue, 255 - blue)
        elif op == _HUE:
            value = tl.maximum(tl.maximum(red, green), blue)
            span = value - tl.minimum(tl.minimum(red, green), blue)
            largest = tl.where(red == value, 0, tl.where(green == value, 1, 2))
            others = tl.where(red == value, green - blue, tl.where(green == value, blue - red, red - green))
            hue = tl.load(hues + ((largest * 256 + span) * 512 + others + 255)).to(tl.int32)
            hue = (hue + tl.load(record + 1)) & 255
            colour = tl.load(saturations + value * 256 + span).to(tl.int32) * value
            red, green = _channel_of_hue(hue, 5, colour, value), _channel_of_hue(hue, 3, colour, value)
            blue = _channel_of_hue(hue, 1, colour, value)
        else:
            table = tables + image * 768
            red = tl.load(table + red).to(tl.int32)
            green = tl.load(table + 256 + green).to(tl.int32)
            blue = tl.load(table + 512 + blue).to(tl.int32)
    result = image_start(results, image, pixels) + place * 3
    tl.store(result, red.to(tl.uint8), mask=inside)
    tl.store(result + 1, green.to(tl.uint8), mask=inside)
    tl.store(result + 2, blue.to(tl.uint8), mask=inside)


@triton.jit
def _in_box(record, x, y):
    """Return whether pixels lie in a box: left, top, right, bottom."""
    across = (x >= tl.load(record)) & (x < tl.load(record + 2))
    return across & (y >= tl.load(record + 1)) & (y < tl.load(record + 3))


@triton.jit
def _finish_value(images, records, levels, image, element, inside, x, y, pixels):
    """Normalise values of an image and erase its box; return the stage's dtype."""
    level = tl.load(image_start(images, image, pixels) + element, mask=inside, other=0).to(tl.int32)
    level = tl.where(_in_box(records + image * _END, x, y), 256, level)
    return tl.load(levels + (element % 3) * _LEVELS + level)


@_kernel
def finish(images, results, records, levels, pixels, width, MIXED: tl.constexpr, BLOCK: tl.constexpr):
    """Normalise, erase and mix uint8 [n, height, width, 3] to `results` of the stage's dtype.

    levels: result for each level of a channel, and for an erased pixel, [3, 257] of that dtype. A program handles BLOCK
    values of one image. If MIXED (for the whole batch), it also reads the values of the image's partner.
    """
    blocks = tl.cdiv(pixels * 3, BLOCK)
    image = tl.program_id(0) // blocks
    element = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = element < pixels * 3
    x, y = element // 3 % width, element // 3 // width
    own = _finish_value(images, records, levels, image, element, inside, x, y, pixels)
    if MIXED:
        record = records + image * _END
        other = _finish_value(images, records, levels, image ^ 1, element, inside, x, y, pixels)
        alone = own.to(tl.float32)
        mixed = alone - (alone - other.to(tl.float32)) * _load_float(record, 8)
        own = tl.where(_in_box(record + 4, x, y), other, mixed.to(own.dtype))
    tl.store(image_start(results, image, pixels) + element, own, mask=inside)
