"""config.json and GGUF metadata → specs and name maps; and that nothing which changes the math is passed over."""

import re
import struct

import numpy as np
import pytest
from gguf_builder import Gguf, Tensor, array, scalar, text
from hypothesis import given
from hypothesis import strategies as st

from llmsrv import _testing
from llmsrv._core import expected_weights
from llmsrv.models import blueprint_from_config, blueprint_from_gguf
from llmsrv.models.llama import uninterleaved_rows
from llmsrv.models.rope import llama3_factors
from llmsrv.weights.gguf import GgufFile

BASE = {
    "model_type": "any",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0",
}
LLAMA = BASE | {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
MISTRAL = BASE | {"architectures": ["MistralForCausalLM"], "sliding_window": 48}
QWEN2 = BASE | {
    "architectures": ["Qwen2ForCausalLM"],
    "use_sliding_window": False,
    "sliding_window": 48,
    "max_window_layers": 2,
}
GEMMA3 = {key: value for key, value in BASE.items() if key not in ("hidden_act", "tie_word_embeddings")} | {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 25,
    "rope_local_base_freq": 300.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 48,
    "sliding_window_pattern": 3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def blueprint(config, tensors=()):
    return blueprint_from_config(config, dict.fromkeys(tensors), "config.json")


def spec(config):
    return blueprint(config).spec


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def test_llama():
    found = blueprint(LLAMA)
    assert found.architecture == "LlamaForCausalLM"
    fields = {key: getattr(found.spec, key) for key in ("vocab_size", "hidden_size", "intermediate_size", "num_layers")}
    assert fields == {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_layers": 2}
    assert (found.spec.num_heads, found.spec.num_kv_heads, found.spec.head_dim) == (4, 2, 16)
    assert (found.spec.max_position, found.spec.rms_norm_eps, found.spec.rope_theta) == (512, 1e-5, 20000.0)
    assert (found.spec.qkv_bias, found.spec.tied_embeddings) == (False, False)
    assert (found.spec.rope_scaling, found.spec.sliding_window) == (None, None)


@pytest.mark.parametrize("config", [LLAMA, MISTRAL, QWEN2, GEMMA3, LLAMA | {"tie_word_embeddings": True}])
def test_every_weight_has_its_own_source(config):
    found = blueprint(config)
    assert found.sources.keys() == expected_weights(found.spec).keys()
    tensors = [source.tensor for source in found.sources.values()]
    assert len(set(tensors)) == len(tensors)
    assert found.sources["layers.1.k"].tensor == "model.layers.1.self_attn.k_proj.weight"


def test_llama_defaults():
    keys = ("num_key_value_heads", "rms_norm_eps", "rope_theta", "max_position_embeddings", "tie_word_embeddings")
    found = spec(without(LLAMA, *keys))
    assert (found.num_kv_heads, found.rms_norm_eps, found.rope_theta) == (4, 1e-6, 10000.0)
    assert (found.max_position, found.tied_embeddings) == (2048, False)


def test_llama_options():
    assert spec(LLAMA | {"head_dim": 32}).head_dim == 32
    assert spec(LLAMA | {"head_dim": None}).head_dim == 16
    assert spec(LLAMA | {"attention_bias": True}).qkv_bias is True
    assert spec(LLAMA | {"tie_word_embeddings": True}).tied_embeddings is True


def test_tensors_that_follow_from_the_spec():
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"]
    tied = blueprint(LLAMA | {"tie_word_embeddings": True}, names)
    assert tied.derived == {"model.layers.0.self_attn.rotary_emb.inv_freq"}
    assert tied.copies == {"lm_head.weight": "model.embed_tokens.weight"}
    assert blueprint(LLAMA, names).copies == {}


def test_mistral_window():
    assert spec(MISTRAL).sliding_window == 48
    assert spec(MISTRAL | {"sliding_window": None}).sliding_window is None
    assert spec(without(MISTRAL, "sliding_window")).sliding_window == 4096


def test_qwen2_bias_and_window():
    assert spec(QWEN2).qkv_bias is True
    assert spec(QWEN2).sliding_window is None
    windowed = QWEN2 | {"use_sliding_window": True}
    some = spec(windowed | {"max_window_layers": 1})
    assert (some.sliding_window, some.windowed_layers) == (48, [False, True])
    assert spec(windowed).sliding_window is None  # from layer 2 on, and there are two
    assert spec(windowed | {"max_window_layers": 0}).sliding_window == 48
    assert spec(windowed | {"sliding_window": None, "max_window_layers": 0}).sliding_window is None
    assert spec(QWEN2 | {"layer_types": ["full_attention"] * 2}).sliding_window is None
    assert spec(windowed | {"layer_types": ["sliding_attention"] * 2}).sliding_window == 48


def test_gemma3():
    found = blueprint(GEMMA3)
    assert found.architecture == "Gemma3ForCausalLM"
    made = found.spec
    assert (made.gate, made.head_norms, made.post_norms, made.tied_embeddings) == ("gelu_tanh", True, True, True)
    assert (made.head_dim, made.attention_scale, made.embedding_scale) == (32, 0.2, 8.0)
    assert (made.sliding_window, made.windowed_layers) == (48, [True, True, False, True, True, False, True])
    assert (made.rope_theta, made.window_rope_theta) == (20000.0, 300.0)
    assert (made.rope_scaling.kind, made.rope_scaling.factor) == ("linear", 8.0)
    assert found.sources["layers.1.ffn_norm"].tensor == "model.layers.1.pre_feedforward_layernorm.weight"
    assert found.sources["layers.1.attn_post_norm"].tensor == "model.layers.1.post_attention_layernorm.weight"
    offsets = {name.split(".")[-1]: source.offset for name, source in found.sources.items()}
    norms = {name for name in offsets if "norm" in name}
    assert norms == {"attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm", "q_norm", "k_norm", "final_norm"}
    assert {name for name, offset in offsets.items() if offset == 1.0} == norms
    assert {offsets[name] for name in offsets.keys() - norms} == {0.0}


def test_gemma3_defaults():
    sizes = ("head_dim", "num_key_value_heads", "query_pre_attn_scalar", "rms_norm_eps", "max_position_embeddings")
    places = ("sliding_window", "sliding_window_pattern", "rope_theta", "rope_local_base_freq", "rope_scaling")
    made = spec(without(GEMMA3, *sizes, *places))
    assert (made.head_dim, made.num_kv_heads, made.attention_scale) == (256, 4, 1 / 16)
    assert (made.rms_norm_eps, made.max_position, made.sliding_window) == (1e-6, 131072, 4096)
    assert made.windowed_layers == [True] * 5 + [False, True]
    assert (made.rope_theta, made.window_rope_theta, made.rope_scaling) == (1e6, 1e4, None)


def test_gemma3_layer_types_count_more_than_the_pattern():
    kinds = ["full_attention"] * 6 + ["sliding_attention"]
    assert spec(GEMMA3 | {"layer_types": kinds}).windowed_layers == [False] * 6 + [True]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"full_attention": {"rope_theta": 7.0, "rope_type": "linear", "factor": 2.0}},
         "rope_local_base_freq": 3.0},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 3.0}}, "rope_theta": 7.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 7.0, "rope_local_base_freq": 3.0},
    ],
)  # fmt: skip
def test_gemma3_rope_in_every_spelling(rope):
    made = spec(GEMMA3 | {"rope_scaling": None} | rope)
    assert (made.rope_theta, made.window_rope_theta, made.rope_scaling.factor) == (7.0, 3.0, 2.0)
    plain, windowed = (np.array(_testing.rope_frequencies(made, layer)) for layer in (2, 0))
    assert windowed == pytest.approx(3.0 ** (-np.arange(16) / 16))
    assert plain == pytest.approx(7.0 ** (-np.arange(16) / 16) / 2.0)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 7.0, "rope_scaling": LLAMA3},
        {"rope_theta": 7.0, "rope_scaling": without(LLAMA3, "rope_type") | {"type": "llama3"}},
        {"rope_theta": 7.0, "rope_scaling": LLAMA3 | {"type": "llama3"}},
        {"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 7.0}},
        {"rope_theta": 7.0, "rope_scaling": None, "rope_parameters": LLAMA3},
    ],
)
def test_llama3_scaling_in_every_spelling(rope):
    found = spec(LLAMA | rope)
    assert found.rope_theta == 7.0
    scaling = found.rope_scaling
    assert (scaling.kind, scaling.factor, scaling.original_max_position) == ("llama3", 8.0, 8192)
    assert (scaling.low_freq_factor, scaling.high_freq_factor) == (1.0, 4.0)


def test_linear_and_default_rope():
    linear = spec(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}}).rope_scaling
    assert (linear.kind, linear.factor) == ("linear", 2.0)
    assert spec(LLAMA | {"rope_scaling": {"rope_type": "default"}}).rope_scaling is None
    assert spec(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}).rope_theta == 5.0


YARN = {"rope_type": "yarn", "factor": 4.0}
REFUSED = {
    "no architecture": (without(LLAMA, "architectures"), "architectures is missing; it needs exactly one name"),
    "unknown architecture": (
        LLAMA | {"architectures": ["GPT2LMHeadModel"]},
        "is not supported; known are Gemma3ForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM",
    ),
    "two architectures": (LLAMA | {"architectures": ["LlamaForCausalLM", "x"]}, "needs exactly one name"),
    "missing size": (without(LLAMA, "hidden_size"), "hidden_size is missing; it needs an integer from 1"),
    "size as text": (LLAMA | {"hidden_size": "64"}, "hidden_size = '64': needs an integer"),
    "size as number": (LLAMA | {"hidden_size": 64.0}, "hidden_size = 64.0: needs an integer"),
    "size as boolean": (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers = True: needs an integer"),
    "size zero": (LLAMA | {"num_attention_heads": 0}, "num_attention_heads = 0: needs an integer from 1"),
    "absurd layers": (LLAMA | {"num_hidden_layers": 2**31}, "needs an integer from 1 to 4096"),
    "absurd size": (LLAMA | {"vocab_size": 2**80}, "needs an integer from 1 to 2147483647"),
    "impossible heads": (
        LLAMA | {"num_key_value_heads": 3},
        "impossible model: num_heads must be",
    ),
    "epsilon": (LLAMA | {"rms_norm_eps": 0}, "rms_norm_eps = 0: needs a number"),
    "theta": (LLAMA | {"rope_theta": 0.5}, "rope_theta = 0.5: needs a number"),
    "activation": (LLAMA | {"hidden_act": "gelu"}, "hidden_act = 'gelu': only silu is supported"),
    "mlp bias": (LLAMA | {"mlp_bias": True}, "mlp_bias = True: biases of the feed-forward layers"),
    "interleaved": (LLAMA | {"rope_interleaved": True}, "interleaved RoPE"),
    "partial rotation": (LLAMA | {"partial_rotary_factor": 0.5}, "rotating a part of each head"),
    "quantized": (LLAMA | {"quantization_config": {"quant_method": "awq"}}, "use a GGUF file"),
    "yarn": (LLAMA | {"rope_scaling": YARN}, "rope_type = 'yarn': this kind of RoPE scaling is not supported"),
    "dynamic": (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type = 'dynamic': this kind"),
    "two ropes": (LLAMA | {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3}, "only one of the two can count"),
    "two kinds": (LLAMA | {"rope_scaling": LLAMA3 | {"type": "linear"}}, "type = 'linear': contradicts rope_type"),
    "rope by layer": (
        LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        "rope_parameters: keys that are not supported and may change the computation: full_attention",
    ),
    "rope factor": (LLAMA | {"rope_scaling": LLAMA3 | {"factor": -8.0}}, "factor = -8.0: needs a number"),
    "rope bands": (LLAMA | {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "must be above low_freq_factor"),
    "rope extra": (LLAMA | {"rope_scaling": LLAMA3 | {"attention_factor": 2.0}}, "attention_factor = 2.0"),
    "unknown keys": (
        LLAMA | {"logit_scale": 0.5, "attn_soft_cap": 30.0, "switched_off": False, "nothing": None},
        "may change the computation: attn_soft_cap = 30.0, logit_scale = 0.5.",
    ),
    "llama with window": (LLAMA | {"sliding_window": 16}, "may change the computation: sliding_window = 16"),
    "mistral bias": (MISTRAL | {"attention_bias": True}, "attention_bias = True"),
    "window zero": (MISTRAL | {"sliding_window": 0}, "sliding_window = 0: needs an integer from 1"),
    "qwen2 layer types": (QWEN2 | {"layer_types": ["full_attention"]}, "for each layer"),
    "qwen2 contradiction": (QWEN2 | {"layer_types": ["sliding_attention"] * 2}, "use_sliding_window switches off"),
    "gemma3 activation": (GEMMA3 | {"hidden_activation": "gelu"}, "only gelu_pytorch_tanh is supported"),
    "gemma3 other activation key": (GEMMA3 | {"hidden_act": "silu"}, "hidden_act = 'silu': only gelu_pytorch_tanh"),
    "gemma3 bias": (GEMMA3 | {"attention_bias": True}, "biases of the attention layers are not supported"),
    "gemma3 soft cap of scores": (GEMMA3 | {"attn_logit_softcapping": 50.0}, "soft caps are not supported"),
    "gemma3 soft cap of logits": (GEMMA3 | {"final_logit_softcapping": 30.0}, "soft caps are not supported"),
    "gemma3 bidirectional": (GEMMA3 | {"use_bidirectional_attention": True}, "only causal attention is supported"),
    "gemma3 layer types": (GEMMA3 | {"layer_types": ["full_attention"]}, "for each layer"),
    "gemma3 no window": (GEMMA3 | {"sliding_window": None}, "sliding_window = None: needs an integer"),
    "gemma3 one rope": (
        GEMMA3 | {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}},
        "rope_parameters: keys that are not supported and may change the computation: rope_type",
    ),
    "gemma3 two ropes": (GEMMA3 | {"rope_parameters": {"full_attention": {}}}, "only one of the two can count"),
    "gemma3 scaled windows": (
        GEMMA3
        | {"rope_scaling": None, "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        "scaling in layers with a window is not supported",
    ),
    "gemma3 unknown key": (GEMMA3 | {"altup_num_inputs": 4}, "altup_num_inputs = 4"),
    "multimodal": (QWEN2 | {"use_mrope": True}, "multimodal RoPE is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_it_cannot_compute(case):
    config, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        blueprint(config)
    assert str(caught.value).startswith("config.json: ")


json_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.lists(st.integers())


@given(
    st.sampled_from([LLAMA, MISTRAL, QWEN2, GEMMA3]),
    st.sampled_from([*{**LLAMA, **GEMMA3}, "rope_parameters", "layer_types"]),
    json_values | st.dictionaries(st.sampled_from([*LLAMA3, "rope_theta"]), json_values),
)
def test_any_value_is_understood_or_refused(config, key, value):
    try:
        blueprint(config | {key: value})
    except ValueError as error:
        message = str(error)
    else:
        return
    assert message.startswith("config.json: ")


def gguf_model(prefix="llama", layers=1, heads=4, kv_heads=2, head_dim=16, extra_keys=(), extra_tensors=()):
    """Header of a GGUF model; the tensors' data is zero."""
    keys = {
        "general.architecture": text(prefix),
        f"{prefix}.block_count": scalar(4, layers),
        f"{prefix}.context_length": scalar(4, 512),
        f"{prefix}.embedding_length": scalar(4, heads * 16),
        f"{prefix}.feed_forward_length": scalar(4, 80),
        f"{prefix}.attention.head_count": scalar(4, heads),
        f"{prefix}.attention.head_count_kv": scalar(4, kv_heads),
        f"{prefix}.attention.layer_norm_rms_epsilon": scalar(6, 1e-5),
        f"{prefix}.rope.freq_base": scalar(6, 20000.0),
        f"{prefix}.rope.dimension_count": scalar(4, head_dim),
        "tokenizer.ggml.model": text("gpt2"),
        "general.name": text("Tiny"),
        **dict(extra_keys),
    }
    embed = Tensor("token_embd.weight", [heads * 16, 96], 1, bytes(heads * 16 * 96 * 2))
    return Gguf(keys=[item for item in keys.items() if item[1] is not None], tensors=[embed, *extra_tensors])


def gguf_blueprint(tmp_path, **options):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_model(**options).build())
    with GgufFile(path) as file:
        return blueprint_from_gguf(file)


def floats(name, values):
    return Tensor(name, [len(values)], 0, struct.pack(f"<{len(values)}f", *values))


def test_gguf_llama(tmp_path):
    found = gguf_blueprint(tmp_path)
    assert found.architecture == "LlamaForCausalLM"
    assert (found.spec.num_heads, found.spec.num_kv_heads, found.spec.head_dim) == (4, 2, 16)
    assert (found.spec.vocab_size, found.spec.max_position, found.spec.rope_theta) == (96, 512, 20000.0)
    assert (found.spec.tied_embeddings, found.spec.qkv_bias, found.spec.rope_scaling) == (True, False, None)
    assert found.spec.rms_norm_eps == pytest.approx(1e-5)
    assert found.sources.keys() == expected_weights(found.spec).keys()
    assert found.sources["layers.0.down"].tensor == "blk.0.ffn_down.weight"
    permuted = [name for name, source in found.sources.items() if source.rows is not None]
    assert permuted == ["layers.0.q", "layers.0.k"]


def test_gguf_qwen2_rows_are_not_permuted(tmp_path):
    output = Tensor("output.weight", [64, 96], 1, bytes(64 * 96 * 2))
    found = gguf_blueprint(tmp_path, prefix="qwen2", extra_tensors=[output])
    assert found.architecture == "Qwen2ForCausalLM"
    assert (found.spec.qkv_bias, found.spec.tied_embeddings) == (True, False)
    assert found.sources["lm_head"].tensor == "output.weight"
    assert all(source.rows is None for source in found.sources.values())


GEMMA3_KEYS = {"gemma3.attention.sliding_window": scalar(4, 48), "gemma3.attention.key_length": scalar(4, 16)}


def test_gguf_gemma3(tmp_path):
    found = gguf_blueprint(tmp_path, prefix="gemma3", layers=7, extra_keys=GEMMA3_KEYS)
    made = found.spec
    assert (found.architecture, made.gate, made.embedding_scale) == ("Gemma3ForCausalLM", "gelu_tanh", 8.0)
    assert (made.sliding_window, made.windowed_layers) == (48, [True] * 5 + [False, True])
    assert (made.rope_theta, made.window_rope_theta, made.attention_scale) == (20000.0, 10000.0, None)
    assert found.sources["layers.6.ffn_post_norm"].tensor == "blk.6.post_ffw_norm.weight"
    assert all(source.rows is None and source.offset == 0.0 for source in found.sources.values())


def test_gguf_gemma3_of_62_layers_scales_attention_by_the_width_of_a_head(tmp_path):
    keys = {"gemma3.attention.key_length": scalar(4, 32), "gemma3.rope.dimension_count": None}
    made = gguf_blueprint(tmp_path, prefix="gemma3", layers=62, extra_keys=keys).spec
    assert (made.head_dim, made.attention_scale, made.sliding_window) == (32, 0.25, None)


def test_gguf_gemma3_options(tmp_path):
    keys = {"gemma3.rope.freq_base_swa": scalar(6, 500.0), "gemma3.attention.sliding_window_pattern": scalar(4, 2)}
    made = gguf_blueprint(tmp_path, prefix="gemma3", layers=3, extra_keys=GEMMA3_KEYS | keys).spec
    assert (made.window_rope_theta, made.windowed_layers) == (500.0, [True, False, True])


def test_gguf_per_layer_array_of_equal_values(tmp_path):
    keys = {"llama.attention.head_count_kv": array(5, [2])}
    assert gguf_blueprint(tmp_path, extra_keys=keys).spec.num_kv_heads == 2


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 8), (9, 64)])
def test_row_order_undoes_the_converter(heads, head_dim):
    """The converter's own formula, as the inverse that it must be."""
    original = np.arange(heads * head_dim)
    stored = original.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    assert stored[uninterleaved_rows(heads, head_dim)].tolist() == original.tolist()


def test_gguf_llama3_scaling_from_factors(tmp_path):
    """Factors computed by the rule of the converter, written out branch by branch."""
    factors = []
    for pair in range(8):
        wavelength = 2 * np.pi * 500000.0 ** (2 * pair / 16)
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(32.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1.0 / ((1.0 - smooth) / 32.0 + smooth))
    assert len(set(factors)) > 2
    keys = {"llama.rope.freq_base": scalar(6, 500000.0)}
    found = gguf_blueprint(tmp_path, extra_keys=keys, extra_tensors=[floats("rope_freqs.weight", factors)])
    scaling = found.spec.rope_scaling
    assert (scaling.kind, scaling.factor, scaling.original_max_position) == ("llama3", 32.0, 8192)
    assert found.derived == {"rope_freqs.weight"}
    factors[4] *= 1.01
    with pytest.raises(ValueError, match=r"rope_freqs\.weight is not llama3 scaling with factor 32.*: pair 4"):
        gguf_blueprint(tmp_path, extra_keys=keys, extra_tensors=[floats("rope_freqs.weight", factors)])


def test_gguf_factors_of_one_are_no_scaling(tmp_path):
    assert gguf_blueprint(tmp_path, extra_tensors=[floats("rope_freqs.weight", [1.0] * 8)]).spec.rope_scaling is None


def test_llama3_factors_grow_from_one_to_the_factor():
    factors = llama3_factors(500000.0, 128, 8.0, 1.0, 4.0, 8192)
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    assert (np.diff(factors) >= 0).all()


def test_gguf_linear_scaling(tmp_path):
    keys = {"llama.rope.scaling.type": text("linear"), "llama.rope.scaling.factor": scalar(6, 4.0)}
    scaling = gguf_blueprint(tmp_path, extra_keys=keys).spec.rope_scaling
    assert (scaling.kind, scaling.factor) == ("linear", 4.0)
    assert gguf_blueprint(tmp_path, extra_keys={"llama.rope.scaling.type": text("none")}).spec.rope_scaling is None


BAD_GGUF = {
    "unknown architecture": (
        {"prefix": "gemma2"},
        "general.architecture = 'gemma2': is not supported; known are gemma3, llama",
    ),
    "soft cap": (
        {"prefix": "gemma3", "extra_keys": {"gemma3.final_logit_softcapping": scalar(6, 30.0)}},
        "soft caps are not supported",
    ),
    "base of RoPE": ({"prefix": "gemma3", "extra_keys": {"gemma3.rope.freq_base": None}}, "freq_base is missing"),
    "experts": ({"extra_keys": {"llama.expert_count": scalar(4, 8)}}, "mixtures of experts are not supported"),
    "experts by layer": ({"extra_keys": {"llama.expert_count": array(4, [0, 8])}}, "mixtures of experts"),
    "yarn": ({"extra_keys": {"llama.rope.scaling.type": text("yarn")}}, "this kind of RoPE scaling is not supported"),
    "partial rotation": ({"head_dim": 8}, "llama.rope.dimension_count = 8: only the whole head, 16"),
    "value length": ({"extra_keys": {"llama.attention.value_length": scalar(4, 8)}}, "must equal the key length"),
    "alibi": ({"extra_keys": {"llama.attention.max_alibi_bias": scalar(6, 8.0)}}, "ALiBi is not supported"),
    "unknown key": ({"extra_keys": {"llama.logit_scale": scalar(6, 0.5)}}, "llama.logit_scale = 0.5"),
    "split": ({"extra_keys": {"split.count": scalar(2, 3)}}, "a file split into several is not supported"),
    "missing key": ({"extra_keys": {"llama.block_count": None}}, "llama.block_count is missing"),
    "absurd layers": ({"extra_keys": {"llama.block_count": scalar(4, 2**31)}}, "needs an integer from 1 to 4096"),
    "layers differ": ({"extra_keys": {"llama.feed_forward_length": array(5, [80, 96])}}, "needs an integer"),
    "short factors": ({"extra_tensors": [floats("rope_freqs.weight", [1.0] * 4)]}, "f32 [4] instead of f32 [8]"),
    "factors not finite": ({"extra_tensors": [floats("rope_freqs.weight", [1.0] * 7 + [np.inf])]}, "are not those of"),
    "factors below one": ({"extra_tensors": [floats("rope_freqs.weight", [0.5] * 8)]}, "are not those of"),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_gguf_refuses_what_it_cannot_compute(tmp_path, case):
    options, message = BAD_GGUF[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        gguf_blueprint(tmp_path, **options)
    assert "model.gguf" in str(caught.value)
