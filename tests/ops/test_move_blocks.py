"""move_blocks: bytes go where the moves say, one move after the other, in every layer of a cache."""

from __future__ import annotations

import numpy as np
import pytest

from llmsrv import _testing

SHAPE = _testing.HeadShape(4, 2, 8)
LAYERS = 5


def make_layers(rng, backend, dtype, blocks, layers=LAYERS, block_size=16, shape=SHAPE):
    """A cache of random bytes: one object per layer."""
    made = [_testing.KvCache(backend, shape, block_size, dtype, blocks) for _ in range(layers)]
    for layer in made:
        layer.blocks[:] = rng.integers(0, 256, layer.blocks.shape, np.uint8)
    return made


def contents(layers):
    return np.stack([layer.blocks for layer in layers])  # [layers, blocks, bytes of a block]


def moved(source, target, moves):
    """What the target holds afterwards. `source` may be `target`."""
    for from_block, to_block in moves:
        target[:, to_block] = source[:, from_block]
    return target


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("layers", [1, 2, LAYERS])
def test_between_a_cache_and_a_swap_pool(rng, cache_dtype, threads, layers):
    backend = _testing.CpuBackend(threads)
    cache, swap = make_layers(rng, backend, cache_dtype, 9, layers), make_layers(rng, backend, cache_dtype, 4, layers)
    held = contents(cache)
    out = [(8, 0), (0, 3), (3, 1)]
    expected = moved(held, contents(swap), out)
    backend.move_blocks(cache, swap, out)
    np.testing.assert_array_equal(contents(swap), expected)
    np.testing.assert_array_equal(contents(cache), held)
    back = [(3, 8), (0, 2)]
    expected = moved(expected, held, back)
    backend.move_blocks(swap, cache, back)
    np.testing.assert_array_equal(contents(cache), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "moves",
    [
        [],
        [(0, 1)],
        [(2, 2)],  # onto itself
        [(0, 1), (1, 2), (2, 3)],  # the first block everywhere
        [(2, 3), (1, 2), (0, 1)],  # a shift by one
        [(0, 5), (1, 0), (5, 1)],  # a swap through a third
        [(0, 1), (2, 1), (1, 0)],  # a target twice
    ],
    ids=str,
)
def test_within_a_cache_the_order_counts(rng, cache_dtype, threads, moves):
    backend = _testing.CpuBackend(threads)
    cache = make_layers(rng, backend, cache_dtype, 6)
    both = contents(cache)
    backend.move_blocks(cache, cache, moves)
    np.testing.assert_array_equal(contents(cache), moved(both, both, moves))


def test_random_moves_within_a_cache(rng, cache_dtype):
    backend = _testing.CpuBackend(2)
    cache = make_layers(rng, backend, cache_dtype, 12)
    for _ in range(50):
        both = contents(cache)
        moves = [tuple(pair) for pair in rng.integers(0, 12, (rng.integers(1, 20), 2)).tolist()]
        backend.move_blocks(cache, cache, moves)
        np.testing.assert_array_equal(contents(cache), moved(both, both, moves))


def test_nothing_is_allocated(rng, cache_dtype):
    backend = _testing.CpuBackend(2)
    cache = make_layers(rng, backend, cache_dtype, 6)
    assert backend.move_blocks(cache, cache, [(0, 1), (1, 2)]) == 0


@pytest.mark.parametrize("move", [(-1, 0), (0, -1), (6, 0), (0, 4)], ids=str)
def test_blocks_outside_are_refused_before_anything_moves(rng, move):
    backend = _testing.CpuBackend(2)
    cache, swap = make_layers(rng, backend, "bf16", 6), make_layers(rng, backend, "bf16", 4)
    before = contents(swap)
    with pytest.raises(RuntimeError, match="check failed"):
        backend.move_blocks(cache, swap, [(0, 0), move])
    np.testing.assert_array_equal(contents(swap), before)


@pytest.mark.parametrize(
    "different",
    [{"dtype": "f32"}, {"layers": LAYERS - 1}, {"block_size": 8}, {"shape": _testing.HeadShape(4, 4, 8)}],
    ids=str,
)
def test_caches_of_different_shape_are_refused(rng, different):
    backend = _testing.CpuBackend(2)
    cache = make_layers(rng, backend, "bf16", 6)
    other = make_layers(rng, backend, blocks=6, **{"dtype": "bf16", **different})
    with pytest.raises(RuntimeError, match="check failed"):
        backend.move_blocks(cache, other, [(0, 0)])


def test_a_pool_without_blocks_takes_part_in_no_move(rng):
    backend = _testing.CpuBackend(2)
    cache, empty = make_layers(rng, backend, "bf16", 6), make_layers(rng, backend, "bf16", 0)
    backend.move_blocks(cache, empty, [])
    backend.move_blocks([], [], [])
    for source, target in ((cache, empty), (empty, cache)):
        with pytest.raises(RuntimeError, match="check failed"):
            backend.move_blocks(source, target, [(0, 0)])
