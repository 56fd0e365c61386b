"""Where the threads of an engine run."""

import os
import time

import pytest
from harness import prompt, request, run, tiny_weights

from llmsrv import _core

ALLOWED = os.sched_getaffinity(0)


def affinity_of_threads():
    """Processors of each thread of this process by its id; those that end while they are asked are left out."""
    found = {}
    for thread in map(int, os.listdir("/proc/self/task")):
        try:
            found[thread] = os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue
    return found


@pytest.mark.skipif(len(ALLOWED) < 2, reason="there is one processor")
@pytest.mark.parametrize("threads", [1, 3])
def test_the_team_runs_where_it_is_told_and_nobody_else_does(threads):
    """Neither the threads that were there before, nor those that take memory in the background after a rest."""
    before = set(affinity_of_threads())
    last = max(ALLOWED)
    config = _core.EngineConfig(
        max_model_len=64, kv_cache_memory=256 << 20, swap_space=0, max_num_seqs=1, idle_timeout=0.1
    )
    engine = _core.Engine(tiny_weights(), config, threads=threads, processors=[last] * threads)
    try:
        for round in range(3):
            run(engine, [request(str(round), prompt(0, 8), stopping={"max_tokens": 2})])
            time.sleep(0.2)
        assert {thread: mask for thread, mask in affinity_of_threads().items() if thread in before} == dict.fromkeys(
            before, ALLOWED
        )
        masks = [mask for thread, mask in affinity_of_threads().items() if thread not in before]
        assert masks.count({last}) == threads
    finally:
        engine.shutdown()


def test_processors_must_be_as_many_as_threads():
    config = _core.EngineConfig(max_model_len=64, kv_cache_memory=1 << 20, swap_space=0)
    with pytest.raises(RuntimeError):
        _core.Engine(tiny_weights(), config, threads=2, processors=[0])
