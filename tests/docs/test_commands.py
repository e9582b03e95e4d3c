"""The commands of the documentation: all programs, options, files, targets and extras in them exist."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.bench import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "docker/README", "bench/results/README")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(r"^\$ (.*)", re.MULTILINE)
_INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )?(?:penstock|python|make|docker|sbatch)\s[^`]*)`")
# Words that start Penstock, and the equivalent command.
_STARTS = {
    "penstock": [],
    "penstock.bench.cli": [],
    "penstock:gpu": [],
    "penstock:cpu": [],
    "train.sbatch": ["train"],
    "cache.sbatch": ["cache", "build"],
}
_ENDS = ("|", "&&", ";", ">")


@functools.cache
def known_commands() -> dict[str, set[str]]:
    """Return the options of each command, by its words."""
    cli._register()
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for part, below in command.commands.items():
                walk(below, f"{name} {part}".strip())
        else:
            found[name] = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}

    walk(typer.main.get_command(cli.app), "")
    return found


def lines_of(text: str) -> list[str]:
    """Return the commands of a page: lines of shell blocks, lines after `$`, and commands in the text."""
    text = re.sub(r"^ +(?=```|\S)", "", text, flags=re.MULTILINE)
    blocks = "\n".join(block.replace("\\\n", " ") for block in _SHELL.findall(text))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).replace("\n", " ")
    return [line for line in (*blocks.splitlines(), *_TYPED.findall(text), *_INLINE.findall(prose)) if line]


def wrong_parts(line: str) -> list[str]:
    """Return the words of a command that name something that does not exist."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as problem:
        return [str(problem)]
    wrong = [word for word in words if _is_missing_file(word)]
    for word in words:
        wrong += wrong_parts(word) if word.startswith("penstock ") else []
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _ENDS:
            command.append(word)
            continue
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command = command[1:]
        wrong += _wrong_words(command) if command else []
        command = []
    return wrong


def _is_missing_file(word: str) -> bool:
    is_ours = re.fullmatch(r"(docker|tests|bench|docs|pipelines|loaders)/[\w./-]+", word)
    return is_ours is not None and not (ROOT / word).exists()


def _wrong_words(words: list[str]) -> list[str]:
    program, rest = Path(words[0]).name, words[1:]
    options = [word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)]
    if program == "make":
        return _wrong_targets(rest)
    if program == "pip":
        return [extra for word in rest for extra in _wrong_extras(word)]
    if program == "docker" and rest[0] == "build":
        return _wrong_image(rest)
    starts = [n for n, word in enumerate(words) if Path(word).name in _STARTS]
    if starts:
        return _wrong_call([*_STARTS[Path(words[starts[-1]]).name], *words[starts[-1] + 1 :]])
    if program.startswith("python") and rest and rest[0].endswith(".py") and (ROOT / rest[0]).is_file():
        code = (ROOT / rest[0]).read_text("utf-8")
        return [o for o in options if f'"{o}"' not in code and not re.search(rf"^    {_variable(o)}: ", code, re.M)]
    return []


def _variable(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _wrong_call(words: list[str]) -> list[str]:
    known = known_commands()
    name = " ".join(words[: 2 if words[:1] == ["cache"] else 1])
    if not name or name == "...":
        return []
    if name not in known:
        return [f"penstock {name}"]
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    return sorted(f"penstock {name} {option}" for option in options - known[name])


def _wrong_targets(words: list[str]) -> list[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE)
    named = [word.partition("=")[0] for word in words if not word.startswith("-")]
    used = re.findall(r"\$[({](\w+)[)}]", makefile)
    return [word for word in named if word not in (*targets, *used)]


def _wrong_extras(word: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.fullmatch(r"(?:\.|dist/.*whl|penstock-loader)\[([\w,-]+)\]", word)
    return [extra for extra in named[1].split(",") if extra not in project["optional-dependencies"]] if named else []


def _wrong_image(words: list[str]) -> list[str]:
    text = (ROOT / "docker/Dockerfile").read_text("utf-8")
    stages, arguments = re.findall(r"^FROM .* AS (\S+)", text, re.M), re.findall(r"^ARG (\w+)", text, re.M)
    pairs = list(itertools.pairwise(words))
    wrong = [stage for option, stage in pairs if option == "--target" and stage not in stages]
    return wrong + [a for option, a in pairs if option == "--build-arg" and a.partition("=")[0] not in arguments]


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_names_in_commands_exist(page: str) -> None:
    lines = lines_of((ROOT / page).read_text("utf-8"))
    assert {line: wrong for line in lines if (wrong := wrong_parts(line))} == {}


def test_pages_contain_commands_of_every_kind() -> None:
    shown = [line for page in PAGES for line in lines_of(page.read_text("utf-8"))]
    for start, least in (("penstock ", 40), ("python tests/", 8), ("make ", 10), ("docker ", 4), ("sbatch ", 3)):
        assert sum(line.startswith(start) for line in shown) >= least, start


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("penstock bench x --baseline  # it's fast", []),
        ("penstock bench x --gone", ["penstock bench --gone"]),
        ("penstock bench 'x", ["No closing quotation"]),
        ("penstock cache bild a b", ["penstock cache bild"]),
        ("penstock parity x --json=a && penstock go", ["penstock go"]),
        (
            "torchrun --nproc-per-node 4 -m penstock.bench.cli cache build a b --shard 4",
            ["penstock cache build --shard"],
        ),
        ("sbatch --array=0-15 --wrap 'penstock cache build a b --shardz 64'", ["penstock cache build --shardz"]),
        ("sbatch --nodes 4 docker/slurm/train.sbatch imagenet --ampp bf16", ["penstock train --ampp"]),
        ("PENSTOCK='apptainer exec x penstock' sbatch docker/slurm/trian.sbatch ...", ["docker/slurm/trian.sbatch"]),
        ("python tests/studies/gone.py --json a", ["tests/studies/gone.py"]),
        ("python tests/studies/drop_in_cost.py --repeat 11", ["--repeat"]),
        ("python tests/studies/plant_faults.py --limit 80 --rann .coverage", ["--rann"]),
        ("make report-pictures REPORT_RECORD=RECORD.json", ["report-pictures"]),
        ("make report-picture REPORT_RECORDS=RECORD.json", ["REPORT_RECORDS"]),
        ("docker build --target gpus --build-arg BASES=x -t penstock:gpu .", ["gpus", "BASES=x"]),
        ("docker run --rm penstock:gpu train /data --amp bf16 --resume-at 3", ["penstock train --resume-at"]),
        ("pip install '.[hdf5,pilow]'", ["pilow"]),
        ("kubectl apply -f docker/kubernetes/trains.yaml", ["docker/kubernetes/trains.yaml"]),
    ],
)
def test_a_wrong_command_is_found(line: str, wrong: list[str]) -> None:
    assert wrong_parts(line) == wrong
