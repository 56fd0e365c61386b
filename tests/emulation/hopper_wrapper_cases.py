"""Single instructions of Hopper against the words of the PTX manual."""

import functools

import numpy as np
from machine import kernel_case, stored, unwritten
from row_cases import as_read

IMAGE_ELEMENTS = 16 << 10  # of 16 bits
PRODUCT_COLS = 128
BY_128_BYTES = 1 << 62


def needs_hopper(case):
    """The case, where the machine has the instructions: the emulator, and devices of capability 9.0."""

    @functools.wraps(case)
    def on_hopper(machine):
        describe = getattr(machine.module, "describe", None)
        if describe is None or describe()["capability"] == "9.0":
            case(machine)

    return on_hopper


@kernel_case
@needs_hopper
def box_copy(machine):
    """A box lies in rows of 128 bytes, its 16-byte chunks exchanged as the last three bits of the row say."""
    rng = np.random.default_rng(7)
    matrix = stored(rng.standard_normal((40, 136)), "bf16")
    for box_rows, col, row in [(8, 0, 0), (32, 64, 5), (16, 128, 30), (16, 64, -3)]:
        out = unwritten((box_rows, 8, 8), "bf16")
        machine.run("try_copy_box", {"out": out}, matrix=matrix, box_rows=box_rows, col=col, row=row)
        around = np.zeros((64, 256), np.uint16)  # zeros outside of the matrix
        around[8:48, :136] = matrix
        box = around[8 + row : 8 + row + box_rows, col : col + 64].reshape(box_rows, 8, 8)
        chunk = np.arange(8) ^ (np.arange(box_rows) % 8)[:, None]
        assert np.array_equal(out, np.take_along_axis(box, chunk[..., None], axis=1))


def address_of(k, col, start, leading, stride, across):
    """Byte of element (k, col): "Canonical Layouts" of the PTX manual for 2-byte elements, then Swizzle<3, 4, 3>."""
    if across:
        byte = start + col % 64 * 2 + col // 64 * leading + k % 8 * 128 + k // 8 * stride
    else:
        byte = start + col % 8 * 128 + col // 8 * stride + k * 2
    return byte ^ (byte >> 7 & 7) << 4


@kernel_case
@needs_hopper
def product_of_a_warp_group(machine):
    """What a descriptor's bits mean: tiles of several pitches, and steps within the pattern."""
    rng = np.random.default_rng(8)
    a = stored(rng.standard_normal((64, 16)), "bf16")
    image = stored(rng.standard_normal(IMAGE_ELEMENTS), "bf16")
    k, col = np.arange(16)[:, None], np.arange(PRODUCT_COLS)
    for across, start, leading, stride in [
        (False, 0, 16, 1024), (False, 96, 16, 1024), (False, 1024 + 32, 4096, 1024),
        (True, 0, 4096, 1024), (True, 2048, 8192, 1024), (True, 1024, 2048, 8192),
    ]:  # fmt: skip
        descriptor = leading >> 4 << 16 | stride >> 4 << 32 | BY_128_BYTES
        b = as_read(image)[address_of(k, col, start, leading, stride, across) // 2]
        d = unwritten((64, PRODUCT_COLS), "f32")
        machine.run(
            "try_product", {"d": d}, a=a, image=image, descriptor=descriptor, start=start, across=across
        )  # fmt: skip
        assert np.abs(d - as_read(a) @ b).max() < 1e-4
