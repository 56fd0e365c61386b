"""What llmsrv's engine should reach, as multiples of others in the same run. Needs nothing but Python."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    floor: float
    goal: float | None = None


# shape -> file -> against llama.cpp on the same file
AGAINST_LLAMA_CPP = {
    ("prefill", 512): {
        "q4_0": Target(1.8, 2.5),
        "q4_1": Target(5, 9),
        "q8_0": Target(2.5, 4.5),
        "bf16": Target(1.2, 1.7),
    },
    ("decode", 1): {
        "q4_0": Target(1.5, 2.2),
        "q4_1": Target(1.7, 2.6),
        "q8_0": Target(1.4, 2.0),
        "bf16": Target(1.0, 1.25),
    },
    ("decode", 8): {
        "q4_0": Target(2.3, 4.2),
        "q4_1": Target(3.5, 7),
        "q8_0": Target(2.5, 4.5),
        "bf16": Target(1.3, 2),
    },
    ("decode", 32): {
        "q4_0": Target(2, 3.5),
        "q4_1": Target(4, 7.3),
        "q8_0": Target(2.8, 5),
        "bf16": Target(1.3, 2.1),
    },
}
# A file given by --model, against llama.cpp on it.
OTHER_MODEL = {("decode", 1): Target(1.5), ("decode", 8): Target(1.5), ("decode", 32): Target(1.5)}
# With any weights of 4 bits, against the best of all others with any of theirs.
AGAINST_BEST_FOUR_BITS = {
    ("prefill", 512): Target(1.2, 1.5),
    ("decode", 1): Target(1.3, 1.8),
    ("decode", 8): Target(2, 3),
    ("decode", 32): Target(1.7, 2.5),
    ("decode", 64): Target(1.6, 2.3),
}
# Served, at so many clients, against the best server of the others.
SERVED = {1: Target(1.6, 2.5), 8: Target(2.2, 4), 32: Target(2.5, 4), 64: Target(2.5, 4)}
# The context at which the decode targets hold.
TARGET_CONTEXT = 256
