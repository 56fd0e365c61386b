"""The committed llmsrv.v1 is what the protos say."""

import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from google.protobuf import descriptor_pb2

from llmsrv.v1 import admin_pb2, inference_pb2, model_pb2, types_pb2

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "python/llmsrv/v1"
MODULES = (admin_pb2, inference_pb2, model_pb2, types_pb2)

spec = importlib.util.spec_from_file_location("generate", ROOT / "protos/generate.py")
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)


def compiled(tmp_path):
    """The protos as the installed compiler reads them, by file name."""
    output = tmp_path / "image.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}", f"--descriptor_set_out={output}"]
    names = [f"llmsrv/v1/{path.name}" for path in sorted((ROOT / "protos/llmsrv/v1").glob("*.proto"))]
    subprocess.run([*command, *names], check=True)
    image = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    return {file.name: file for file in image.file}


def test_messages_and_services_are_those_of_the_protos(tmp_path):
    files = compiled(tmp_path)
    assert set(files) == {module.DESCRIPTOR.name for module in MODULES}
    for module in MODULES:
        committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for file in (committed, files[module.DESCRIPTOR.name]):
            for message in file.message_type:
                strip_json_names(message)
        assert committed == files[module.DESCRIPTOR.name], module.DESCRIPTOR.name


def strip_json_names(message):
    """A compiler fills them in or leaves them out; they follow from the names."""
    for field in message.field:
        field.ClearField("json_name")
    for inner in message.nested_type:
        strip_json_names(inner)


def test_stubs_have_every_method():
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            stub = (COMMITTED / f"{Path(module.__file__).stem}_grpc.py").read_text()
            for method in service.methods:
                assert f"/{service.full_name}/{method.name}'" in stub


def test_generating_again_changes_nothing(tmp_path):
    """Byte by byte with the version that the code was made with, else up to what another version writes differently."""
    generator.generate(tmp_path)
    fresh = {path.name: path.read_text() for path in (tmp_path / "llmsrv/v1").iterdir()}
    committed = {path.name: path.read_text() for path in COMMITTED.iterdir() if "_pb2" in path.name}
    assert set(fresh) == set(committed)
    same_version = metadata.version("grpcio-tools") == generator.TOOLS_VERSION
    for name, text in committed.items():
        if same_version:
            assert fresh[name] == text, name
        else:
            assert names_in(fresh[name]) == names_in(text), name


def names_in(text):
    return sorted(set(re.findall(r"[A-Za-z_]{4,}", text)) - {"object", "Optional", "_Optional"})
