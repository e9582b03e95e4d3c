"""Effects of published recipes on the pixels of a crop, reimplemented with Pillow from their papers and code.

A recipe lists steps, (name, value), for draws in [0, 1) by purpose. Draws come from a sample or any generator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from augment_images import PILLOW
from PIL import Image, ImageOps

from penstock.pipelines.plan.augmentations import Op

Draw = Callable[[str], float]
Steps = list[tuple[str, float]]

# Purpose -> word of a sample. It must not change, so that streams stay the same.
WORDS = {"brightness": 23, "contrast": 24, "saturation": 25, "hue": 26, "order": 27}
WORDS |= {"jitter": 81, "grey": 82, "blur": 83, "sigma": 84, "solarize": 85, "three": 86, "sigma of three": 87}
for _layer in range(16):
    WORDS |= {f"{what} {_layer}": 33 + 3 * _layer + n for n, what in enumerate(("op", "sign", "normal"))}
    WORDS |= {f"{what} {_layer}": 88 + 3 * _layer + n for n, what in enumerate(("skip", "angle", "kernel"))}

INCREASING = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
    *("Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
)
# Step -> operation, where the names differ.
OPERATIONS = {"Saturation": "COLOR", "AutoContrast": "AUTO_CONTRAST", "SolarizeAdd": "SOLARIZE_ADD"}
OPERATIONS |= {"Grey": "GRAYSCALE", "PosterizeIncreasing": "POSTERIZE", "SolarizeIncreasing": "SOLARIZE"}
_MOVES = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")


def rand_augment(draw: Draw, magnitude: int) -> Steps:
    """timm's "rand-m{magnitude}-mstd0.5-inc1": two layers, each applied with probability 1/2."""
    steps = []
    for layer in range(2):
        name = INCREASING[int(15 * draw(f"op {layer}"))]
        normal = math.sqrt(-2 * math.log(1 - draw(f"normal {layer}"))) * math.cos(math.tau * draw(f"angle {layer}"))
        level = min(10.0, max(0.0, magnitude + 0.5 * normal)) / 10
        signed = -level if draw(f"sign {layer}") > 0.5 else level
        kernel = "bilinear" if draw(f"kernel {layer}") < 0.5 else "bicubic"
        if draw(f"skip {layer}") > 0.5:
            continue
        value = {
            **dict.fromkeys(("AutoContrast", "Equalize", "Invert"), 0.0),
            "Rotate": 30 * signed,
            "PosterizeIncreasing": 4 - int(4 * level),
            "SolarizeIncreasing": 256 - int(256 * level),
            "SolarizeAdd": int(110 * level),
            **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), max(0.1, 1 + 0.9 * signed)),
            **dict.fromkeys(("ShearX", "ShearY"), 0.3 * signed),
            **dict.fromkeys(("TranslateXRel", "TranslateYRel"), 0.45 * signed),
        }[name]
        steps.append((f"{name} {kernel}" if name in _MOVES else name, value))
    return steps


def color_jitter(draw: Draw, strengths: tuple[float, float, float, float], probability: float = 1.0) -> Steps:
    """torchvision's ColorJitter, in a random order."""
    if draw("jitter") >= probability:
        return []
    steps: Steps = []
    for name, strength in zip(("brightness", "contrast", "saturation", "hue"), strengths, strict=True):
        low, high = (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)
        steps.append((name.capitalize(), low + (high - low) * draw(name)))
    order = list(itertools.permutations(steps))[int(24 * draw("order"))]
    return [step for step in order if strengths[3] or step[0] != "Hue"]


def deit3(draw: Draw) -> Steps:
    sigma = 0.1 + 1.9 * draw("sigma of three")
    one = [("Grey", 0.0), ("SolarizeIncreasing", 128.0), ("Blur", sigma)][int(3 * draw("three"))]
    return [one, *color_jitter(draw, (0.3, 0.3, 0.3, 0.0))]


def views(draw: Draw, strengths: tuple[float, float, float, float], blur: float, solarize: float = 0.0) -> Steps:
    """SimCLR and DINO: jitter with probability 0.8, grey with 0.2, then blur and solarize."""
    steps = color_jitter(draw, strengths, 0.8)
    steps += [("Grey", 0.0)] if draw("grey") < 0.2 else []
    steps += [("Blur", 0.1 + 1.9 * draw("sigma"))] if draw("blur") < blur else []
    return steps + ([("SolarizeIncreasing", 128.0)] if draw("solarize") < solarize else [])


_DINO = (0.4, 0.4, 0.2, 0.1)
RECIPES: dict[str, Callable[[Draw], Steps]] = {
    "timm_a1": lambda draw: rand_augment(draw, 7),
    "timm_a2": lambda draw: rand_augment(draw, 7),
    "timm_a3": lambda draw: rand_augment(draw, 6),
    "deit3": deit3,
    "deit3_21k": deit3,
    "simclr_view": lambda draw: views(draw, (0.8, 0.8, 0.8, 0.2), 0.5),
    "dino_global_1": lambda draw: views(draw, _DINO, 1.0),
    "dino_global_2": lambda draw: views(draw, _DINO, 0.1, 0.2),
    "dino_local": lambda draw: views(draw, _DINO, 0.5),
}


def apply_step(image: Image.Image, name: str, value: float, fill: tuple[int, int, int]) -> Image.Image:
    """Apply one step, by Pillow."""
    kind, _, kernel = name.partition(" ")
    if kernel:
        resample = Image.Resampling.BILINEAR if kernel == "bilinear" else Image.Resampling.BICUBIC
        if kind == "Rotate":
            return image.rotate(value, resample=resample, fillcolor=fill)
        matrix = {
            "ShearX": (1, value, 0, 0, 1, 0),
            "ShearY": (1, 0, 0, value, 1, 0),
            "TranslateXRel": (1, 0, value * image.width, 0, 1, 0),
            "TranslateYRel": (1, 0, 0, 0, 1, value * image.height),
        }[kind]
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=resample, fillcolor=fill)
    if kind == "Invert":
        return ImageOps.invert(image)
    return PILLOW[Op[OPERATIONS.get(kind, kind.upper())]](image, value)
