"""Loader errors: always one line, pickles, stable codes."""

from __future__ import annotations

import os
import pickle
import unicodedata

import pytest

from penstock.pipelines.errors import ERROR_CODES, LoaderError, one_line, printable

NASTY = [
    "two\nlines",
    "carriage\rreturn",
    "tab\tand\x0bvertical\x0cfeed",
    "nul\0byte",
    "escape\x1b[31mred\x1b[0m",
    "bell\a backspace\b delete\x7f",
    "C1 \x85 \x9b31m",
    "separators \u2028 and \u2029",
    "right to left \u202e override",
    "undecodable \udcff\udcfe",
    "fake\nLoaderError[E-BOMB] sample=1 cause=forged: fix=none",
]


def is_one_safe_line(text: str) -> bool:
    categories = {unicodedata.category(c) for c in text}
    return len(text.splitlines()) == 1 and not categories & {"Cc", "Cs", "Cf", "Zl", "Zp"}


def test_the_form_of_the_line() -> None:
    error = LoaderError("E-TRUNC", "cut", sample=17, path="a.jpg", backend="torch", rank=0, worker=4242, fix="mend it")
    assert str(error) == (
        "LoaderError[E-TRUNC] sample=17 path='a.jpg' backend=torch rank=0 worker=4242 cause=cut: fix=mend it"
    )
    assert str(LoaderError("E-TRUNC", "cut", fix="f")) == "LoaderError[E-TRUNC] cause=cut: fix=f"
    assert "sample=0" in str(LoaderError("E-TRUNC", "cut", sample=0))


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("where", ["cause", "fix", "path", "path as bytes", "backend"])
def test_one_line_always(text: str, where: str) -> None:
    fields: dict[str, object] = {"cause": "c"}
    fields |= {"path": text.encode("utf-8", "surrogateescape")} if where == "path as bytes" else {where: text}
    error = LoaderError("E-CORRUPT", sample=3, **fields)  # type: ignore[arg-type]
    for line in (str(error), error.line(), str(error.locate(rank=1)), str(pickle.loads(pickle.dumps(error)))):
        assert is_one_safe_line(line), ascii(line)
        assert line.startswith("LoaderError[E-CORRUPT] sample=3")
        assert line.encode("utf-8").count(b"\n") == 0  # surrogates would raise here


@pytest.mark.parametrize("text", ["", "plain", "größer 図 é", "a  b"])
def test_harmless_text_is_kept(text: str) -> None:
    assert one_line(text) == " ".join(text.split())
    assert one_line(one_line(text + "\x1b")) == one_line(text + "\x1b")


@pytest.mark.parametrize("path", [b"\xff\xfe\xe9.jpg", "a\nb", "quo'te", "\udcff"])
def test_printable_paths_are_ascii_and_quoted(path: bytes | str) -> None:
    text = printable(path)
    assert text.isascii()
    assert text.isprintable()
    assert text[0] == text[-1]
    assert text[0] in "'\""


@pytest.mark.parametrize("path", ["größer/图.jpg", "café.jpg".encode(), "\u0430pple.jpg", "na\u00efve\u200b.jpg"])
def test_the_path_in_an_error_is_ascii(path: bytes | str) -> None:
    # A letter of another script that looks like a Latin one names another file; a terminal of another encoding fails.
    text = os.fsdecode(path)
    error = LoaderError("E-CORRUPT", "c", path=path)
    assert str(error).isascii()
    assert f"path={text!a} " in str(error)
    assert printable(path) == ascii(text) != repr(text)


def test_codes_carry_exit_code_and_fix() -> None:
    for code, (exit_code, fix) in ERROR_CODES.items():
        error = LoaderError(code, "why")
        assert error.exit_code == exit_code
        assert exit_code in (2, 3, 4, 5, 6, 7)
        assert error.fix == fix
        assert is_one_safe_line(str(error))
    assert [ERROR_CODES[c].exit_code for c in ("E-STATE", "E-BOMB", "E-STALE", "E-WORKER", "E-TIMEOUT", "E-SHM")] == [
        *(2, 3, 4, 5, 6, 7)
    ]


def test_pickles_with_everything() -> None:
    error = LoaderError("E-READ", "EIO", sample=5, path=b"\xff.jpg", backend="torch", rank=2, worker=99, fix="f")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is LoaderError
    assert vars(again) == vars(error)
    assert (again.args, str(again)) == (error.args, str(error))


@pytest.mark.parametrize("path", [None, "a.jpg", 'it\'s "x" y.jpg', "a' rank=3 cause=x: fix=y.jpg", "\\", ""])
def test_an_error_is_rebuilt_from_the_text_of_torchs_worker_error(path: str | None) -> None:
    error = LoaderError("E-READ", "EIO: cause fix= it", sample=0, path=path, worker=9, fix="mend: it")
    first = LoaderError("E-BOMB", "the cause of the other")
    text = f"Caught LoaderError in DataLoader worker process 2.\nOriginal Traceback:\n{first}\nerrors.{error}\n"
    assert vars(LoaderError(text)) == vars(error)
    with pytest.raises(ValueError, match="without a LoaderError line"):
        LoaderError("Caught LoaderError in DataLoader worker process 2.")


def test_locate_fills_in_only_what_is_unknown() -> None:
    error = LoaderError("E-BOMB", "big", sample=4, fix="shrink")
    located = error.locate(sample=9, path="x.png", rank=0)
    assert (located.sample, located.path, located.rank, located.worker) == (4, "x.png", 0, None)
    assert (located.code, located.cause, located.fix) == ("E-BOMB", "big", "shrink")
    assert (error.path, error.rank) == (None, None)
    first = LoaderError("E-BOMB", "big", sample=0, rank=0)  # zero is known
    assert (first.locate(sample=9, rank=9).sample, first.locate(sample=9, rank=9).rank) == (0, 0)
