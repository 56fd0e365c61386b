"""Weights kept as they stand in memory: the same bits as packed ones, and no file that is not theirs is ever used."""

import hashlib
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors, write_folder

from llmsrv import _testing
from llmsrv.weights import load, packed_cache
from llmsrv.weights.load import PackedCache, inspect_model, load_weights

PROMPT = [5, 3, 90, 17, 3]
PAGE = 4096
QUANTIZATIONS = ("int8", "int8-g64", "int4", "int4-g64")


@pytest.fixture(autouse=True)
def nothing_is_young(monkeypatch):
    """Model files of these tests are as old as any; one test brings its own idea of youth."""
    monkeypatch.setattr(packed_cache, "_YOUNG_NS", 0)


class Start:
    """One start of a model with a cache: its weights, what it said, and whether they came from the cache."""

    def __init__(self, model, folder, dtype="int8", bytes_max=1 << 40):
        self.lines, self.progress = [], []
        files = inspect_model(model)
        cache = PackedCache(folder, files, self.lines.append, bytes_max)
        packed = []
        with pytest.MonkeyPatch.context() as patch:
            real = load._read_weights
            patch.setattr(load, "_read_weights", lambda *all_: packed.append(real(*all_)))
            self.weights = load_weights(
                files, dtype=dtype, threads=2, progress=lambda *at: self.progress.append(at), cache=cache
            )
        self.was_cached = not packed

    def logits(self):
        return _testing.forward_logits(self.weights, PROMPT)


def model_in(folder, seed=0, **changes):
    config = TINY | changes
    return write_folder(folder, tiny_tensors(config, seed=seed), config)


def cached_files(folder):
    return sorted(folder.glob("*.packed"))


def same_bits(first, second):
    return first.tobytes() == second.tobytes()


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32", "int8", "int4", "int8-g64", "int4-g64"])
def test_the_second_start_packs_nothing_and_computes_the_same_bits(tmp_path, dtype):
    model = model_in(tmp_path / "model")
    plain = load_weights(inspect_model(model), dtype=dtype, threads=1)
    first, second = (Start(model, tmp_path / "cache", dtype=dtype) for _ in range(2))
    assert (first.was_cached, second.was_cached) == (False, True)
    assert [line.startswith("packed cache: wrote ") for line in first.lines] == [True]
    assert second.lines == []
    assert second.weights.missing() == []
    assert second.weights.bytes == plain.bytes
    expected = _testing.forward_logits(plain, PROMPT)
    assert same_bits(first.logits(), expected)
    assert same_bits(second.logits(), expected)
    (file,) = cached_files(tmp_path / "cache")
    assert second.progress[-1] == (file.stat().st_size,) * 2
    with pytest.raises(ValueError, match="was set before"):
        second.weights.set("final_norm", "f32", [64], np.zeros(64, np.float32))


def test_a_real_model_of_blocks(smollm2_path, tmp_path):
    plain = load_weights(inspect_model(smollm2_path), dtype="auto", threads=2)
    assert not Start(smollm2_path, tmp_path, dtype="auto").was_cached
    start = Start(smollm2_path, tmp_path, dtype="auto")
    assert start.was_cached
    assert same_bits(start.logits(), _testing.forward_logits(plain, PROMPT))


def test_mapped_weights_outlive_their_file(tmp_path):
    model = model_in(tmp_path / "model")
    first = Start(model, tmp_path / "cache")
    second = Start(model, tmp_path / "cache")
    for file in cached_files(tmp_path / "cache"):
        file.unlink()
    assert second.was_cached
    assert same_bits(first.logits(), second.logits())


def test_each_type_and_each_content_has_its_own_file(tmp_path):
    cache = tmp_path / "cache"
    models = [model_in(tmp_path / f"model{seed}", seed=seed) for seed in (0, 1)]
    for model in models:
        for dtype in QUANTIZATIONS:
            assert not Start(model, cache, dtype=dtype).was_cached
    assert len(cached_files(cache)) == 2 * len(QUANTIZATIONS)
    for model in models:
        for dtype in QUANTIZATIONS:
            start = Start(model, cache, dtype=dtype)
            assert start.was_cached
            plain = load_weights(inspect_model(model), dtype=dtype, threads=1)
            assert same_bits(start.logits(), _testing.forward_logits(plain, PROMPT))


def test_the_same_content_elsewhere_is_the_same_file(tmp_path):
    assert not Start(model_in(tmp_path / "model"), tmp_path / "cache").was_cached
    (tmp_path / "other").mkdir()
    assert Start(model_in(tmp_path / "other" / "model"), tmp_path / "cache").was_cached


def test_another_row_order_is_another_file(tmp_path, monkeypatch):
    model = model_in(tmp_path / "model")
    assert not Start(model, tmp_path / "cache").was_cached
    monkeypatch.setattr("llmsrv.__version__", "0.0.0")
    assert not Start(model, tmp_path / "cache").was_cached


def overwrite(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def cut_to(size):
    return lambda path: os.truncate(path, size(path.stat().st_size))


def becomes_a_folder(path):
    path.unlink()
    path.mkdir()


BAD_FILES = {
    "empty": cut_to(lambda size: 0),
    "a byte": cut_to(lambda size: 1),
    "cut within the text": cut_to(lambda size: 100),
    "cut after the text": cut_to(lambda size: PAGE),
    "cut within the weights": cut_to(lambda size: size // 2 // PAGE * PAGE),
    "a byte short": cut_to(lambda size: size - 1),
    "a byte long": cut_to(lambda size: size + 1),
    "foreign": lambda path: path.write_bytes(b"\x7fELF" + bytes(path.stat().st_size - 4)),
    "older": lambda path: overwrite(path, len("llmsrv packed weights, version "), b"0"),
    "changed text": lambda path: overwrite(path, 300, b"#"),
    "changed padding": lambda path: overwrite(path, path.read_bytes()[: 2 * PAGE].index(b"\0") + 1, b"#"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_told_ignored_and_replaced(tmp_path, case):
    model = model_in(tmp_path / "model")
    good = Start(model, tmp_path / "cache")
    (file,) = cached_files(tmp_path / "cache")
    content = file.read_bytes()
    BAD_FILES[case](file)
    start = Start(model, tmp_path / "cache")
    assert not start.was_cached
    assert len(start.lines) == 2
    assert start.lines[0].startswith(f"packed cache: {file} is not used and will be replaced: ")
    assert start.lines[1].startswith(f"packed cache: wrote {file}, ")
    assert same_bits(start.logits(), good.logits())
    assert file.read_bytes() == content
    assert Start(model, tmp_path / "cache").was_cached


def test_a_file_of_another_model_under_this_name(tmp_path):
    cache = tmp_path / "cache"
    models = [model_in(tmp_path / f"model{seed}", seed=seed) for seed in (0, 1)]
    Start(models[0], cache)
    (first,) = cached_files(cache)
    Start(models[1], cache)
    (second,) = set(cached_files(cache)) - {first}
    first.write_bytes(second.read_bytes())
    start = Start(models[0], cache)
    assert not start.was_cached
    assert "is not of this model" in start.lines[0]


def test_a_folder_under_its_name(tmp_path):
    model = model_in(tmp_path / "model")
    good = Start(model, tmp_path / "cache")
    (file,) = cached_files(tmp_path / "cache")
    becomes_a_folder(file)
    start = Start(model, tmp_path / "cache")
    assert not start.was_cached
    assert "is not used" in start.lines[0]
    assert "could not be written" in start.lines[1]
    assert same_bits(start.logits(), good.logits())
    assert sorted(tmp_path.glob("cache/.*.packed")) == []


def test_any_numbers_behind_the_text_are_only_numbers(tmp_path):
    """They are not checked, so nothing in them may lead anywhere: no crash, whatever they are."""
    model = model_in(tmp_path / "model")
    Start(model, tmp_path / "cache", dtype="int4")
    (file,) = cached_files(tmp_path / "cache")
    size, rng = file.stat().st_size, np.random.default_rng(0)
    for fill in (rng.bytes(size), b"\xff" * size):
        text_end = (file.read_bytes().index(b"\0") // PAGE + 1) * PAGE
        overwrite(file, text_end, fill[text_end:])
        start = Start(model, tmp_path / "cache", dtype="int4")
        assert start.was_cached
        assert start.logits().shape == (len(PROMPT), 96)


def test_a_changed_model_is_never_taken_for_the_old_one(tmp_path):
    """Not even when it has the old size and the old time of change."""
    model = model_in(tmp_path / "model")
    path = model / "model.safetensors"
    Start(model, tmp_path / "cache")
    assert Start(model, tmp_path / "cache").was_cached
    times = path.stat()
    overwrite(path, path.stat().st_size - 4, np.float32(0.25).tobytes())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    start = Start(model, tmp_path / "cache")
    assert not start.was_cached
    plain = load_weights(inspect_model(model), dtype="int8", threads=1)
    assert same_bits(start.logits(), _testing.forward_logits(plain, PROMPT))


def test_a_model_is_hashed_once_unless_it_is_young(tmp_path, monkeypatch):
    hashed = []
    real = packed_cache.file_sha256
    monkeypatch.setattr(packed_cache, "file_sha256", lambda path: hashed.append(path) or real(path))
    model = model_in(tmp_path / "model")
    monkeypatch.setattr(packed_cache, "_YOUNG_NS", 3600 * 10**9)
    for _ in range(2):
        Start(model, tmp_path / "cache")
    assert len(hashed) == 2
    monkeypatch.setattr(packed_cache, "_YOUNG_NS", 0)
    for _ in range(3):
        assert Start(model, tmp_path / "cache").was_cached
    assert len(hashed) == 3
    for stamp in tmp_path.glob("cache/.*.sha256"):
        stamp.write_bytes(b"\xff nonsense")
    assert Start(model, tmp_path / "cache").was_cached
    assert len(hashed) == 4


def test_nothing_is_kept_of_a_model_that_changes_while_it_is_read(tmp_path, monkeypatch):
    model = model_in(tmp_path / "model")
    real = load._read_weights

    def read_and_change(*all_):
        real(*all_)
        os.utime(model / "model.safetensors", ns=(0, time.time_ns()))

    monkeypatch.setattr(load, "_read_weights", read_and_change)
    assert "changed while they were read" in Start(model, tmp_path / "cache").lines[0]
    assert cached_files(tmp_path / "cache") == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "cache").write_text("a file")
    start = Start(model_in(tmp_path / "model"), tmp_path / "cache")
    assert start.weights.missing() == []
    assert [line.endswith(")") and "cannot be used" in line for line in start.lines] == [True]


@contextmanager
def file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    model = model_in(tmp_path / "model")
    with file_size_limit(3 * PAGE):
        start = Start(model, tmp_path / "cache")
    assert start.weights.missing() == []
    assert ["could not be written" in line for line in start.lines] == [True]
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".sha256"]


START_SCRIPT = """
import hashlib, sys
import llmsrv
llmsrv.__path__.append(sys.argv[3])  # where the testing module is
from llmsrv import _testing
from llmsrv.weights.load import PackedCache, inspect_model, load_weights
files = inspect_model(sys.argv[1])
weights = load_weights(files, dtype="int8", threads=1, cache=PackedCache(sys.argv[2], files, lambda line: None))
print(hashlib.sha256(_testing.forward_logits(weights, [5, 3, 90, 17, 3]).tobytes()).hexdigest())
"""


def test_many_processes_start_at_once(tmp_path):
    model = model_in(tmp_path / "model")
    where = str(Path(_testing.__file__).parent)
    command = [sys.executable, "-c", START_SCRIPT, str(model), str(tmp_path / "cache"), where]
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {start.communicate(timeout=120)[0] for start in starts}
    expected = hashlib.sha256(Start(model, tmp_path / "none").logits().tobytes()).hexdigest()
    assert answers == {f"{expected}\n"}
    assert len(cached_files(tmp_path / "cache")) == 1
    assert list((tmp_path / "cache").glob(".*.packed")) == []


def models_in(tmp_path, count):
    return [model_in(tmp_path / f"model{seed}", seed=seed) for seed in range(count)]


def used_long_ago(folder, hours):
    """Every file of the folder was used so many hours before now, at the latest."""
    for path in folder.iterdir():
        at = path.stat().st_mtime_ns - int(hours * 3600e9)
        os.utime(path, ns=(at, at))


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    cache, models = tmp_path / "cache", models_in(tmp_path, 4)
    Start(models[0], cache)
    (file,) = cached_files(cache)
    room = 2 * file.stat().st_size
    for model in models[1:3]:
        used_long_ago(cache, 1)
        start = Start(model, cache, bytes_max=room)
    assert len(cached_files(cache)) == 2
    assert [line.split(",")[0] for line in start.lines[1:]] == [f"packed cache: removed {file}"]
    used_long_ago(cache, 1)
    assert Start(models[1], cache, bytes_max=room).was_cached  # now it is not the oldest any more
    used_long_ago(cache, 1)
    Start(models[3], cache, bytes_max=room)
    assert Start(models[1], cache).was_cached
    assert Start(models[3], cache).was_cached
    assert not Start(models[2], cache).was_cached


def test_a_smaller_room_counts_without_anything_new(tmp_path):
    cache, models = tmp_path / "cache", models_in(tmp_path, 3)
    for model in models:
        Start(model, cache)
    assert len(cached_files(cache)) == 3
    start = Start(models[0], cache, bytes_max=0)
    assert start.was_cached
    assert len(start.lines) == 2
    assert len(cached_files(cache)) == 1  # what is in use stays, however large it is
    assert Start(models[0], cache).was_cached


FOREIGN = {
    "another name": lambda cache: (cache / "notes.packed").write_bytes(b"llmsrv packed weights, version 1"),
    "another suffix": lambda cache: (cache / f"model-{'0' * 32}.gguf").write_bytes(b"llmsrv packed weights, version 1"),
    "another content": lambda cache: (cache / f"model-{'0' * 32}.packed").write_bytes(b"\x7fELF"),
    "a folder": lambda cache: (cache / f"model-{'0' * 32}.packed").mkdir(),
    "a link": lambda cache: (cache / f"model-{'0' * 32}.packed").symlink_to(cache.parent / "precious"),
    "a part of something else": lambda cache: (cache / ".abcdefgh.packed").write_bytes(b"\x7fELF"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_not_ours_is_never_removed(tmp_path, case):
    cache, model = tmp_path / "cache", model_in(tmp_path / "model")
    cache.mkdir()
    (tmp_path / "precious").write_bytes(b"llmsrv packed weights, version 1")
    FOREIGN[case](cache)
    before = set(cache.iterdir())
    used_long_ago(cache, 1000)
    assert len(before) == 1
    for _ in range(2):
        Start(model, cache, bytes_max=0)
    assert before < set(cache.iterdir())
    assert len(set(cached_files(cache)) - before) == 1
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("content", [b"", b"llmsrv packed weights, version 1 and so on"])
def test_what_a_killed_process_was_writing_goes(tmp_path, content):
    cache, model = tmp_path / "cache", model_in(tmp_path / "model")
    cache.mkdir()
    for name in (".abcdefgh.packed", ".young123.packed"):
        (cache / name).write_bytes(content)
        if "young" not in name:
            used_long_ago(cache, 2)
    Start(model, cache)
    assert not (cache / ".abcdefgh.packed").exists()
    assert (cache / ".young123.packed").exists()


def test_packing_gives_the_bytes_of_this_version(tmp_path):
    """When this fails, files that are kept would be wrong: raise the version in cpp/model/packed_file.cc with it."""
    tensors = tiny_tensors()
    for index, (name, tensor) in enumerate(sorted(tensors.items())):
        values = (np.arange(tensor.size) * 7919 + index * 104729) % 2003 - 1001
        tensors[name] = (values / 1024).astype(np.float32).reshape(tensor.shape)
    model = write_folder(tmp_path / "model", tensors)
    found = {}
    for dtype in ("bfloat16", "float32", "int8", "int4"):
        Start(model, tmp_path / dtype, dtype=dtype)
        (file,) = cached_files(tmp_path / dtype)
        text, _, _ = file.read_bytes().partition(b"\0")
        content = file.read_bytes()[(len(text) // PAGE + 1) * PAGE :]
        found[dtype] = hashlib.sha256(content).hexdigest()[:16]
    assert text.startswith(b"llmsrv packed weights, version 1\n")
    assert found == {
        "bfloat16": "cee859d10bc1442c",
        "float32": "cb2974fe8412968a",
        "int8": "3818a048c6d06755",
        "int4": "0daceb330bc57de7",
    }
