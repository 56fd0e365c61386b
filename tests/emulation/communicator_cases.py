"""A communicator of one rank: what there is of NCCL on one device."""

import numpy as np
from machine import further_case, stored, unwritten, values_of
from row_cases import as_read, numbers


@further_case
def a_communicator_of_one_rank(machine):
    library = machine.library("nccl")
    rng = np.random.default_rng(41)
    identity = machine.module.make_communicator_id(*library)
    communicator = machine.module.Communicator(*library, id=identity, ranks=1, rank=0, wait_ms_max=20000)
    for dtype in ("f32", "bf16"):
        for rows, cols in [(1, 1), (3, 40), (64, 1000)]:
            values = stored(numbers(rng, rows, cols), dtype)
            before = as_read(values)
            machine.run("all_reduce", {"values": values}, communicator=communicator)
            assert np.array_equal(values_of(values), before)
            out = unwritten((rows, cols), dtype)
            machine.run("all_gather", {"out": out}, communicator=communicator, in_=values)
            assert np.array_equal(values_of(out), before)
    communicator.close()
