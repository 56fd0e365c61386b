"""The architectures that can be served: configuration → Blueprint. A new one is a file here and a line in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmsrv.models import gemma3, llama, mistral, qwen2
from llmsrv.models.blueprint import Blueprint, WeightSource
from llmsrv.models.config_reader import ConfigReader
from llmsrv.weights.gguf import GgufFile
from llmsrv.weights.mapped_file import StoredTensor

__all__ = ["Blueprint", "WeightSource", "blueprint_from_config", "blueprint_from_gguf"]

# By the name in `architectures` of config.json.
_CONFIG: dict[str, Callable[[ConfigReader, Mapping[str, StoredTensor]], Blueprint]] = {
    gemma3.ARCHITECTURE: gemma3.blueprint_from_config,
    llama.ARCHITECTURE: llama.blueprint_from_config,
    mistral.ARCHITECTURE: mistral.blueprint_from_config,
    qwen2.ARCHITECTURE: qwen2.blueprint_from_config,
}

# By `general.architecture` of a GGUF file.
_GGUF: dict[str, Callable[[GgufFile], Blueprint]] = {
    "gemma3": gemma3.blueprint_from_gguf,
    "llama": llama.blueprint_from_gguf,
    "qwen2": qwen2.blueprint_from_gguf,
}


def blueprint_from_config(config: Mapping[str, object], tensors: Mapping[str, StoredTensor], where: str) -> Blueprint:
    """The model that a parsed config.json describes. `where` begins every error message.

    Raises ValueError for an unknown architecture and for everything that cannot be computed as the file says.
    """
    reader = ConfigReader(config, where)
    names = reader.texts("architectures")
    if len(names) != 1:
        raise reader.error("architectures", "needs exactly one name")
    if names[0] not in _CONFIG:
        raise reader.error("architectures", f"is not supported; known are {', '.join(sorted(_CONFIG))}")
    return _CONFIG[names[0]](reader, tensors)


def blueprint_from_gguf(file: GgufFile) -> Blueprint:
    """The model that a GGUF file holds. Raises ValueError as blueprint_from_config does."""
    reader = ConfigReader(file.metadata, str(file.path))
    name = reader.text("general.architecture")
    if name not in _GGUF:
        raise reader.error("general.architecture", f"is not supported; known are {', '.join(sorted(_GGUF))}")
    return _GGUF[name](file)
