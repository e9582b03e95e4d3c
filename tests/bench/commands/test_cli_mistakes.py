"""Users' mistakes on the command line: one line, a fix, the right exit code, no traceback."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import penstock, penstock_here
from mistaken_data import write_mistakes
from mounts import needs_mounts

USAGE, DATA, CACHE, RESOURCE = 2, 3, 4, 7
MODEL = USAGE if find_spec("timm") else RESOURCE  # timm knows the other names
SMALL = "--size 16 --batch-size 2 --workers 0"
MISTAKES = {
    f"iterate potos {SMALL}": (DATA, "perhaps 'photos'"),
    f"iterate ~/photos {SMALL}": (DATA, "the shell replaces ~"),
    f"iterate s3:/bucket/a.tar {SMALL}": (DATA, "'s3://bucket/a.tar'"),
    f"iterate empty {SMALL}": (DATA, "pass a folder that contains JPEG"),
    f"iterate hidden {SMALL}": (DATA, "skipped: 1 hidden"),
    f"iterate hollow {SMALL}": (DATA, "E-EMPTYCLASS"),
    f"iterate bad {SMALL}": (DATA, "E-FORMAT"),
    f"iterate noheader.csv {SMALL}": (USAGE, "the first line of a table"),
    f"iterate odd.csv --image id --label specie {SMALL}": (USAGE, "pass label='species'"),
    f"iterate labels.csv --classes a,b {SMALL}": (DATA, "is not one of classes"),
    f"iterate photos --classes a,b {SMALL}": (USAGE, "not in classes"),
    f"iterate photos --subset train {SMALL}": (USAGE, "subset must be indices"),
    f"iterate photos --backend pytorch {SMALL}": (USAGE, "perhaps 'torch'"),
    f"iterate photos --decoder PIL {SMALL}": (USAGE, "perhaps 'pillow'"),
    f"iterate photos --cache c.h5 {SMALL}": (USAGE, "cache is an option of backend='hdf5'"),
    f"iterate photos --backend hdf5 {SMALL}": (USAGE, "--cache data.h5"),
    f"iterate photos --backend hdf5 --cache own.h5 {SMALL}": (CACHE, "is not a cache and is not replaced"),
    f"iterate photos --state-in nowhere.json {SMALL}": (USAGE, "E-STATE"),
    f"iterate photos --state-in labels.csv {SMALL}": (USAGE, "the state cannot be read"),
    f"iterate photos --rank 0 {SMALL}": (USAGE, "both rank and world_size"),
    f"iterate a.zip {SMALL}": (USAGE, "unpack it"),
    f"iterate a.tar {SMALL}": (DATA, "not a tar file"),
    f"iterate a.h5 {SMALL}": (CACHE, "E-CACHE"),
    "compare potos.json potos.json": (USAGE, "penstock bench DATA --json FILE"),
    "cache info photos": (CACHE, "this folder does not contain a cache"),
    "synth /proc/demo": (DATA, "the folder cannot be written"),
    f"iterate photos --state-out /proc/s.json {SMALL}": (DATA, "E-ACCESS"),
    f"iterate photos --backend hdf5 --cache /proc/c.h5 {SMALL}": (CACHE, "no file can be created in the folder"),
    "train photos --checkpoint /proc/c.pt --device cpu": (DATA, "E-ACCESS"),
    "index potos": (DATA, "perhaps 'photos'"),
    "cache build potos c.h5 --workers 0": (DATA, "perhaps 'photos'"),
    "cache build photos nowhere/c.h5 --workers 0": (USAGE, "mkdir -p"),
    "cache build photos photos/c.h5 --workers 0": (USAGE, "outside"),
    "cache info labels.csv": (CACHE, "E-CACHE"),
    "cache verify potos.h5": (DATA, "penstock cache build SOURCE CACHE"),
    "train potos --device cpu": (DATA, "perhaps 'photos'"),
    "train photos --device gpu": (USAGE, "perhaps 'cuda'"),
    f"iterate photos {SMALL} --batch-size 100": (USAGE, "12 samples cannot fill a global batch of 100"),
    f"iterate photos {SMALL} --size 20000": (USAGE, "16384"),
    f"iterate photos {SMALL} --rank 2 --world-size 2": (USAGE, "rank must be in"),
    f"iterate photos {SMALL} --dump /nonexistent/dump": (USAGE, "No such file or directory: '/nonexistent/dump'"),
    # Usage is checked before the data is opened, because a first scan may take minutes: this data does not exist.
    "train potos --backend nonsense": (USAGE, "backend must be one of"),
    "train potos --decoder nonsense": (USAGE, "decoder must be one of"),
    "train potos --on-bad-sample nonsense": (USAGE, "on_bad_sample must be one of"),
    "train potos --auto-augment nonsense": (USAGE, "auto_augment must be"),
    "train potos --min-scale 2": (USAGE, "scale (low) must be above 0 and at most 1"),
    "train potos --model nonsense": (MODEL, "nonsense"),
    "train potos --amp nonsense": (USAGE, "amp must be"),
    "train potos --lr 0": (USAGE, "lr must be above 0"),
    "bench potos --backend nonsense": (USAGE, "backend must be one of"),
    "bench potos --decoder nonsense": (USAGE, "decoder must be one of"),
    "bench potos --max-cpu 0": (USAGE, "max_cpu must be above 0"),
    "bench potos --dtype nonsense": (USAGE, "dtype must be"),
    "bench potos --model nonsense": (MODEL, "nonsense"),
    "bench potos --amp nonsense": (USAGE, "amp must be"),
    "iterate potos --backend nonsense": (USAGE, "backend must be one of"),
    "iterate potos --decoder nonsense": (USAGE, "decoder must be one of"),
    "iterate potos --on-bad-sample nonsense": (USAGE, "on_bad_sample must be one of"),
    "iterate potos --watchdog -1": (USAGE, "watchdog_s"),
    "ablate potos --model nonsense": (MODEL, "nonsense"),
    "doctor potos --backend nonsense": (USAGE, "nonsense"),
    "doctor potos --on-bad-sample nonsense": (USAGE, "on_bad_sample must be"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mistakes(tmp_path_factory.mktemp("mistakes"))


@pytest.mark.parametrize(("command", "expected"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_on_the_command_line_ends_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, command: str, expected: tuple[int, str]
) -> None:
    monkeypatch.chdir(root)
    done = penstock_here(*command.split())
    code, words = expected
    assert "Traceback" not in done.stderr
    assert words in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("bench photos --bs 4", "--batch-size"),
        ("bench photos --num-workers 4", "--workers"),
        ("train photos --val photos", "--validation"),
        ("train photos --learning-rate 1", "--lr"),
        ("cache build photos c.h5 --num-threads 4", "--workers"),
    ],
)
def test_an_option_of_another_tool_is_translated(command: str, option: str) -> None:
    done = penstock_here(*command.split())
    assert done.returncode == USAGE
    assert "No such option" in done.stderr
    assert f"(Possible options: {option})" in done.stderr


@needs_mounts
def test_a_full_disk_is_reported(root: Path, tmp_path: Path) -> None:
    full = 'mount -t tmpfs -o size=64k tmpfs $0 && head -c 64000 /dev/zero > $0/fill; exec "$@"'
    prefix = ("unshare", "-m", "sh", "-c", full, str(tmp_path))
    for command in (f"cache build photos {tmp_path}/c.h5 --workers 0", f"synth {tmp_path}/demo"):
        done = penstock(*command.split(), prefix=prefix, cwd=root)
        assert (done.returncode, len(done.stderr.splitlines())) == (RESOURCE, 1), done.stderr
        assert "E-NOSPC" in done.stderr
        assert "No space left on device: fix=free disk space" in done.stderr
