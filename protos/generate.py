"""Makes python/llmsrv/v1 from protos/: `python protos/generate.py [OUTPUT_FOLDER]`.

The generated code is committed, so that neither a build nor an installation needs the compiler. It is made with one
fixed version of grpcio-tools: generated code demands at run time at least the protobuf and grpcio it was made with,
and this version's demands are the lower bounds in pyproject.toml.
"""

import sys
from importlib import metadata, resources
from pathlib import Path

TOOLS_VERSION = "1.78.0"
PROTOS = Path(__file__).resolve().parent
DEFAULT_OUTPUT = PROTOS.parent / "python"


def generate(output: Path) -> None:
    """Writes llmsrv/v1/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py under `output`."""
    from grpc_tools import protoc

    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("llmsrv/v1/*.proto"))
    includes = [f"-I{PROTOS}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    targets = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
    status = protoc.main(["protoc", *includes, *targets, *sources])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    # A file without services gives an empty stub module.
    for path in output.glob("llmsrv/v1/*_pb2_grpc.py"):
        if "Stub" not in path.read_text():
            path.unlink()


def main() -> None:
    """Writes into the given folder, by default into the package."""
    installed = metadata.version("grpcio-tools")
    if installed != TOOLS_VERSION:
        raise SystemExit(f"grpcio-tools {TOOLS_VERSION} is needed, {installed} is installed")
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUTPUT)


if __name__ == "__main__":
    main()
