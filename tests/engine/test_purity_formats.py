"""Promise P3 with every packed format, and with a mix of them in one layer: the bits do not depend on the company."""

import harness
import numpy as np
import pytest
from harness import prompt, request, run
from quant_blocks import BLOCK_FORMATS, GROUP_FORMATS, ordinary_blocks

from llmsrv import _core, _testing

# Whole superblocks of 256 columns in every matrix.
SHAPE = {"hidden_size": 256, "intermediate_size": 256, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}
# Not formats of a file: floats are packed into them.
QUANTIZATIONS = ["int8", "int4", *GROUP_FORMATS]
MIX = ["q4_k", "q5_0", "q6_k", "q8_0", "q4_1", "bf16"]


def packed_weights(formats):
    """A tiny model whose matrices take `formats` in turn, or are all quantized alike."""
    generator = np.random.default_rng(5)
    spec = harness.tiny_spec(**SHAPE)
    shapes = _core.expected_weights(spec)
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    dtype, sources = "auto", {name: formats[i % len(formats)] for i, name in enumerate(matrices)}
    if formats[0] in QUANTIZATIONS:
        dtype, sources = formats[0], {}
    weights = _core.Weights(spec, dtype=dtype, threads=1, sources=sources)
    for name, shape in shapes.items():
        source = sources.get(name, "f32")
        if source in BLOCK_FORMATS:
            values, _ = _testing.source_block(source)
            data = ordinary_blocks(generator, source, int(np.prod(shape)) // values)
        else:
            data = generator.normal(loc=float(len(shape) == 1), scale=0.06, size=shape).astype(np.float32)
            if source == "bf16":
                data = (data.view(np.uint32) >> 16).astype(np.uint16)
        weights.set(name, source, list(shape), data)
    return weights


def probe(id="probe"):
    return request(
        id,
        prompt(3, 37),
        sampling={"temperature": 60.0, "seed": 4},  # random weights are steep
        stopping={"max_tokens": 20, "ignore_eos": True},
        output={"logprobs": True, "top_logprobs": 3},
    )


def essence(result):
    assert result.error is None
    return result.token_ids, result.logprobs


@pytest.mark.parametrize("formats", [*([name] for name in (*BLOCK_FORMATS, *QUANTIZATIONS)), MIX], ids="+".join)
def test_bits_do_not_depend_on_the_company(formats):
    weights = packed_weights(formats)
    with harness.engine(weights, threads=1) as running:
        alone = essence(run(running, [probe()])[0])
    assert len(set(alone[0][0])) > 3, "the model says the same all the time: nothing is proved"
    company = [request(f"other-{i}", prompt(i, 5 + 9 * i), stopping={"max_tokens": 4 + 5 * i}) for i in range(7)]
    for threads, chunk in ((2, 7), (3, 16), (2, 64)):
        with harness.engine(weights, threads=threads, max_num_batched_tokens=chunk, max_num_seqs=7) as running:
            results = run(running, [*company[:3], probe(), *company[3:]])
        assert essence(results[3]) == alone, f"{threads} threads, chunks of {chunk}"


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "int8"])
def test_nor_with_another_type_of_cache(kv_cache_dtype):
    """And not on whether memory ran short in between."""
    weights = packed_weights(MIX)
    with harness.engine(weights, threads=1, kv_cache_dtype=kv_cache_dtype) as running:
        alone = essence(run(running, [probe()])[0])
    company = [request(f"other-{i}", prompt(i, 5 + 9 * i), stopping={"max_tokens": 30}) for i in range(7)]
    pool = harness.pool_of(weights, 14, kv_cache_dtype=kv_cache_dtype)
    with harness.engine(weights, threads=2, max_num_batched_tokens=23, **pool) as running:
        results = run(running, [*company[:3], probe(), *company[3:]])
    assert essence(results[3]) == alone
    assert sum(result.preemptions for result in results) > 0
