"""Children of this process that end with it, even when it was killed and could not tell them."""

import os
import sys

# What the kernel tells a child of is the end of the thread that started it: the one that waits for it here.
# PR_SET_PDEATHSIG is 1. Before the call the parent may have ended already.
_RUN_MODULE = """
import ctypes, os, runpy, signal, sys
parent, module = int(sys.argv.pop(1)), sys.argv.pop(1)
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGKILL)
if os.getppid() == parent:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def module_command(module: str, *arguments: str) -> list[str]:
    """As `python -m module arguments`. REQUIRES: the thread that starts it waits for its end."""
    return [sys.executable, "-c", _RUN_MODULE, str(os.getpid()), module, *arguments]
