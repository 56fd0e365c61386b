"""Who may include whom: the arrows of the design, held against every #include and import."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Folder of cpp/ -> folders it may use directly; what those use is allowed too.
ARROWS = {
    "base": [],
    "tensor": ["base"],
    "quant": ["tensor"],
    "sample": ["tensor"],
    "ops": ["tensor", "quant", "sample"],
    "cpu": ["ops"],
    "cuda": ["ops"],
    "sched": ["base"],
    "model": ["ops"],
    "engine": ["sched", "model", "sample"],
    "bindings": ["engine"],
}
# The one file that names a device.
DEVICE_CHOOSER = "cpp/engine/backends.cc"


def reachable(folder):
    allowed = {folder}
    for used in ARROWS[folder]:
        allowed |= reachable(used)
    return allowed


def sources(folder, suffixes):
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def test_core_includes_follow_the_arrows():
    wrong = []
    for path in sources("cpp", {".h", ".cc"}) + sources("python/bindings", {".h", ".cc"}):
        relative = path.relative_to(ROOT).as_posix()
        if relative.startswith("python/bindings/testing/"):
            continue  # the testing module looks into every folder
        folder = relative.split("/")[1]
        allowed = reachable(folder) | ({"cpu", "cuda"} if relative == DEVICE_CHOOSER else set())
        for included in re.findall(r'#include "(?:cpp|python)/(\w+)/', path.read_text()):
            if included not in allowed:
                wrong.append(f"{relative} includes {included}/")
    assert not wrong, wrong


def test_the_kernels_know_only_themselves():
    allowed = {
        "cuda/kernels": ("cuda/kernels/", "cpp/quant/packed_layout.h"),  # the layout is plain integers
        "cuda/launch": ("cuda/kernels/", "cuda/launch/", "cuda/library/dense_products.h"),
        "cuda/conformance": ("cuda/kernels/", "cuda/conformance/"),
        "cuda/device": ("cuda/device/", "cuda/emulation/bindings.h"),
        "cuda/library": ("cuda/library/",),
        "cuda/plugin": ("cuda/plugin/", "cuda/launch/", "cuda/library/", "cpp/ops/plugin.h", "cpp/ops/launches.h"),
    }
    for folder, prefixes in allowed.items():
        for path in sources(folder, {".h", ".cc", ".cu", ".cuh"}):
            for included in re.findall(r'#include "([^"]+)"', path.read_text()):
                assert included.startswith(prefixes), f"{path.relative_to(ROOT)} includes {included}"


def test_only_the_files_of_single_instructions_know_which_compiler_reads_them():
    for path in sources("cuda/kernels", {".cuh"}) + sources("cuda/launch", {".h", ".cu"}):
        assert ("__CUDACC__" in path.read_text()) == (path.name in ("device.cuh", "device_hopper.cuh")), path


def test_core_knows_neither_python_nor_the_cuda_plug_in():
    for path in sources("cpp", {".h", ".cc"}):
        text = path.read_text()
        assert not re.search(r"#include\s*[<\"](Python\.h|pybind11/|cuda)", text), path
        assert '#include "cuda/' not in text, path


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_python_layers_import_downwards_only():
    forbidden = {
        "serve": ["llmsrv._core"],
        "text": ["llmsrv._core", "llmsrv.service", "llmsrv.engine", "llmsrv.serve", "llmsrv.weights", "llmsrv.models"],
        "weights": ["llmsrv.service", "llmsrv.engine", "llmsrv.serve", "llmsrv.text"],
        "models": ["llmsrv.service", "llmsrv.engine", "llmsrv.serve", "llmsrv.text"],
    }
    for folder, modules in forbidden.items():
        for path in sources(f"python/llmsrv/{folder}", {".py"}):
            for imported in imported_modules(path):
                assert not any(imported == m or imported.startswith(m + ".") for m in modules), f"{path}: {imported}"


def test_the_service_knows_no_transport():
    for name in ("service.py", "engine.py", "llm.py"):
        for imported in imported_modules(ROOT / "python/llmsrv" / name):
            assert not imported.startswith(("grpc", "llmsrv.serve", "llmsrv.v1", "google.protobuf")), (
                f"{name}: {imported}"
            )


def test_bindings_of_kernels_hand_out_memory_in_one_way():
    """A pointer of the host's would be right on the emulator alone."""
    for name in re.findall(r"bindings_\w+\.cc", (ROOT / "cuda/sources.cmake").read_text()):
        text = (ROOT / "cuda/emulation" / name).read_text()
        assert not re.search(r"\w(\.|->)(data|mutable_data)\(\)[,};]", text), name
