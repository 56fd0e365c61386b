"""Fixtures that every kind of test may use."""

import os
from pathlib import Path

import pytest
import testing_module
from hypothesis import settings

# The machines that run this are shared: a slow example is not a failure. Every failure prints how to run it again.
# CI draws the same examples each time: it judges the change, not its luck. Elsewhere every run draws new ones.
settings.register_profile("llmsrv", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("llmsrv"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "llmsrv")


@pytest.hookimpl(trylast=True)  # after the terminal is there
def pytest_configure(config):
    """Test modules import llmsrv._testing while they are collected: it must be there before."""
    reporter = config.get_terminal_writer()
    testing_module.ensure(lambda text: reporter.line(text, yellow=True))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct Q4_1 GGUF file, from the cache or fetched once."""
    from llmsrv.weights.fetch import fetch_demo_model

    return fetch_demo_model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The Gemma-3-270M Q4_K_M GGUF file: a base model in a mixture of formats, with a SentencePiece vocabulary."""
    from llmsrv.weights.fetch import fetch_demo_model

    return fetch_demo_model("gemma3-270m")
