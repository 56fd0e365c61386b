"""Paged attention against NumPy in double precision, and bit for bit against itself."""

from dataclasses import dataclass, field

import numpy as np
from caches import MEANING, Cache
from machine import assert_near, further_case, kernel_case, stored, unwritten, values_of
from row_cases import as_read, numbers

# On tensor cores weights are rounded before they meet the values, to bf16 if these are scaled, and so is the result.
TOLERANCE = {"bf16": (0.012, 2.0**-8), "f16": (0.0015, 2.0**-11), "scaled f16": (0.012, 2.0**-11), "f32": (1e-5, 1e-5)}
SCALED = [("bf16", "fp8"), ("f16", "fp8"), ("bf16", "int8")]
FAR_AWAY = 1 << 28  # a block id that no kernel may use


@dataclass
class Problem:
    """A cache in which sequences lie in shuffled blocks, NaN where no token stands; and rows that ask."""

    head_dim: int
    heads: int
    kv_heads: int
    block_size: int
    ranges: list[tuple[int, int]]  # rows and context of each
    window: int | None = None
    soft_cap: float | None = None
    dtype: str = "bf16"  # of queries and results
    cache_dtype: str | None = None  # the same, unless named
    seed: int = 0
    blocks: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, self.head_dim])
        cache_dtype = self.cache_dtype or self.dtype
        counts = [-(-context // self.block_size) for _, context in self.ranges]
        shuffled = rng.permutation(sum(counts) + 2).astype(np.int32)
        self.blocks = np.split(shuffled[: sum(counts)], np.cumsum(counts)[:-1])
        self.cache = Cache(len(shuffled), self.kv_heads, self.block_size, self.head_dim, cache_dtype)
        for (_, context), blocks in zip(self.ranges, self.blocks, strict=True):
            at = np.arange(context)
            pairs = numbers(rng, context, 2, self.kv_heads, self.head_dim)
            self.cache.put(blocks[at // self.block_size], at % self.block_size, pairs)
        held = self.cache.read()
        self.context = []  # of each range [context, 2, kv_heads, head_dim]
        for (_, context), blocks in zip(self.ranges, self.blocks, strict=True):
            tokens = np.moveaxis(held[blocks], 3, 1)
            self.context.append(tokens.reshape(-1, 2, self.kv_heads, self.head_dim)[:context])
        rows = sum(rows for rows, _ in self.ranges)
        self.queries = stored(2 * numbers(rng, rows, self.heads * self.head_dim), self.dtype)
        self.scale = float(self.head_dim**-0.5)

    def ask(self, machine, kernel, chosen=None, last_rows=None):
        """The result for the chosen ranges (all), or for only the last rows of one of them."""
        chosen = range(len(self.ranges)) if chosen is None else chosen
        first_rows = np.cumsum([0] + [rows for rows, _ in self.ranges])
        asked = []
        for i in chosen:
            rows, context = self.ranges[i]
            kept = rows if last_rows is None else last_rows
            asked.append((int(first_rows[i]) + rows - kept, kept, context))
        ids = np.concatenate([np.append(self.forget_left_blocks(i, last_rows), []) for i in chosen]).astype(np.int32)
        out = unwritten((len(self.queries), self.heads * self.head_dim), self.dtype)
        machine.run(
            "paged_attention", {"out": out}, queries=self.queries, cache=self.cache.memory,
            kv_shape=self.cache.shape, ranges=np.array(asked, np.int32), block_ids=ids, scale=self.scale,
            window=self.window, soft_cap=self.soft_cap, kernel=kernel,
        )  # fmt: skip
        values = values_of(out)
        written = np.concatenate([np.arange(first, first + rows) for first, rows, _ in asked])
        others = np.delete(np.arange(len(out)), written)
        assert np.isnan(values[others]).all(), "rows of nobody were written"
        return out[written]

    def forget_left_blocks(self, i, last_rows=None):
        """Block ids, with those that the window has left replaced: they may belong to others by now."""
        rows, context = self.ranges[i]
        blocks = self.blocks[i].copy()
        if self.window is not None:
            first = context - (rows if last_rows is None else last_rows) - self.window + 1
            blocks[: max(first, 0) // self.block_size] = FAR_AWAY
        return blocks

    def expected(self):
        results = []
        first = 0
        for (rows, context), pair in zip(self.ranges, self.context, strict=True):
            q = as_read(self.queries[first : first + rows]).reshape(rows, self.heads, -1)
            keys, values = (np.repeat(pair[:, side], self.heads // self.kv_heads, axis=1) for side in (0, 1))
            scores = self.scale * np.einsum("thd,jhd->htj", q, keys)
            if self.soft_cap is not None:
                scores = self.soft_cap * np.tanh(scores / self.soft_cap)
            position = np.arange(context - rows, context)[:, None]
            key = np.arange(context)[None]
            seen = (key <= position) & (key > position - (self.window or context))
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            results.append(np.einsum("htj,jhd->thd", weights, values).reshape(rows, -1))
            first += rows
        return np.concatenate(results)

    def check(self, machine, kernel):
        is_scaled = self.dtype == "f16" and self.cache.dtype in MEANING
        tolerance = TOLERANCE["scaled f16" if is_scaled else self.dtype]
        assert_near(as_read(self.ask(machine, kernel)), self.expected(), *tolerance)


@kernel_case
def decode_attention(machine):
    lengths = [(1, 1), (1, 15), (1, 33), (1, 256), (1, 257), (1, 600)]
    Problem(128, 4, 1, 16, lengths).check(machine, "segments")
    Problem(64, 2, 2, 8, lengths[:4], soft_cap=2.0).check(machine, "segments")
    Problem(80, 3, 1, 32, [(1, 65), (2, 300)]).check(machine, "segments")
    Problem(96, 32, 1, 64, [(1, 40), (3, 70)]).check(machine, "segments")
    Problem(256, 4, 1, 16, [(1, 290), (1, 31)]).check(machine, "segments")


@kernel_case
def decode_attention_in_a_window(machine):
    Problem(64, 4, 2, 16, [(1, 700), (1, 40), (2, 261), (1, 512)], window=64).check(machine, "segments")
    Problem(64, 2, 1, 8, [(1, 300), (1, 3)], window=1).check(machine, "segments")


@kernel_case
def prefill_attention(machine):
    Problem(64, 4, 2, 16, [(3, 3), (1, 257), (40, 70), (5, 300)]).check(machine, "prefill")
    Problem(128, 3, 1, 8, [(23, 290)], soft_cap=2.0).check(machine, "prefill")
    Problem(80, 2, 2, 32, [(17, 17)]).check(machine, "prefill")
    Problem(96, 2, 1, 16, [(9, 33)]).check(machine, "prefill")
    Problem(256, 2, 1, 64, [(9, 270)]).check(machine, "prefill")


@kernel_case
def prefill_attention_in_a_window(machine):
    Problem(64, 2, 1, 16, [(30, 600), (70, 70)], window=48).check(machine, "prefill")


@kernel_case
def decode_attention_in_float(machine):
    lengths = [(1, 1), (1, 33), (2, 257), (1, 600)]
    Problem(16, 4, 2, 8, lengths, dtype="f32").check(machine, "segments")
    Problem(128, 2, 1, 64, [(1, 270), (3, 40)], soft_cap=2.0, dtype="f32").check(machine, "segments")
    Problem(6, 3, 1, 16, [(1, 300), (2, 270)], window=37, dtype="f32", cache_dtype="bf16").check(machine, "segments")


@kernel_case
def prefill_attention_in_float(machine):
    Problem(32, 4, 2, 16, [(3, 3), (1, 257), (9, 70)], dtype="f32").check(machine, "prefill")
    Problem(256, 2, 1, 32, [(3, 270)], soft_cap=2.0, dtype="f32").check(machine, "prefill")
    Problem(10, 3, 1, 8, [(5, 300), (40, 40)], window=33, dtype="f32", cache_dtype="bf16").check(machine, "prefill")


@kernel_case
def decode_attention_in_half(machine):
    Problem(64, 4, 1, 16, [(1, 40), (2, 270)], dtype="f16").check(machine, "segments")
    Problem(128, 2, 2, 8, [(1, 65)], soft_cap=2.0, window=40, dtype="f16").check(machine, "segments")


@kernel_case
def prefill_attention_in_half(machine):
    Problem(64, 4, 2, 16, [(20, 270), (3, 3)], dtype="f16").check(machine, "prefill")
    Problem(128, 2, 1, 32, [(9, 50)], soft_cap=2.0, window=30, dtype="f16").check(machine, "prefill")


@kernel_case
def decode_attention_over_scaled_numbers(machine):
    lengths = [(1, 1), (1, 33), (2, 270)]
    for dtype, cache_dtype in SCALED:
        Problem(64, 4, 1, 16, lengths, dtype=dtype, cache_dtype=cache_dtype).check(machine, "segments")
        Problem(80, 3, 1, 8, [(1, 70)], 40, 2.0, dtype, cache_dtype).check(machine, "segments")
    for head_dim in (96, 128, 256):
        Problem(head_dim, 2, 2, 64, [(1, 40)], cache_dtype="fp8").check(machine, "segments")


@kernel_case
def prefill_attention_over_scaled_numbers(machine):
    for dtype, cache_dtype in SCALED:
        Problem(64, 2, 1, 16, [(35, 270), (3, 3)], dtype=dtype, cache_dtype=cache_dtype).check(machine, "prefill")
        Problem(80, 3, 1, 8, [(9, 70)], 40, 2.0, dtype, cache_dtype).check(machine, "prefill")
    for head_dim in (96, 128, 256):
        Problem(head_dim, 2, 2, 64, [(5, 40)], cache_dtype="fp8").check(machine, "prefill")


@kernel_case
def float_attention_over_scaled_numbers(machine):
    for cache_dtype in ("f16", "fp8", "int8"):
        for kernel in ("segments", "prefill"):
            Problem(24, 4, 2, 8, [(1, 1), (3, 70)], dtype="f32", cache_dtype=cache_dtype).check(machine, kernel)


@further_case
def a_row_has_the_same_bits_however_it_is_computed(machine):
    """Alone or beside others, in a whole prompt or its last chunk, by the kernel of prompts or that of decoding."""
    for head_dim, window, dtype, cache_dtype in [
        (64, None, "bf16", "bf16"), (64, 40, "bf16", "bf16"), (256, None, "bf16", "bf16"), (64, 40, "f16", "f16"),
        (16, None, "f32", "f32"), (40, 40, "f32", "bf16"), (64, 40, "bf16", "fp8"), (64, None, "bf16", "int8"),
    ]:  # fmt: skip
        problem = Problem(head_dim, 2, 1, 16, [(20, 300), (1, 77)], window, None, dtype, cache_dtype)
        whole = problem.ask(machine, "prefill")
        assert np.array_equal(whole[:20], problem.ask(machine, "prefill", chosen=[0]))
        assert np.array_equal(whole[13:20], problem.ask(machine, "prefill", chosen=[0], last_rows=7))
        assert np.array_equal(whole[19:20], problem.ask(machine, "segments", chosen=[0], last_rows=1))
        assert np.array_equal(whole[17:20], problem.ask(machine, "segments", chosen=[0], last_rows=3))
        assert np.array_equal(whole[20:], problem.ask(machine, "segments", chosen=[1]))
