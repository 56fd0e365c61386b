"""The memory of the KV cache goes back to the system and comes again."""

from __future__ import annotations

import os
import re
import time

import numpy as np

from llmsrv import _testing


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_of(array):
    """Of the mappings that the array lies in: what others take or free meanwhile does not count."""
    begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
    resident, counts = 0, False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                counts = int(found[1], 16) < end and begin < int(found[2], 16)
            elif counts and line.startswith("Rss:"):
                resident += int(line.split()[1]) * 1024
    return resident


def wait_until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_comes_without_a_touch_and_is_given_back():
    size = 64 << 20
    before = resident_bytes()
    memory = _testing.CacheMemory(layers=4, blocks=1024, layer_block_bytes=16 << 10)
    slack = 4 << 20
    for _ in range(2):
        wait_until(lambda: resident_bytes() - before >= size - slack)
        memory.give_back()
        assert resident_bytes() - before <= slack
        memory.take()


def test_what_is_stored_while_it_comes_stays():
    size = 256 << 20
    memory = _testing.CacheMemory(layers=1, blocks=1 << 10, layer_block_bytes=size >> 10)
    layer = memory.layer(0)
    for stride in (4096, 64, 1):
        layer[:, ::stride] = np.arange(layer[:, ::stride].size, dtype=np.uint8).reshape(len(layer), -1)
    wait_until(lambda: resident_bytes_of(layer) >= size)
    assert (layer == np.arange(layer.size, dtype=np.uint8).reshape(layer.shape)).all()


def test_it_can_go_while_it_comes():
    before = resident_bytes()
    for _ in range(20):
        memory = _testing.CacheMemory(layers=1, blocks=1 << 10, layer_block_bytes=1 << 19)
        memory.give_back()
        memory.take()
        del memory
    assert resident_bytes() - before < 64 << 20


def test_what_it_held_is_zero_afterwards_and_the_addresses_stay():
    memory = _testing.CacheMemory(layers=3, blocks=7, layer_block_bytes=1000)
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
