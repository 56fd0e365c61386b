"""`--device`: what is said when CUDA cannot be used, from the missing driver to a foreign library."""

import subprocess
import sys

import pytest
import testing_module

from llmsrv import _core, _testing
from llmsrv.config import EngineOptions
from llmsrv.engine import load_engine, load_engines, plan_engines

without_cuda = pytest.mark.skipif(_core.cuda_unavailable() is None, reason="CUDA can be used here")


@without_cuda
@pytest.mark.parametrize("load", [load_engines, plan_engines])
def test_cuda_is_refused_with_the_reason_before_anything_is_read(load):
    with pytest.raises(ValueError, match=r"^device cuda cannot be used: .*") as refused:
        load({None: EngineOptions(model="/no/such/model", device="cuda")}, report=print)
    assert str(refused.value).endswith(_core.cuda_unavailable())


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_other_devices_go_on_to_the_model(device):
    with pytest.raises((ValueError, OSError), match="no/such/model"):
        load_engine(EngineOptions(model="/no/such/model", device=device))


def test_an_unknown_device_is_an_error():
    with pytest.raises(ValueError, match="device: must be auto, cpu or cuda, not 'tpu'"):
        EngineOptions(model="m", device="tpu")


@without_cuda
def test_the_daemon_ends_with_one_sentence_and_status_1():
    command = [
        sys.executable,
        "-m",
        "llmsrv.serve.daemon",
        "--model",
        "smollm2-135m",
        "--device",
        "cuda",
        "--port",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(errors) == 1
    assert errors[0].endswith(f"error: device cuda cannot be used: {_core.cuda_unavailable()}")
    assert "Traceback" not in done.stderr


def test_an_installation_without_the_plug_in(tmp_path):
    why = _testing.cuda_unavailable(str(tmp_path / "libllmsrv_cuda.so"), needs_driver=False)
    assert why.startswith("this installation has no CUDA plug-in")


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "libllmsrv_cuda.so"
    path.write_bytes(b"\x7fELF and then nothing")
    assert _testing.cuda_unavailable(str(path), needs_driver=False).startswith("the CUDA plug-in does not load: ")


def built(tmp_path, source):
    """A library from C++ source."""
    code, library = tmp_path / "plugin.cc", tmp_path / "libllmsrv_cuda.so"
    code.write_text(source)
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{testing_module.ROOT}", str(code), "-o", str(library)]
    subprocess.run(command, check=True)
    return str(library)


PLUGIN_SOURCE = """
#include <cstring>
#include "cpp/ops/plugin.h"
static int count(char* why, std::size_t) { std::strcpy(why, "nothing is plugged in"); return DEVICES; }
static const llmsrv::PluginTable table{ABI, &count};
extern "C" const llmsrv::PluginTable* llmsrv_plugin() { return &table; }
"""


@pytest.mark.parametrize(
    ("abi", "devices", "says"),
    [
        ("llmsrv::kPluginAbi + 1", 1, "the CUDA plug-in belongs to another version (interface "),
        ("llmsrv::kPluginAbi", 0, "nothing is plugged in"),
        ("llmsrv::kPluginAbi", 1, "this version has the kernels, but no backend that uses them yet"),
    ],
)
def test_what_a_plug_in_says(tmp_path, abi, devices, says):
    library = built(tmp_path, PLUGIN_SOURCE.replace("{ABI", "{" + abi, 1).replace("DEVICES", str(devices)))
    assert _testing.cuda_unavailable(library, needs_driver=False).startswith(says)


def test_a_library_that_is_no_plug_in(tmp_path):
    library = built(tmp_path, "int nothing;")
    assert _testing.cuda_unavailable(library, needs_driver=False) == f"{library} is no plug-in of llmsrv"
