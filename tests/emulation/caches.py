"""Caches of keys and values as the kernels hold them (cuda/kernels/kv_layout.cuh), and what they mean."""

import numpy as np
from machine import assert_guarded, from_bf16, stored, unwritten


def fp8_numbers():
    """What each byte means as e4m3."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    return np.where(code & 127 == 127, np.nan, np.where(code < 128, magnitude, -magnitude))


def int8_numbers():
    numbers = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float64)
    return np.where(numbers == -128, np.nan, numbers)


# The types whose numbers stand for themselves times a scale of their token and head.
MEANING = {"fp8": fp8_numbers(), "int8": int8_numbers()}
LARGEST = {"fp8": 448.0, "int8": 127.0}


def nearest_bytes(values, dtype):
    meaning = MEANING[dtype]
    codes = np.argsort(meaning)[: np.count_nonzero(~np.isnan(meaning))]
    numbers = meaning[codes]
    return codes[np.searchsorted((numbers[1:] + numbers[:-1]) / 2, values)].astype(np.uint8)


class Cache:
    """The blocks of one layer, nothing written in them."""

    def __init__(self, blocks, kv_heads, block_size, head_dim, dtype):
        self.dtype = dtype
        self.shape = (kv_heads, block_size, head_dim)
        elements = (2, kv_heads, block_size, head_dim)
        if dtype not in MEANING:
            self.memory = unwritten((blocks, *elements), dtype)
            self.elements = self.memory
            return
        count = int(np.prod(elements))
        self.memory = unwritten((blocks, count + 8 * kv_heads * block_size), dtype)
        self.elements = self.memory[:, :count].reshape(blocks, *elements)
        self.scales = self.memory[:, count:].view(np.float32).reshape(blocks, kv_heads, block_size, 2)
        self.scales[...] = np.nan
        assert np.shares_memory(self.elements, self.memory)
        assert np.shares_memory(self.scales, self.memory)

    def put(self, blocks, offsets, pairs):
        """Stores keys and values of tokens in their slots: pairs [tokens, 2, kv_heads, head_dim]."""
        if self.dtype not in MEANING:
            self.elements[blocks, :, :, offsets] = stored(pairs, self.dtype)
            return
        scales = np.abs(pairs).max(axis=-1) / LARGEST[self.dtype]
        codes = nearest_bytes(pairs / scales[..., None], self.dtype)
        self.elements[blocks, :, :, offsets] = codes.view(self.elements.dtype)
        self.scales[blocks, :, offsets] = np.moveaxis(scales, 1, 2)

    def read(self):
        """What it holds, in double precision, NaN where nothing was written: [blocks, 2, kv_heads, block_size, dim]."""
        assert_guarded(self.memory)
        if self.dtype == "bf16":
            return from_bf16(self.memory).astype(np.float64)
        if self.dtype not in MEANING:
            return self.memory.astype(np.float64)
        scales = np.moveaxis(self.scales.astype(np.float64), -1, 1)
        return MEANING[self.dtype][self.elements.view(np.uint8)] * scales[..., None]
