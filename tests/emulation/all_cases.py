"""Every check of kernels: its file registers it when it is imported."""

import attention_cases  # noqa: F401
import communicator_cases  # noqa: F401
import fp8_cases  # noqa: F401
import hopper_cases  # noqa: F401
import hopper_wrapper_cases  # noqa: F401
import linear_cases  # noqa: F401
import row_cases  # noqa: F401
import sampling_cases  # noqa: F401
import wrapper_cases  # noqa: F401
from machine import BARRIER_CASES, CASES

__all__ = ["BARRIER_CASES", "CASES"]
