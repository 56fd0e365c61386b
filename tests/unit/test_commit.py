"""Which commit a build is told to be: what is given, what git says of this very tree, or what a distribution has."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cmake
import pytest

from llmsrv.commit import built_commit

SCRIPT = Path(__file__).resolve().parents[2] / "python/bindings/commit.cmake"
CMAKE = Path(cmake.CMAKE_BIN_DIR) / "cmake"
IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")


def git(folder, *arguments):
    program = shutil.which("git")
    assert program, "git is not installed"
    return subprocess.run([program, "-C", folder, *IDENTITY, *arguments], capture_output=True, text=True, check=True)


def written(source, output="told.txt", given=""):
    """What the script writes for a tree."""
    path = source.parent / output
    definitions = (f"-DSOURCE={source}", f"-DGIVEN={given}", f"-DOUTPUT={path}")
    subprocess.run([CMAKE, *definitions, "-P", SCRIPT], check=True, capture_output=True)
    return path.read_text()


@pytest.fixture
def tree(tmp_path):
    """A checkout with one commit."""
    folder = tmp_path / "tree"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/file").write_text("a")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def head(tree):
    return git(tree, "rev-parse", "HEAD").stdout.strip()


def test_a_checkout_is_at_its_commit(tree):
    assert written(tree) == f"{head(tree)}\n"
    assert written(tree, "told.py") == f'COMMIT = "{head(tree)}"\n'
    (tree / "new").write_text("b")  # git does not know it: the build does neither
    assert written(tree) == f"{head(tree)}\n"
    (tree / "inner/file").write_text("b")
    assert written(tree) == f"{head(tree)}+changes\n"


def test_a_tree_inside_of_somebody_elses_repository_is_not_theirs(tree):
    assert written(tree / "inner", "inner/told.txt") == "\n"
    (tree / "inner/COMMIT").write_text("abc123+changes\n")  # as a source distribution has it
    assert written(tree / "inner", "inner/told.txt") == "abc123+changes\n"


def test_a_tree_without_git(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    assert written(source) == "\n"
    (source / "COMMIT").write_text("abc123\n")
    assert written(source) == "abc123\n"
    (source / "COMMIT").write_text('"; import os\n')
    assert written(source) == "\n"


def test_what_is_given_goes_first(tree):
    assert written(tree, given="abc123") == "abc123\n"


def test_a_file_that_says_so_already_is_left_alone(tree):
    written(tree)
    path = tree.parent / "told.txt"
    before = path.stat().st_mtime_ns
    written(tree)
    assert path.stat().st_mtime_ns == before


def test_an_installation_says_what_it_was_built_from(monkeypatch):
    monkeypatch.setitem(sys.modules, "llmsrv._commit", None)  # as where nothing was built
    assert built_commit() == ""
    monkeypatch.setitem(sys.modules, "llmsrv._commit", SimpleNamespace(COMMIT="abc123"))
    assert built_commit() == "abc123"
