"""JPEGs that simplejpeg and Pillow cannot write, kept in jpegtran.tar.xz.

"baseline/NAME" has the coefficients of every other file NAME. jpegtran of libjpeg-turbo 2.1.5 made the others from it:
"SCRIPT/NAME" with `-scans SCRIPT/script.txt`, "progressive/NAME" with `-progressive`, "arithmetic/NAME" with
`-arithmetic`; those named "-restart-3B" with `-restart 3B`. The images are those of native_windows.scene, and
odd_images.scene for arithmetic coding.
"""

from __future__ import annotations

import functools
import tarfile
from pathlib import Path


@functools.cache
def stored_jpegs() -> dict[str, bytes]:
    """The files by name."""
    with tarfile.open(Path(__file__).with_name("jpegtran.tar.xz")) as archive:
        return {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if not member.name.endswith(".txt")
        }
