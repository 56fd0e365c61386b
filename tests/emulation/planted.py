"""Kernels with defects that the emulator must find, and their right twins."""

import numpy as np
from machine import ORDERS

PLANTED_ORDERS = ORDERS[:3]


def planted(machine, name):
    memory = np.full(256, -1, np.int32)
    memory[:128] = np.arange(128)
    machine.run("run_planted", {"memory": memory}, name=name)
    return memory
