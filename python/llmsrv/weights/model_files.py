"""What a model on disk is, without reading its weights: spec, tensor table, tokenizer, chat template, defaults."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from llmsrv._core import ModelSpec, expected_weights
from llmsrv.models import Blueprint, blueprint_from_config, blueprint_from_gguf
from llmsrv.models.config_reader import ConfigReader
from llmsrv.weights.gguf import GgufFile
from llmsrv.weights.json_file import read_json_object
from llmsrv.weights.mapped_file import StoredTensor
from llmsrv.weights.safetensors import read_safetensors_folder

_MAX_TEMPLATE_BYTES = 4 << 20
_LISTED_PROBLEMS = 40

# Names of `general.file_type`, which says more than the tensors' types do: "Q4_K_M" is a mixture.
_GGUF_FILE_TYPES = {
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
}
_PLAIN_FORMATS = ("f32", "f16", "bf16")

# Keys of generation_config.json that say nothing about sampling, or are read elsewhere.
_HARMLESS_GENERATION_KEYS = frozenset(
    {
        "bos_token_id",
        "cache_implementation",
        "do_sample",
        "eos_token_id",
        "max_length",
        "pad_token_id",
        "transformers_version",
        "use_cache",
    }
)


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling values that the model's authors recommend; None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 means all tokens
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    # Recommended, but not supported: `key = value`, to be shown when the model is loaded.
    not_applied: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk, checked: every weight that the spec needs is there with the right shape, and no other."""

    path: Path
    blueprint: Blueprint
    tensors: Mapping[str, StoredTensor]  # by the checkpoint's names
    quantization: str  # for example "Q4_1" or "Q4_K_M"; empty for plain floats
    file_bytes: int
    # A tokenizer.json, or the `tokenizer.*` keys of a GGUF file; None when the folder has no tokenizer.json.
    tokenizer: Path | Mapping[str, object] | None
    chat_template: str | None
    eos_token_ids: tuple[int, ...]  # ascending; empty when the model does not say
    generation: GenerationDefaults

    @property
    def spec(self) -> ModelSpec:
        """The model as data."""
        return self.blueprint.spec

    @cached_property
    def weight_sources(self) -> Mapping[str, str]:
        """Formats of the weights in the files, by the core's names."""
        return {weight: self.tensors[source.tensor].format for weight, source in self.blueprint.sources.items()}

    @property
    def architecture(self) -> str:
        """As in config.json, for example "LlamaForCausalLM", also for GGUF files."""
        return self.blueprint.architecture


def inspect_model(path: str | os.PathLike[str]) -> ModelFiles:
    """Reads everything but the weights of a GGUF file or a Hugging Face folder.

    Raises OSError when a file cannot be opened. Raises ValueError when one is malformed, when the model cannot be
    computed as its configuration says, or when tensors are missing, unexpected or wrongly shaped, naming all of them.
    """
    path = Path(path)
    files = _inspect_folder(path) if path.is_dir() else _inspect_gguf(path)
    _check_tensors(files)
    return files


def _inspect_gguf(path: Path) -> ModelFiles:
    with GgufFile(path) as file:
        metadata = ConfigReader(file.metadata, str(path))
        blueprint = blueprint_from_gguf(file)
        tokenizer = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
        tokens = tokenizer.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list) and len(tokens) > blueprint.spec.vocab_size:
            raise ValueError(
                f"{path}: the tokenizer has {len(tokens)} tokens, but the model only {blueprint.spec.vocab_size}"
            )
        id_keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
        chat_template = metadata.text("tokenizer.chat_template", "")
        return ModelFiles(
            path=path,
            blueprint=blueprint,
            tensors=file.tensors,
            quantization=_gguf_quantization(file),
            file_bytes=file.size,
            tokenizer=tokenizer,
            chat_template=chat_template or None,
            eos_token_ids=_token_ids(metadata, id_keys, blueprint.spec.vocab_size),
            generation=_gguf_generation_defaults(metadata),
        )


def _inspect_folder(folder: Path) -> ModelFiles:
    config_path = folder / "config.json"
    if not config_path.exists():
        raise ValueError(f"{folder}: there is no config.json; a model is a GGUF file or a Hugging Face folder")
    config = read_json_object(config_path)
    tensors = read_safetensors_folder(folder)
    blueprint = blueprint_from_config(config, tensors, str(config_path))
    vocab_size = blueprint.spec.vocab_size
    generation = _optional_json(folder / "generation_config.json")
    tokenizer_config = _optional_json(folder / "tokenizer_config.json")
    ids = {
        *_token_ids(ConfigReader(config, str(config_path)), ["eos_token_id"], vocab_size),
        *_token_ids(generation, ["eos_token_id"], vocab_size),
        *_tokenizer_eos(tokenizer_config, vocab_size),
    }
    tokenizer_path = folder / "tokenizer.json"
    return ModelFiles(
        path=folder,
        blueprint=blueprint,
        tensors=tensors,
        quantization="",
        file_bytes=sum(file.stat().st_size for file in {tensor.path for tensor in tensors.values()}),
        tokenizer=tokenizer_path if tokenizer_path.exists() else None,
        chat_template=_folder_chat_template(folder, tokenizer_config),
        eos_token_ids=tuple(sorted(ids)),
        generation=_generation_defaults(generation),
    )


def _check_tensors(files: ModelFiles) -> None:
    """Lists every tensor that is missing, unexpected or wrongly shaped in one ValueError."""
    problems = []
    known = set(files.blueprint.derived) | set(files.blueprint.copies)
    for weight, shape in expected_weights(files.spec).items():
        name = files.blueprint.sources[weight].tensor
        known.add(name)
        stored = files.tensors.get(name)
        if stored is None:
            problems.append(f"{name} {list(shape)} is missing")
        elif stored.shape != tuple(shape):
            problems.append(f"{name} has the shape {list(stored.shape)} instead of {list(shape)}")
    problems += [
        f"{name} {list(files.tensors[name].shape)} is unexpected" for name in files.tensors if name not in known
    ]
    if problems:
        listed = problems[:_LISTED_PROBLEMS]
        if len(problems) > len(listed):
            listed.append(f"and {len(problems) - len(listed)} more")
        raise ValueError(
            f"{files.path}: the tensors do not fit {files.architecture} as configured: {'; '.join(listed)}"
        )


def _optional_json(path: Path) -> ConfigReader:
    return ConfigReader(read_json_object(path) if path.exists() else {}, str(path))


def _token_ids(config: ConfigReader, keys: Iterable[str], vocab_size: int) -> tuple[int, ...]:
    """All ids that the keys name, ascending. A value is one id or a list of them."""
    return tuple(sorted({id_ for key in keys for id_ in config.integers(key, low=0, high=vocab_size - 1)}))


def _tokenizer_eos(tokenizer_config: ConfigReader, vocab_size: int) -> tuple[int, ...]:
    """The id of the tokenizer's own end token, which chat models sometimes name only here."""
    token = tokenizer_config.token_content("eos_token")
    added = tokenizer_config.section("added_tokens_decoder")
    return tuple(
        int(id_)
        for id_, entry in added.items()
        if token is not None
        and isinstance(entry, dict)
        and entry.get("content") == token
        and id_.isascii()
        and id_.isdigit()
        and len(id_) < 10  # so that int() takes any of them
        and int(id_) < vocab_size
    )


def _folder_chat_template(folder: Path, tokenizer_config: ConfigReader) -> str | None:
    """From chat_template.jinja, or from tokenizer_config.json, where it may be a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.exists():
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ValueError(f"{path}: longer than {_MAX_TEMPLATE_BYTES} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None
    return tokenizer_config.named_text("chat_template", "default")


def _generation_defaults(config: ConfigReader) -> GenerationDefaults:
    return GenerationDefaults(
        temperature=config.optional_number("temperature", low=0.0, high=2.0),
        top_p=config.optional_number("top_p", low=1e-6, high=1.0),
        top_k=config.optional_integer("top_k", low=0),
        min_p=config.optional_number("min_p", low=0.0, high=1.0),
        repetition_penalty=config.optional_number("repetition_penalty", low=1e-3, high=1e3),
        max_new_tokens=config.optional_integer("max_new_tokens", low=1),
        not_applied=tuple(config.leftover(_HARMLESS_GENERATION_KEYS, ("_",))),
    )


def _gguf_generation_defaults(metadata: ConfigReader) -> GenerationDefaults:
    prefix = "general.sampling."
    return GenerationDefaults(
        temperature=metadata.optional_number(prefix + "temp", low=0.0, high=2.0),
        top_p=metadata.optional_number(prefix + "top_p", low=1e-6, high=1.0),
        top_k=metadata.optional_integer(prefix + "top_k", low=0),
        min_p=metadata.optional_number(prefix + "min_p", low=0.0, high=1.0),
        repetition_penalty=metadata.optional_number(prefix + "penalty_repeat", low=1e-3, high=1e3),
        not_applied=tuple(metadata.leftover(within=prefix)),
    )


def _gguf_quantization(file: GgufFile) -> str:
    """By the file's own name of its mixture, else by the type that holds the most bytes."""
    file_type = file.metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in _GGUF_FILE_TYPES:
        return _GGUF_FILE_TYPES[file_type]
    by_format: dict[str, int] = {}
    for tensor in file.tensors.values():
        by_format[tensor.format] = by_format.get(tensor.format, 0) + tensor.nbytes
    largest = max(by_format, key=by_format.__getitem__)
    return "" if largest in _PLAIN_FORMATS else largest.upper()
