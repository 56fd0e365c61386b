"""The memory of the KV cache goes back to the system and comes again."""

from __future__ import annotations

import os

import numpy as np
import pytest

from llmsrv import _testing


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_it_is_taken_at_once_and_given_back():
    size = 64 << 20
    before = resident_bytes()
    memory = _testing.CacheMemory(layers=4, blocks=1024, layer_block_bytes=16 << 10)
    slack = 4 << 20
    assert resident_bytes() - before >= size - slack
    memory.give_back()
    assert resident_bytes() - before <= slack
    memory.take()
    assert resident_bytes() - before >= size - slack


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_it_held_is_zero_afterwards_and_the_addresses_stay(threads):
    memory = _testing.CacheMemory(layers=3, blocks=7, layer_block_bytes=1000, threads=threads)
    layers = [memory.layer(index) for index in range(memory.layer_count)]
    for index, layer in enumerate(layers):
        layer[:] = index + 1
    assert [int(layer.min()) for layer in layers] == [int(layer.max()) for layer in layers] == [1, 2, 3]
    memory.give_back()
    assert not np.stack(layers).any()
    memory.take()
    assert not np.stack(layers).any()
    layers[2][:] = 9
    assert (memory.layer(2) == 9).all()


def test_a_cache_of_no_blocks_holds_nothing():
    memory = _testing.CacheMemory(layers=3, blocks=0, layer_block_bytes=1000)
    assert memory.layer_count == 3
    assert memory.layer(0).shape == (0, 1000)
    memory.give_back()
    memory.take()
