import platform

import testing_module

# The emulator switches stacks by hand, which it knows for one architecture.
if platform.machine() != "x86_64":
    collect_ignore_glob = ["test_*.py"]
else:
    testing_module.ensure(print, "_emulated", ("_emulated", "_emulated_race"))
