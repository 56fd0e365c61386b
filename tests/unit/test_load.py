"""From files to the core's weights: what is inspected, what is refused, and that loading needs no second copy."""

import io
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from checkpoints import TINY, tiny_tensors, write_folder

from llmsrv import _testing
from llmsrv.weights.load import GenerationDefaults, inspect_model, load_weights
from llmsrv.weights.progress import show_progress

TIED = TINY | {"tie_word_embeddings": True}


def logits(folder, dtype="float32"):
    weights = load_weights(inspect_model(folder), dtype=dtype, threads=1)
    return _testing.forward_logits(weights, [5, 3, 90, 17, 3])


def test_inspects_a_gguf_file(smollm2_path):
    files = inspect_model(smollm2_path)
    assert (files.architecture, files.quantization) == ("LlamaForCausalLM", "Q4_1")
    assert (files.spec.num_layers, files.spec.hidden_size, files.spec.vocab_size) == (30, 576, 49152)
    assert files.eos_token_ids == (2,)
    assert files.file_bytes == smollm2_path.stat().st_size
    assert files.chat_template.startswith("{% for message in messages %}")
    assert set(files.tokenizer) >= {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}
    assert len(files.tensors) == 272
    assert files.generation == GenerationDefaults()


def test_inspects_a_folder(tmp_path):
    folder = write_folder(
        tmp_path / "model",
        tiny_tensors(),
        generation_config={
            "eos_token_id": [7, 2],
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "repetition_penalty": 1.05,
            "do_sample": True,
            "num_beams": 4,
        },
        tokenizer_config={
            "eos_token": {"content": "<|end|>"},
            "added_tokens_decoder": {
                "8": {"content": "<|end|>"},
                "9": {"content": "<pad>"},
                "9" * 5000: {"content": "<|end|>"},
                "x": {"content": "<|end|>"},
            },
            "chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}],
        },
        tokenizer={},
    )
    files = inspect_model(folder)
    assert (files.architecture, files.quantization) == ("LlamaForCausalLM", "")
    assert files.eos_token_ids == (2, 7, 8)
    assert files.generation == GenerationDefaults(
        temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.05, not_applied=("num_beams = 4",)
    )
    assert files.tokenizer == folder / "tokenizer.json"
    assert files.chat_template == "D"
    assert files.file_bytes == (folder / "model.safetensors").stat().st_size
    (folder / "chat_template.jinja").write_text("J")
    assert inspect_model(folder).chat_template == "J"


def test_folder_without_optional_files(tmp_path):
    files = inspect_model(write_folder(tmp_path / "model", tiny_tensors(), TINY | {"eos_token_id": None}))
    assert (files.eos_token_ids, files.tokenizer, files.chat_template) == ((), None, None)
    assert files.generation == GenerationDefaults()


def test_every_misfit_is_in_one_error(tmp_path):
    tensors = tiny_tensors()
    del tensors["model.norm.weight"]
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((64, 80), np.float32)
    tensors["model.layers.0.self_attn.o_proj.bias"] = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="do not fit LlamaForCausalLM") as caught:
        inspect_model(write_folder(tmp_path / "model", tensors))
    assert "model.norm.weight [64] is missing" in str(caught.value)
    assert "model.layers.1.mlp.up_proj.weight has the shape [64, 80] instead of [80, 64]" in str(caught.value)
    assert "model.layers.0.self_attn.o_proj.bias [64] is unexpected" in str(caught.value)


def test_a_long_list_of_misfits_is_cut(tmp_path):
    extra = {f"extra.{i}": np.zeros(1, np.float32) for i in range(100)}
    with pytest.raises(ValueError, match=r"and 60 more$"):
        inspect_model(write_folder(tmp_path / "model", tiny_tensors() | extra))


BAD_FOLDERS = {
    "eos out of range": ({"config": TINY | {"eos_token_id": 96}}, "eos_token_id = 96: needs integers from 0 to 95"),
    "eos not a number": ({"generation_config": {"eos_token_id": "</s>"}}, "generation_config.json: eos_token_id"),
    "temperature": ({"generation_config": {"temperature": -1}}, "generation_config.json: temperature = -1: needs"),
    "top_p": ({"generation_config": {"top_p": 0}}, "top_p = 0: needs a number from 1e-06 to 1"),
    "top_k": ({"generation_config": {"top_k": 1.5}}, "top_k = 1.5: needs an integer"),
    "template": ({"tokenizer_config": {"chat_template": 3}}, "tokenizer_config.json: chat_template = 3: needs"),
    "added tokens": ({"tokenizer_config": {"added_tokens_decoder": []}}, "added_tokens_decoder = []: needs an object"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folder_says_what_is_wrong(tmp_path, case):
    files, message = BAD_FOLDERS[case]
    folder = write_folder(tmp_path / "model", tiny_tensors(), **files)
    with pytest.raises(ValueError, match=re.escape(message)):
        inspect_model(folder)


def test_folder_that_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"there is no config\.json"):
        inspect_model(tmp_path)
    with pytest.raises(FileNotFoundError):
        inspect_model(tmp_path / "absent.gguf")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ValueError, match=r"config\.json: not usable JSON"):
        inspect_model(tmp_path)


def test_loads_all_weights_in_each_dtype(tmp_path):
    files = inspect_model(write_folder(tmp_path / "model", tiny_tensors()))
    for dtype, name in (("auto", "bf16"), ("bfloat16", "bf16"), ("float32", "f32")):
        weights = load_weights(files, dtype=dtype, threads=2)
        assert weights.missing() == []
        assert set(weights.formats.values()) == {name}
    with pytest.raises(ValueError, match=r"dtype of weights must be auto, .* is 'int7'"):
        load_weights(files, dtype="int7", threads=1)


def test_auto_keeps_the_formats_of_a_gguf_file(smollm2_path):
    files = inspect_model(smollm2_path)
    weights = load_weights(files, dtype="auto", threads=2)
    assert weights.missing() == []
    assert weights.formats == {name: files.weight_sources[name] for name in weights.formats}
    assert weights.formats["embed"] == "q8_0"
    assert {kept for name, kept in weights.formats.items() if name != "embed"} == {"q4_1"}
    assert weights.bytes < 1.01 * files.file_bytes


def test_shards_give_the_same_logits(tmp_path):
    tensors = tiny_tensors()
    whole = logits(write_folder(tmp_path / "whole", tensors))
    names = sorted(tensors)
    sharded = tmp_path / "sharded"
    for number, part in enumerate((names[::2], names[1::2])):
        write_folder(sharded, {name: tensors[name] for name in part})
        (sharded / "model.safetensors").rename(sharded / f"model-{number}.safetensors")
    weight_map = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(names)}
    write_folder(sharded, {}, **{"model.safetensors.index": {"weight_map": weight_map}})
    (sharded / "model.safetensors").unlink()
    assert np.array_equal(logits(sharded), whole)


def test_tied_head_may_be_stored_if_it_is_a_copy(tmp_path):
    tensors = tiny_tensors(TIED)
    tied = logits(write_folder(tmp_path / "tied", tensors, TIED))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    assert np.array_equal(logits(write_folder(tmp_path / "copy", tensors, TIED)), tied)
    tensors["lm_head.weight"][95, 63] += 1
    files = inspect_model(write_folder(tmp_path / "other", tensors, TIED))
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load_weights(files, dtype="bfloat16", threads=1)


def test_file_that_shrank_after_it_was_inspected(tmp_path):
    folder = write_folder(tmp_path / "model", tiny_tensors())
    files = inspect_model(folder)
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(ValueError, match=r"model\.safetensors: bytes .* are outside the file"):
        load_weights(files, dtype="bfloat16", threads=1)


def test_progress_reaches_the_total(tmp_path):
    files = inspect_model(write_folder(tmp_path / "model", tiny_tensors()))
    seen = []
    load_weights(files, dtype="bfloat16", threads=1, progress=lambda done, total: seen.append((done, total)))
    total = sum(tensor.nbytes for tensor in files.tensors.values())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_progress_lines_carry_times(monkeypatch):
    stream = io.StringIO()
    clock = iter([0.0, 6.0, 8.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with show_progress("weights", stream) as progress:
        progress(50_000_000, 200_000_000)
    assert stream.getvalue().splitlines() == [
        "weights ...",
        "weights: 25 % of 200.0 MB after 6.0 s",
        "weights: done, 50.0 MB in 8.00 s",
    ]


def test_progress_is_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with show_progress("weights", stream) as progress:
        progress(50, 200)
    assert "weights" in stream.getvalue()
    assert "50/200 bytes" in stream.getvalue()


MEMORY_SCRIPT = """
import sys
from llmsrv.weights.load import PackedCache, inspect_model, load_weights
def resident(kind):
    for line in open("/proc/self/status"):
        if line.startswith(kind + ":"):
            return int(line.split()[1]) * 1024
files = inspect_model(sys.argv[1])
cache = PackedCache(sys.argv[3], files, lambda line: None) if len(sys.argv) > 3 else None
before = resident("VmRSS"), resident("RssFile")
weights = load_weights(files, dtype=sys.argv[2], threads=2, cache=cache)
print(weights.bytes, resident("VmHWM") - before[0], resident("RssFile") - before[1])
"""


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_loading_needs_no_second_copy(smollm2_path, dtype):
    """At its highest, memory is the packed weights and a few tensors; the file's pages do not stay."""
    weights, peak, file_pages = memory_of_loading(smollm2_path, dtype)
    assert peak < weights + 48e6
    assert file_pages < 8e6


def memory_of_loading(*arguments):
    command = [sys.executable, "-c", MEMORY_SCRIPT, *map(str, arguments)]
    # A sanitizer's allocator keeps what was freed for a while; here that would count as memory in use.
    frees_at_once = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=0"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **frees_at_once})
    return map(int, result.stdout.split())


def test_the_packed_cache_needs_no_second_copy(smollm2_path, tmp_path):
    """Neither when it is written nor when it is mapped, where the file's pages are the weights."""
    weights, peak, file_pages = memory_of_loading(smollm2_path, "auto", tmp_path)
    assert peak < weights + 48e6
    assert file_pages < 8e6
    weights, peak, file_pages = memory_of_loading(smollm2_path, "auto", tmp_path)
    assert peak < weights + 16e6
    assert 0.9 * weights < file_pages < weights + 8e6
