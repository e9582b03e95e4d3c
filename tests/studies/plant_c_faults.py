"""Plants faults in the C files, one at a time, and reports which ones tests notice (plant_faults.py is for modules).

The first ones are those that no test noticed when this table was started. Each is written as in its file. A fault that
does not compile without a warning is an error of the table.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from plant_faults import CONTROL, GOAL, LOG, ROOT, Fault, Lane

from penstock.loaders.system.json_file import write_json

NATIVE = "pipelines/native"
QUICK = [f"tests/{NATIVE}/test_{name}.py" for name in ("limits", "rows", "jpeg_header", "crc32")]
TESTS = dict.fromkeys(
    [
        *QUICK,
        "tests/studies/test_fuzz_native.py",
        "tests/pipelines/plan/test_philox.py",
        *(str(test.relative_to(ROOT)) for test in sorted((ROOT / "tests" / NATIVE).glob("test_*.py"))),
    ]
)
FAULTS = (
    # ---- not noticed when the table was started
    ("idct.c", "if (extreme) return 0;\n  for (int i = 0; i < 8; i++) trans", "for (int i = 0; i < 8; i++) trans"),
    ("idct.c", "if (extreme) return 0;\n  for (int row", "for (int row"),
    ("idct.c", "return centred >= -512 && centred < 512;", "return centred >= -51200;"),
    ("huffman.c", "(is_ac ? MAX_AC_BITS : MAX_DC_BITS)", "(is_ac ? MAX_AC_BITS + 1 : MAX_DC_BITS)"),
    ("huffman.c", "bad |= *prediction != (int16_t)*prediction;", ""),
    ("stored.c", "start > stop || stop > row->size - row->head", "start > stop"),
    ("prepare.c", "if (strips.header_bytes + strips.scan.size + 2 > room) return PN_NO_MEMORY;", "(void)room;"),
    ("reading.c", "== PN_OK && is_as_scanned(fd, row);", "== PN_OK;"),
    ("recode.c", "READ_BEYOND 1024", "READ_BEYOND 0"),
    ("scan_bits.h", "PN_RESERVE 1408", "PN_RESERVE 1200"),
    ("window.c", "memset(space->bytes, 0, sizeof space->bytes);", ""),
    # ---- not noticed when they were planted for the second time
    ("bands.c", "memset(to, NOWHERE, 16);", "memset(to, NOWHERE, 8);"),
    ("bands.c", "(*to >> 15 | 1) * (1 << low)", "(*to >> 15 | 1) * (1 << (low & 3))"),
    ("batch.c", "&& row->out >= 0 && row->out + crops->row_bytes <= task->images_bytes;", "&& row->out >= 0;"),
    ("canvas.c", "(transposed && canvas->width != canvas->height)", "(transposed && canvas->width > canvas->height)"),
    ("huffman.c", "int fits = last_advance(entry) <= 32;", "int fits = 1;"),
    ("jpeg_header.c", "next >= 1 << length", "next > 1 << length"),
    ("jpeg_header.c", "return scan->last == 0;", "return scan->last <= 1;"),
    ("jpeg_header.c", " && seen->icc_seen == body[12];", ";"),
    ("locate.c", " || end > names_bytes", " || names_bytes < 0"),
    # ---- similar faults
    ("bands.c", "if (size > table->max_bits) return make_entry(1, BAD_CODE, 0);", ""),
    ("bands.c", "(1 << run) - 1 + raw", "(1 << run) + raw"),
    ("bands.c", "refines && most > 1 ? 1 : most", "refines ? most : most"),
    (
        "bands.c",
        "if (advance_of(entry) != 1 || value != (int16_t)value) return 0;",
        "if (advance_of(entry) != 1) return 0;",
    ),
    ("bands.c", "if (k > band->last) return 0;", ""),
    ("bands.c", "if (place == NOWHERE) return 0;", ""),
    ("bands.c", "if (advance != END_OF_BAND) return 0;", ""),
    ("bands.c", "ok = advance == END_OF_BAND;", ""),
    ("bands.c", "band->left < count - i ? band->left : count - i;", "band->left;"),
    ("bands.c", "if (k > band->last) break;", ""),
    ("batch.c", "height <= PN_MAX_SIDE && row->row >= 0;", "height <= PN_MAX_SIDE;"),
    ("batch.c", "if (failed > 0) continue;", "if (failed == task->views) continue;"),
    ("batch.c", "pn_trim_worker(worker);\n  return result;", "return result;"),
    ("batch.c", "task->images != NULL) fits = fits && row->out >= 0 &&", "task->images != NULL) fits = fits &&"),
    ("canvas.c", "at.width <= canvas->width - at.x", "at.width <= canvas->width"),
    ("canvas.c", "at.height <= canvas->height - at.y", "at.height <= canvas->height"),
    ("canvas.c", "at.x >= 0 && ", ""),
    ("huffman.c", "fits &= last_advance(entry) <= 16;", ""),
    ("huffman.c", "fits &= last_advance(second) % END_OF_BLOCK <= 16;", ""),
    ("huffman.c", "fits &= last_advance(behind) % END_OF_BLOCK <= 30;", ""),
    ("jpeg_header.c", "scan->low > MAX_MISSING_BITS || ", ""),
    ("jpeg_header.c", "scan->low != scan->high - 1", "scan->low >= scan->high"),
    ("jpeg_header.c", "scan->first <= scan->last && ", ""),
    ("jpeg_header.c", "scan->last <= 63 &&", ""),
    ("jpeg_header.c", "scan->count == 1 && scan->first", "scan->first"),
    ("jpeg_header.c", " && seen->icc_seen == seen->icc_chunks;", ";"),
    ("jpeg_header.c", "seen->icc_chunks == body[13] && ", ""),
    ("jpeg_header.c", "return size > 14 && ", "return "),
    ("jpeg_header.c", "MAX_SEGMENTS_BETWEEN 16", "MAX_SEGMENTS_BETWEEN 64"),
    ("jpeg_header.c", "return total > 0;", "return 1;"),
    ("jpeg_header.c", "luma->h == 3 || ", ""),
    ("jpeg_header.c", "luma->v > 2 || ", ""),
    ("jpeg_header.c", "(luma->h == 4 && luma->v > 1)", "(luma->h > 4)"),
    ("jpeg_header.c", "if (seen->frame || size < 6", "if (size < 6"),
    ("locate.c", "*begin > end || ", ""),
    ("locate.c", "*begin < 0 || ", ""),
    ("locate.c", " || end - *begin >= MAX_NAME_BYTES", ""),
    ("locate.c", "folder >= files->folder_offsets.length - 1", "folder >= files->folder_offsets.length"),
    ("locate.c", "if (sample < 0 || sample", "if (sample"),
    ("locate.c", "samples[i] >= num_records", "samples[i] > num_records"),
    ("locate.c", "if (row->size <= max_bytes)", "if (row->size < max_bytes)"),
    ("memory.c", '__builtin_cpu_supports("bmi") &&', ""),
    ("planes.c", "if (last < 8 * (plane->column_end - plane->column)) samples", "samples"),
    ("progressive.c", "if (scan->first > 0 && missing[0] == UNKNOWN) return 0;", ""),
    ("progressive.c", "MAX_SCANS 32", "MAX_SCANS 64"),
    ("progressive.c", "scan->band.left > 0 || !pn_bits_restart", "!pn_bits_restart"),
    ("progressive.c", "memset(scan->dc.predictions, 0, sizeof scan->dc.predictions);", ""),
    ("progressive.c", "scan->band.left == 0 && pn_bits_done", "pn_bits_done"),
    ("progressive.c", "pn_bits_done(&bits) ? bits.at", "pn_bits_in_range(&bits) ? bits.at"),
    ("reading.c", "return memchr(path, 0, (size_t)(end - path)) == NULL;", "return 1;"),
    ("stored.c", "jpeg->scan_offset == size &&", ""),
    ("stored.c", "!jpeg->progressive && ", ""),
    ("stored.c", "if (size > (size_t)row->size) return PN_UNSUPPORTED;", ""),
    ("window.c", "if (jpeg->mcus_wide % scan->segment_mcus != 0 || ", "if ("),
    ("window.c", "pn_bits_in_range(&bits) && pn_leads_to_end", "pn_leads_to_end"),
    ("window.c", "(stop == NULL) != is_last || ", "stop == NULL || "),
    # ---- others
    ("batch.c", "row->size < 4 || (uint64_t)row->size", "(uint64_t)row->size"),
    ("batch.c", " && pn_crc32(data, size, 0) != row->crc) return PN_UNSUPPORTED;", ") return PN_OK;"),
    ("batch.c", "if (task->apply_exif && jpeg->exif_unsupported) return PN_UNSUPPORTED;", ""),
    ("batch.c", "row->exif = (uint8_t)(jpeg->exif_unsupported ? 0 : jpeg->orientation);", "row->exif = 1;"),
    ("batch.c", "flips[views] = rows->exif;", "flips[views] = rows->orientation;"),
    ("batch.c", "if ((int64_t)window.width * window.height / 512 > row->size) return PN_UNSUPPORTED;", ""),
    ("batch.c", "w.width > width - w.x", "w.width > width"),
    ("batch.c", "row->orientation == 6 || row->orientation == 7;", "row->orientation == 5 || row->orientation == 7;"),
    ("batch.c", "task->files != NULL ? total > (uint64_t)task->files_bytes", "task->files != NULL ? 0"),
    ("batch.c", "return *task->generation == task->wanted;", "return 1;"),
    ("blur.c", "in[i - beyond] + in[i + beyond]) + (1u << 23)", "in[i - beyond] + in[i + beyond])"),
    ("blur.c", "for (ptrdiff_t k = 1; k <= times; k++) {", "for (ptrdiff_t k = 1; k < times; k++) {"),
    ("blur.c", "while (taps > 1 && weights[taps - 1] == 0) taps--;", ""),
    (
        "blur.c",
        "uint8_t *one = memory + side, *two = one + count + 2 * side;",
        "uint8_t *one = memory, *two = one + count;",
    ),
    ("color.c", "* factor + (float)start;", "* factor + (float)start + 0.5f;"),
    ("color.c", "level = level > 0 ? level : 0;", ""),
    ("color.c", "for (int32_t i = 0; i < n * CHANNELS * LEVELS; i++) counts[i] = 0;", ""),
    ("color.c", "tables += CHANNELS * LEVELS)", "tables += 0)"),
    ("color.c", "? red - green : blue - red", "? blue - red : red - green"),
    ("color.c", "int red_behind = red != value", "int red_behind = red < blue"),
    ("color.c", "+ 255 * 255 / 2) / (255 * 255)", ") / (255 * 255)"),
    ("color.c", "int32_t length = left < BLOCK ? (int32_t)left : BLOCK;", "int32_t length = BLOCK;"),
    ("color.c", "(sum + 6) / 13", "sum / 13"),
    ("color.c", "i < row - CHANNELS; i++", "i < row; i++"),
    ("crc32.c", "if (size >= 64 && pn_has_avx2()", "if (size >= 48 && pn_has_avx2()"),
    ("prepare.c", "margin_x = jpeg->mcu_width > 8", "margin_x = 0"),
    ("prepare.c", "if ((stop == NULL) != is_last) return NULL;", "if (stop == NULL && !is_last) return NULL;"),
    ("prepare.c", "if (*size > room) return PN_NO_MEMORY;", "(void)room;"),
    ("prepare.c", "row->window.y -= part.covers.y;", ""),
    ("prepare.c", " || !jpeg->certainly_ycc", ""),
    ("prepare.c", "(joined++ & 7)", "(joined++ & 3)"),
    ("exif.c", "directory < 8 || directory > file.size - 2", "directory < 8 || directory > file.size"),
    ("exif.c", "/ 12) return 0;", "/ 11) return 0;"),
    ("exif.c", "if (offset > file.size || bytes > file.size - offset) return 0;", "if (offset > file.size) return 0;"),
    ("exif.c", "found >= 1 && found <= 8", "found >= 1 && found <= 9"),
    ("huffman.c", "run == 0 ? END_OF_BLOCK : BAD_CODE", "END_OF_BLOCK"),
    ("huffman.c", "int ahead = (at.count + 7) >> 3", "int ahead = at.count >> 3"),
    ("huffman.c", "? LAST : k < END_OF_BLOCK ? -1", "? LAST : k < END_OF_BLOCK ? LAST"),
    ("huffman.h", "if (code >= order->ends[length]) continue;", "if (code > order->ends[length]) continue;"),
    ("huffman_write.c", " | (0xFFu >> count));", ");"),
    ("huffman_write.c", "taken = 2 * count - 2;", "taken = 2 * count - 4;"),
    ("huffman_write.h", "PN_WRITE_SLACK 8", "PN_WRITE_SLACK 0"),
    ("idct_avx2.c", "extreme = _mm256_or_si256(extreme, excess);", "(void)excess;"),
    (
        "idct_avx2.c",
        "extreme = _mm256_or_si256(extreme, _mm256_and_si256(magnitudes,",
        "(void)(_mm256_and_si256(magnitudes,",
    ),
    ("idct_avx2.c", "(short)0xFC00", "(short)0xF800"),
    ("idct_avx2.c", "PAIR(2261, 9633)", "PAIR(2260, 9633)"),
    ("jpeg_header.c", "total > 256 || (size_t)total > size - 17", "total > 256"),
    ("jpeg_header.c", "total > 256 || (size_t)total > size - 17", "(size_t)total > size - 17"),
    ("jpeg_header.c", "MAX_QUANTISER 2047", "MAX_QUANTISER 4095"),
    ("jpeg_header.c", "length > size - at - 2", "length > size - at"),
    ("jpeg_header.c", "if (size - at < 4 ||", "if (size - at < 2 ||"),
    ("jpeg_header.c", "if (size != 6 + 3 * (size_t)jpeg->components)", "if (size < 6 + 3 * (size_t)jpeg->components)"),
    ("memory.c", "memory->size >= size &&", "memory->size + 64 >= size &&"),
    ("memory.c", "if (size > SIZE_MAX - (size >> 2) - PN_ALIGNMENT) return NULL;", ""),
    ("memory.c", " && (memory->size <= PN_KEPT || size > PN_KEPT))", ")"),
    ("philox.c", "key1 += 0xBB67AE85;", "key1 += 0xBB67AE84;"),
    ("upsample.c", "near[i - 1] + next[i - 1] + 8", "near[i - 1] + next[i - 1] + 7"),
    ("upsample_avx2.c", "18734u << 16", "18733u << 16"),
    ("planes.c", "plane->shift_x == 0 || (plane->shift_x == 1 && has_neighbours);", "plane->shift_x < 2;"),
    ("planes.c", "plane->column) * 8 + 2 * PN_ROW_SLACK", "plane->column) * 8"),
    ("planes.c", "*end = pn_min(high, samples - 1) / 8 + 1;", "*end = high / 8 + 1 + 0 * samples;"),
    ("reading.c", "if (got < 0 && errno == EINTR) continue;", ""),
    ("reading.c", " || status.st_size != row->file_size) return 0;", ") return 0;"),
    ("recode.c", "by_size = 8 * (uint64_t)scan->size", "by_size = 4 * (uint64_t)scan->size"),
    ("recode.c", "for (; run > 15; run -= 16)", "for (; run > 16; run -= 16)"),
    ("recode.c", "if (last < 63) *to++ = ac;", "*to++ = ac;"),
    ("recode.c", "if (extra > PN_MAX_DC_BITS) return NULL;", ""),
    ("recode.c", "x < plane->wide && y < plane->high;", "x < plane->wide + 0 * y;"),
    ("recode.c", "count_blocks(planes->jpeg) * 5", "count_blocks(planes->jpeg)"),
    ("recode.c", "memset(before, 0, sizeof before);", ""),
    ("recode.c", "PN_MAX_COEFFICIENT_BYTES || !pn_has_complete_scans(jpeg, scan)", "PN_MAX_COEFFICIENT_BYTES"),
    ("recode.c", "MAX_HEADER 1600", "MAX_HEADER 160"),
    ("recode.c", "MAX_HEADER + 2 * plain", "MAX_HEADER + plain"),
    ("recode.c", "left = interval - 1;", "left = interval;"),
    (
        "resize.c",
        "job.reach = find_reach(&job.axis, width);",
        "job.reach = 3 * (size_t)width + 0 * find_reach(&job.axis, width);",
    ),
    ("resize.c", "axis.first[i] = axis.first[out - 1];", "axis.first[i] = 1 << 20;"),
    ("resize.h", "PN_OVERWRITE 16", "PN_OVERWRITE 0"),
    ("resize_avx2.c", "if (bytes % 32) vertical_chunk", "if (bytes % 16) vertical_chunk"),
    ("scan_bits.c", "if (bits->end - at < 2 || at[1] != 0) {", "if (at[1] != 0) {"),
    ("scan_bits.c", "bits_left(bits) < 8;", "bits_left(bits) < 16;"),
    ("scan_bits.h", "PN_LOOK_BACK 16", "PN_LOOK_BACK 0"),
    ("stored.c", "if (start > stop || stop", "if (stop"),
    (
        "stored.c",
        "if (pn_crc32(coded, stop - start, before) != after) return PN_UNSUPPORTED;",
        "(void)before, (void)after;",
    ),
    (
        "stored.c",
        "result != PN_OK ? result : pn_crc32(head, row->head, 0) == row->crc ? PN_OK : PN_UNSUPPORTED;",
        "result;",
    ),
    ("stored.c", "* entry_bytes <= row->head;", "* entry_bytes <= (size_t)row->size;"),
    ("stored.c", "jpeg->height_offset == row->height_offset;", "1;"),
    ("symbols.c", "if (k > LAST && k < END_OF_BLOCK) return NULL;", ""),
    ("symbols.c", "if (predictions->read != (int16_t)predictions->read) return NULL;", ""),
    ("symbols.c", "if (extra > PN_MAX_DC_BITS) return NULL;", ""),
    ("scan_bits.c", "bits->marker != PN_RST0 + (number & 7)", "(bits->marker & 0xF8) != PN_RST0 + 0 * number"),
    ("window.c", " && bits.marker == PN_NO_MARKER && bits.at == bits.end;", " && bits.marker == PN_NO_MARKER;"),
    ("window.c", " || scan->first_row > planes->row) return 0;", ") return 0;"),
)


def faults() -> list[Fault]:
    """Return the table's faults. Raises ValueError for a text that does not occur exactly once in its file."""
    found = []
    for number, (name, old, new) in enumerate(FAULTS):
        text = (ROOT / NATIVE / name).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{name} contains {text.count(old)} times instead of once: {old}")
        line = text[: text.index(old)].count("\n") + 1
        found.append(Fault(module=f"{NATIVE}/{name}", line=line, what=f"{old} -> {new}", number=number))
    return found


def planted(text: str, fault: Fault) -> str:
    """Return the file's text with the fault; a control's text is unchanged."""
    if fault.number == CONTROL:
        return text
    _, old, new = FAULTS[fault.number]
    return text.replace(old, new)


def main(
    only: Annotated[list[int] | None, typer.Option(help="Numbers of faults to plant instead of all.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the record.")] = None,
) -> None:
    """Plant each fault, run the tests of the C files, and list the survivors."""
    import torch  # noqa: F401  every forked test run has it

    chosen = [fault for fault in faults() if not only or fault.number in only]
    survivors, noticed_by, started = list[Fault](), dict[str, str](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-c-faults-") as folder:
        lane = Lane(Path(folder), planted)
        for fault in [replace(chosen[0], what="nothing", number=CONTROL), *chosen]:
            lane.start(fault, [list(TESTS)], 600)
            while not lane.over():
                time.sleep(0.05)
            noticed, test_output = lane.finish(), (lane.folder / LOG).read_text(encoding="utf-8", errors="replace")
            if fault.number == CONTROL:
                if noticed:
                    raise ValueError(f"the tests fail without a fault:\n{test_output}")
                continue
            if not noticed:
                survivors.append(fault)
            if "BuildError" in test_output:
                raise ValueError(f"{fault.module}:{fault.line} does not compile: {fault.what}")
            by = lane.noticed_by or ("the end of the process" if noticed else "survived")
            noticed_by[str(fault.number)] = by
            print(f"{fault.number}: {fault.module}:{fault.line}: {fault.what}: {by}", flush=True)
    share = 1 - len(survivors) / len(chosen)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} noticed: {share:.3f} (at least {GOAL})")
    if json is not None:
        record = {
            "what": "faults planted in the C files, one at a time",
            "processor": re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))[1],  # type: ignore[index]
            "seconds": round(time.monotonic() - started),
            "faults": len(chosen),
            "noticed": len(chosen) - len(survivors),
            "noticed_by": noticed_by,
            "survivors": [asdict(fault) for fault in survivors],
        }
        write_json(json, record)


if __name__ == "__main__":
    typer.run(main)
