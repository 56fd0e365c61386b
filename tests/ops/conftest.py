from __future__ import annotations

import numpy as np
import pytest
from cases import ISAS

from llmsrv import _testing


@pytest.fixture(params=ISAS)
def isa(request):
    """Each instruction set of this machine."""
    return request.param


@pytest.fixture
def backend(isa):
    return _testing.CpuBackend(threads=2, isa=isa)


@pytest.fixture(params=["bf16", "f32"])
def dtype(request):
    """How weights are stored."""
    return request.param


@pytest.fixture(params=["bf16", "f32", "int8"])
def cache_dtype(request):
    """How keys and values are stored."""
    return request.param


@pytest.fixture
def rng(request):
    """Numbers that depend on the test's own name alone, so that a failure repeats."""
    return np.random.default_rng(list(request.node.name.encode()))
