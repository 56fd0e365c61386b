"""A serving engine for large language models: `llmsrv.LLM` in this process, `llmsrv-grpc` as a daemon.

Names are imported when first used, so that importing the package costs next to nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmsrv.llm import LLM, AsyncLLM
    from llmsrv.params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

_HOMES = {"LLM": "llmsrv.llm", "AsyncLLM": "llmsrv.llm", "SamplingParams": "llmsrv.params"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'llmsrv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
