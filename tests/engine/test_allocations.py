"""A step of the model allocates nothing once it is warm, whatever its weights and its cache are."""

import pytest
from harness import GEMMA3, prompt, tiny_weights
from quant_blocks import BLOCK_FORMATS
from test_purity_formats import MIX, QUANTIZATIONS, packed_weights

from llmsrv import _testing

FORMATS = [*([name] for name in (*BLOCK_FORMATS, *QUANTIZATIONS, "bf16")), MIX]


def test_forward_logits_and_sampling_allocate_nothing_after_warm_up():
    for weights in (tiny_weights(), tiny_weights("float32"), tiny_weights(**GEMMA3)):
        assert _testing.step_allocations(weights, prompt(1, 40), steps=20) == 0


@pytest.mark.parametrize("formats", FORMATS, ids="+".join)
def test_no_format_allocates(formats):
    assert _testing.step_allocations(packed_weights(formats), prompt(1, 40), steps=20) == 0


@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "float32", "int8"])
def test_no_cache_type_allocates(kv_cache_dtype):
    for weights in (tiny_weights(), packed_weights(MIX)):
        assert _testing.step_allocations(weights, prompt(1, 40), steps=20, kv_cache_dtype=kv_cache_dtype) == 0
