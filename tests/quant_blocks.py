"""Random blocks of every quantized source format."""

import numpy as np

from llmsrv import _testing

BLOCK_FORMATS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]
# Formats that floats are packed into, with more columns to a scale than a block of files has.
GROUP_FORMATS = {"int4-g64": 64, "int4-g128": 128, "int8-g64": 64, "int8-g128": 128}
GGUF_NAMES = {"q4_k": "Q4_K", "q5_k": "Q5_K", "q6_k": "Q6_K"}
# Byte offsets of the float16 fields of a block: scales and minima.
F16_FIELDS = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
}


def scale_cols(name):
    """Columns that rows of a packed format are multiples of."""
    return GROUP_FORMATS[name] if name in GROUP_FORMATS else _testing.source_block(name)[0]


def random_blocks(rng, name, blocks):
    """Random bytes with scales of ordinary size, subnormal ones among them. [blocks, bytes of a block]"""
    _, block_bytes = _testing.source_block(name)
    data = rng.integers(0, 256, (blocks, block_bytes), np.uint8)
    for at in F16_FIELDS[name]:
        scales = (rng.standard_normal(blocks) * 10.0 ** rng.integers(-6, 1, blocks)).astype(np.float16)
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return data


def ordinary_blocks(rng, name, blocks, byte=None):
    """Random blocks, or blocks full of `byte`, with scales like those of a trained model. [blocks, bytes of a block]"""
    _, block_bytes = _testing.source_block(name)
    data = rng.integers(0, 256, (blocks, block_bytes), np.uint8)
    if byte is not None:
        data[:] = byte
    for at in F16_FIELDS[name]:
        scales = (rng.uniform(0.01, 0.02, blocks) * rng.choice([-1, 1], blocks)).astype(np.float16)
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return data
