"""`deterministic` on and off on the emulated device: who multiplies, and that what is promised is kept."""

import harness
import numpy as np
import pytest
import tiny_models
from linear_cases import packed
from machine import assert_near, stored, unwritten_with_gaps, values_before_gaps, with_gaps
from row_cases import as_read, numbers
from tiny_models import TENSOR_CORES, cuda_engine, emulated_device, greedy_requests, tiny_weights

from llmsrv import _emulated, _testing

BF16 = {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
OFF = {"deterministic": False, "library_rows": 8}
# Of logits up to 7. Activations are bf16 on the device; on the CPU they are float, and int8 for 4-bit weights.
NEAR_THE_CPU = {"bfloat16": 0.25, "int4": 0.5}
NEAR_EACH_OTHER = 0.2
COMPARED = 4 * 768  # of these, in blocks of 768 from each multiprocessor, to compare the two kinds
TOKENS = harness.prompt(7, 45)


def logits(weights, device=None, **options):
    """Of the last chunk's five tokens."""
    with emulated_device(**(device or {})) as plugin:
        return _testing.cuda_last_logits(weights, TOKENS, plugin, chunk=20, **(BF16 | options))


def products():
    return _emulated.library_counts()["products"]


@pytest.mark.parametrize(("model", "dtype"), [("LLAMA", "bfloat16"), ("QWEN2", "bfloat16"), ("LLAMA", "int4")])
def test_large_steps_go_through_the_library(model, dtype):
    """Chunks of 20, 20 and 5 rows: with a bias, added to the residual stream, from 4-bit weights."""
    weights = tiny_weights(dtype, **getattr(tiny_models, model), **TENSOR_CORES)
    expected = _testing.forward_logits(weights, TOKENS, chunk=20)[-5:]
    before = products()
    own = logits(weights)
    assert products() == before, "the library was asked while deterministic"
    by_library = logits(weights, **OFF)
    layers, matrices, large_chunks = 2, 4, 2
    assert products() - before == layers * matrices * large_chunks
    assert np.abs(expected).max() > 5
    assert np.abs(own - expected).max() < NEAR_THE_CPU[dtype]
    assert np.abs(by_library - expected).max() < NEAR_THE_CPU[dtype]
    assert np.abs(by_library - own).max() < NEAR_EACH_OTHER


@pytest.mark.parametrize(("device", "rows"), [({"has_library": False}, 8), ({}, 21)])
def test_own_kernels_serve_without_the_library_and_below_its_rows(device, rows):
    weights = tiny_weights("bfloat16", **tiny_models.LLAMA, **TENSOR_CORES)
    before = products()
    assert np.array_equal(logits(weights, device, deterministic=False, library_rows=rows), logits(weights))
    assert products() == before


@pytest.mark.parametrize(
    ("device", "options", "says"),
    [
        ({}, {}, "cuda (emulated)"),
        ({}, {"deterministic": False}, "cuda (emulated, not deterministic, cuBLASLt from 8 rows on)"),
        ({"has_library": False}, {"deterministic": False},
         "cuda (emulated, not deterministic, cuBLASLt not found: own kernels)"),
        ({"is_hopper": True}, {}, "cuda (emulated, prompts by warp groups)"),
    ],
)  # fmt: skip
def test_the_device_says_what_it_uses(device, options, says):
    weights = tiny_weights("bfloat16", **TENSOR_CORES)
    with emulated_device(**device) as plugin, cuda_engine(weights, plugin, **BF16, library_rows=8, **options) as engine:
        assert engine.device == says


def test_the_plan_knows_what_the_library_takes():
    weights = tiny_weights("bfloat16", **TENSOR_CORES)
    planned, held = {}, {}
    for deterministic in (True, False):
        options = {**BF16, "library_rows": 8, "deterministic": deterministic}
        with emulated_device() as plugin, cuda_engine(weights, plugin, **options) as engine:
            planned[deterministic] = engine.plan.total_bytes
            held[deterministic] = _emulated.device_counts()["held_bytes"]
    assert planned[False] - planned[True] == held[False] - held[True] > 4 << 20


def test_graphs_take_the_library_along():
    """A request alone: its steps are the same in both runs. What is chosen for a shape is chosen once."""
    weights = tiny_weights("bfloat16", **tiny_models.QWEN2, **TENSOR_CORES)
    results = []
    for graphs in (False, True):
        with emulated_device() as plugin:
            options = {**BF16, "library_rows": 1, "deterministic": False, "prefix_cache": False}
            with cuda_engine(weights, plugin, graphs=graphs, **options) as engine:
                first = harness.run(engine, greedy_requests(1, 20, tokens=8))
                before = _emulated.device_counts(), _emulated.library_counts()
                again = harness.run(engine, greedy_requests(1, 20, tokens=8))
                after = _emulated.device_counts(), _emulated.library_counts()
        assert again[0].logprobs == first[0].logprobs
        assert after[1]["products"] > before[1]["products"] or graphs
        assert after[1]["searches"] == before[1]["searches"]
        assert after[0]["allocations"] == before[0]["allocations"]
        assert (after[0]["graph_launches"] > before[0]["graph_launches"]) == graphs
        results.append(first[0].logprobs)
    assert results[0] == results[1]


@pytest.mark.parametrize(("format_name", "cols"), [("bf16", 64), ("q4_1", 96), ("q6_k", 256)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weights_are_unpacked_a_piece_at_a_time(format_name, cols, dtype):
    rng = np.random.default_rng([cols, len(dtype)])
    panels, weights = packed(format_name, 56, cols, rng)
    as_bf16 = as_read(stored(weights.astype(np.float32), "bf16"))
    source, bias = with_gaps(numbers(rng, 9, cols), "bf16"), stored(numbers(rng, 56), "f32")
    for rows_at_once, with_bias, adds in [(16, False, False), (40, True, False), (56, True, True), (17, False, True)]:
        whole, out = unwritten_with_gaps(9, 56, dtype)
        if adds:
            out[...] = stored(numbers(rng, 9, 56), dtype)
        expected = as_read(source) @ as_bf16.T + (as_read(bias) if with_bias else 0) + (as_read(out) if adds else 0)
        _emulated.product_linear(
            in_=source, weights=panels, bias=bias if with_bias else None, out=out, format=format_name, adds=adds,
            unpacked_bytes=rows_at_once * cols * 2,
        )  # fmt: skip
        # A bias is rounded to the type of the result before the product is added.
        assert_near(values_before_gaps(whole), expected, *{"f32": (1e-5, 1e-6), "bf16": (4e-3, 2.0**-8)}[dtype])


def test_a_workspace_that_holds_no_panel_is_refused():
    panels, _ = packed("bf16", 32, 64, np.random.default_rng(1))
    _, out = unwritten_with_gaps(2, 32, "f32")
    with pytest.raises(ValueError, match="too little workspace"):
        _emulated.product_linear(
            in_=stored(np.ones((2, 64)), "bf16"), weights=panels, bias=None, out=out, format="bf16", adds=False,
            unpacked_bytes=15 * 64 * 2,
        )  # fmt: skip


@pytest.fixture
def disagreeing():
    """A Hopper whose two kinds of products round apart."""
    _emulated.sum_products_backwards(True)
    yield {"is_hopper": True}
    _emulated.sum_products_backwards(False)


def used_warp_groups(run):
    """The result of run(), and whether prompts used products of warp groups, beyond the comparison at the start."""
    before = _emulated.device_counts()["warp_group_products"]
    result = run()
    return result, _emulated.device_counts()["warp_group_products"] - before > COMPARED


def test_prompts_keep_their_bits_on_a_hopper(disagreeing):
    """Its own products are used where they agree with the others, or where bits do not matter."""
    weights = tiny_weights("bfloat16", **tiny_models.LLAMA, **TENSOR_CORES)
    elsewhere, _ = used_warp_groups(lambda: logits(weights))
    kept, used = used_warp_groups(lambda: logits(weights, disagreeing))
    assert np.array_equal(kept, elsewhere)
    assert not used
    given_up, used = used_warp_groups(lambda: logits(weights, disagreeing, deterministic=False))
    assert np.abs(given_up - elsewhere).max() < NEAR_EACH_OTHER
    assert used
    _emulated.sum_products_backwards(False)
    agreeing, used = used_warp_groups(lambda: logits(weights, disagreeing))
    assert np.array_equal(agreeing, elsewhere)
    assert used


def test_a_hopper_gives_the_tokens_of_other_devices():
    """Chunks by its own products, decoding by those of all, over a pool that holds no three sequences to their ends."""
    weights = tiny_weights("bfloat16", **tiny_models.QWEN2, **TENSOR_CORES)
    tight = harness.pool_of(weights, 12) | {"preemption_mode": "recompute", "max_model_len": 72, "prefix_cache": False}
    results = []
    for is_hopper in (False, True):
        with emulated_device(is_hopper=is_hopper) as plugin, cuda_engine(weights, plugin, **(BF16 | tight)) as engine:
            results.append(harness.run(engine, greedy_requests(3, 20, tokens=14)))
            assert engine.stats().recomputed_tokens > 0
    for ours, theirs in zip(*results, strict=True):
        assert (ours.error, ours.token_ids, ours.logprobs) == (None, theirs.token_ids, theirs.logprobs)
