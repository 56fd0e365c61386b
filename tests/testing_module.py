"""Makes llmsrv._testing importable: the parts of the core, one by one; and the emulated CUDA kernels, _emulated.

They are never part of an installation.

An in-place or sanitizer build brings it along. Beside an installed package it is built here, from the same sources,
into build/; later runs only check that it is up to date.
"""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / f"testing-cp{sys.version_info.major}{sys.version_info.minor}"


def ensure(say, module: str = "_testing", targets: tuple[str, ...] = ("_testing",)) -> None:
    """Imports the module, building it first where it is missing. `say` takes a line for the person who waits."""
    import llmsrv

    try:
        importlib.import_module(f"llmsrv.{module}")
    except ImportError:
        say(f"building the testing module {module} of the core (about a minute, the first time) ...")
        build(targets)
        if str(BUILD / "module") not in llmsrv.__path__:
            llmsrv.__path__.append(str(BUILD / "module"))
        importlib.import_module(f"llmsrv.{module}")


def tool(name: str) -> str:
    """The tool of this environment, else the system's."""
    beside_python = Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is needed to build the testing module: pip install 'llmsrv[test]'")
    return found


def build(targets: tuple[str, ...]) -> None:
    """Configures and builds; raises RuntimeError with the compiler's words when that fails."""
    configure = [
        tool("cmake"), "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}", "-DLLMSRV_TESTING=ON",
        "-DLLMSRV_CUDA=OFF", f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={BUILD / 'module'}",
    ]  # fmt: skip
    for command in (configure, [tool("cmake"), "--build", str(BUILD), "--target", *targets]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
