"""Fixtures that every kind of test may use."""

from pathlib import Path

import pytest
from hypothesis import settings

from llmsrv.weights.fetch import fetch_demo_model

# The machines that run this are shared: a slow example is not a failure. Every failure prints how to run it again.
settings.register_profile("llmsrv", deadline=None, print_blob=True)
settings.load_profile("llmsrv")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct Q4_1 GGUF file, from the cache or fetched once."""
    return fetch_demo_model("smollm2-135m")
