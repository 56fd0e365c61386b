"""Ranks that sum and gather through a stand-in for NCCL: threads of one process, and what happens when one is lost."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from machine import from_bf16, stored, to_bf16, unwritten, values_of
from row_cases import as_read, numbers

from llmsrv import _emulated

LIBRARY = ("libllmsrv_stand_in_nccl.so", [str(Path(_emulated.__file__).parent)])
LONG_MS, SHORT_MS = 100_000, 50


def join(ranks, rank, identity, wait_ms_max=LONG_MS):
    return _emulated.Communicator(*LIBRARY, id=identity, ranks=ranks, rank=rank, wait_ms_max=wait_ms_max)


def on_every_rank(ranks, work):
    """What work(rank, identity) returns, or raises, at each of the ranks, which run at once."""
    identity = _emulated.make_communicator_id(*LIBRARY)
    with ThreadPoolExecutor(ranks) as pool:
        return [future.result() for future in [pool.submit(work, rank, identity) for rank in range(ranks)]]


def alive():
    return _emulated.living_communicators(*LIBRARY)


def join_last(ranks, rank, identity):
    """Joins when all others have, so that it has not to wait for them, and waits for a short time from then on."""
    while alive() < ranks - 1:
        time.sleep(0.001)
    return join(ranks, rank, identity, SHORT_MS)


@pytest.fixture(autouse=True)
def _all_communicators_end():
    assert alive() == 0
    yield
    assert alive() == 0


def test_the_version_is_read():
    assert _emulated.nccl_version(*LIBRARY) == 22809


def test_a_library_without_a_function_is_one_sentence():
    """The module itself is a library that has none of NCCL's functions."""
    with pytest.raises(_emulated.LibraryError, match="is too old or too new: it lacks nccl"):
        _emulated.nccl_version(Path(_emulated.__file__).name, LIBRARY[1])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_rank_has_the_sum_and_all_rows(ranks, dtype):
    rng = np.random.default_rng([ranks, 51])
    shapes = [(1, 1), (3, 40), (17, 8)]
    given = [[stored(numbers(rng, *shape), dtype) for shape in shapes] for _ in range(ranks)]
    exact = [sum(as_read(mine[i]) for mine in given) for i in range(len(shapes))]
    gathered = [np.concatenate([as_read(mine[i]) for mine in given]) for i in range(len(shapes))]

    def work(rank, identity):
        communicator = join(ranks, rank, identity)
        for values, rows in zip(given[rank], gathered, strict=True):
            out = unwritten(rows.shape, dtype)
            _emulated.all_gather(communicator, values, out)
            assert np.array_equal(values_of(out), rows)
            _emulated.all_reduce(communicator, values)
        communicator.close()
        return [values_of(values) for values in given[rank]]

    for results in on_every_rank(ranks, work):
        for result, expected in zip(results, exact, strict=True):
            rounded = from_bf16(to_bf16(expected)).astype(np.float64) if dtype == "bf16" else expected
            assert np.allclose(result, rounded, rtol=2.0**-7 if dtype == "bf16" else 1e-5, atol=1e-5)


def test_a_rank_that_does_not_come_is_an_error_in_time():
    identity = _emulated.make_communicator_id(*LIBRARY)
    with pytest.raises(RuntimeError, match=r"^timed out: NCCL: the ranks' meeting: no end within 50 ms$"):
        join(2, 0, identity, SHORT_MS)


def test_a_rank_that_has_gone_is_an_error_at_the_others():
    """One gives up its wait for a sum that the others never ask for; they find that out at their next call."""
    gone = threading.Event()

    def work(rank, identity):
        communicator = join_last(3, rank, identity) if rank == 0 else join(3, rank, identity)
        values = stored(np.ones((2, 8)), "f32")
        if rank != 0:
            gone.wait()
        with pytest.raises(RuntimeError) as first:
            _emulated.all_reduce(communicator, values)
        gone.set()
        with pytest.raises(RuntimeError, match=r"^failed: NCCL: this communicator was given up after an error$"):
            _emulated.all_gather(communicator, values, unwritten((6, 8), "f32"))
        return str(first.value)

    assert on_every_rank(3, work) == [
        "timed out: NCCL: all_reduce: no end within 50 ms",
        "remote: NCCL: all_reduce: another rank is gone",
        "remote: NCCL: all_reduce: another rank is gone",
    ]


def test_who_waits_for_a_stream_hears_of_a_rank_that_has_gone():
    waits = threading.Event()

    def work(rank, identity):
        if rank == 0:
            communicator = join_last(2, rank, identity)
            waits.wait()
            with pytest.raises(RuntimeError, match=r"^timed out"):
                _emulated.all_reduce(communicator, stored(np.ones(8), "f32"))
        else:
            communicator = join(2, rank, identity)
            with pytest.raises(RuntimeError, match=r"^remote: NCCL: a stream: another rank is gone$"):
                communicator.wait(lambda: waits.set() is not None)

    on_every_rank(2, work)


def test_a_stream_that_is_done_is_not_waited_for_longer():
    def work(rank, identity):
        communicator = join(2, rank, identity)
        asked = iter([False, False, True])
        communicator.wait(lambda: next(asked))
        communicator.close()
        return next(asked, "asked no more")

    assert on_every_rank(2, work) == ["asked no more"] * 2


def test_a_stream_that_is_never_done_is_an_error_in_time():
    def work(rank, identity):
        communicator = join(1, rank, identity, SHORT_MS)
        with pytest.raises(RuntimeError, match=r"^timed out: NCCL: a stream: no end within 50 ms$"):
            communicator.wait(lambda: False)

    on_every_rank(1, work)


def test_ranks_that_ask_for_different_things_are_an_error_at_all():
    def work(rank, identity):
        communicator = join(2, rank, identity)
        with pytest.raises(RuntimeError) as error:
            _emulated.all_reduce(communicator, stored(np.ones((2, 8 + rank)), "f32"))
        return str(error.value)

    assert on_every_rank(2, work) == ["failed: NCCL: all_reduce: invalid usage"] * 2


def test_a_rank_that_the_library_refuses_is_an_error():
    identity = _emulated.make_communicator_id(*LIBRARY)
    with pytest.raises(RuntimeError, match=r"^failed: NCCL: the ranks' meeting: refused$"):
        join(2, 2, identity)


def test_an_end_that_the_others_do_not_come_to_is_an_end():
    closed = threading.Event()

    def work(rank, identity):
        communicator = join_last(2, rank, identity) if rank == 0 else join(2, rank, identity)
        if rank == 1:
            closed.wait()
        communicator.close()
        closed.set()

    on_every_rank(2, work)
