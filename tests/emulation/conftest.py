import platform
import sys
from pathlib import Path

import testing_module

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny models and requests

# The emulator switches stacks by hand, which it knows for one architecture.
if platform.machine() != "x86_64":
    collect_ignore_glob = ["test_*.py"]
else:
    testing_module.ensure(print, "_emulated", ("_emulated", "_emulated_race"))
