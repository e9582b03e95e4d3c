"""The commit in a record: of a repository, of its copy, and of neither."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.bench.record.commit import export_commit, find_commit


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("pipelines/native/a.c", "loaders/b.py", "bench/c.py", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"of {name}\n")
    (root / ".gitignore").write_text("/.commit\n")
    git = ("git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *command], check=True)
    return root


def copied(tree: Path, name: str) -> Path:
    """A copy of the tree without its repository."""
    copy = tree.parent / name
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".git"))
    return copy


def test_a_copy_knows_the_commit_and_whether_it_was_changed_since(tree: Path) -> None:
    commit = find_commit(tree)
    assert commit is not None
    assert len(commit) == 12
    assert export_commit(tree, tree) == commit
    copy = copied(tree, "copy")
    assert find_commit(copy) == commit
    (copy / "README.md").write_text("not of the package")
    assert find_commit(copy) == commit
    (copy / "loaders/b.py").write_text("other\n")
    assert find_commit(copy) == f"{commit}+changes"
    assert export_commit(copy, copy) == f"{commit}+changes"
    assert find_commit(copied(copy, "second")) == f"{commit}+changes"


def test_changes_before_the_copy_are_marked_once(tree: Path) -> None:
    commit = find_commit(tree)
    (tree / "loaders/b.py").write_text("other\n")
    assert export_commit(tree, tree) == f"{commit}+changes"
    copy = copied(tree, "copy")
    (copy / "bench/c.py").write_text("other\n")
    assert find_commit(copy) == f"{commit}+changes"


def test_an_exported_file_does_not_hide_the_repositorys_commit(tree: Path) -> None:
    export_commit(tree, tree)
    (tree / "loaders/b.py").write_text("other\n")
    assert str(find_commit(tree)).endswith("+changes")


@pytest.mark.parametrize("text", [None, "", "one\n", "one two three\n", "ä b\n"])
def test_without_repository_and_file_there_is_no_commit(tree: Path, text: str | None) -> None:
    copy = copied(tree, "copy")
    if text is not None:
        (copy / ".commit").write_text(text, "utf-8")
    assert find_commit(copy) is None
    with pytest.raises(ValueError, match="neither a git repository"):
        export_commit(copy, copy)
