"""Checks a built wheel: what it holds, how large it is, what it links, how long an import takes."""

import subprocess
import sys
import zipfile
from pathlib import Path

SIZE_MAX_BYTES = 10 << 20
IMPORT_MAX_S = 0.3
REQUIRED = (
    "llmsrv/_commit.py",
    "llmsrv/_core.pyi",
    "llmsrv/py.typed",
    "llmsrv/serve/http_api/dashboard.html",
    "llmsrv/v1/inference_pb2.py",
    "llmsrv/protos/llmsrv/v1/inference.proto",
)
# Libraries that every Linux of the manylinux policies has.
ALLOWED = ["libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "ld-linux", "librt.so", "libdl.so"]


def main(path: Path) -> None:
    """Raises SystemExit with the first rule that the wheel breaks."""
    names = zipfile.ZipFile(path).namelist()
    missing = [name for name in REQUIRED if name not in names]
    if missing or not any(name.startswith("llmsrv/_core.") and name.endswith(".so") for name in names):
        raise SystemExit(f"the wheel lacks {missing or ['llmsrv/_core.*.so']}")
    if any("_testing" in name for name in names):
        raise SystemExit("the testing module must not be shipped")
    size = path.stat().st_size
    if size > SIZE_MAX_BYTES:
        raise SystemExit(f"the wheel has {size} bytes, more than {SIZE_MAX_BYTES}")
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(path)], capture_output=True, text=True, check=True
    )
    libraries = [word.strip("\"',{}()") for word in shown.stdout.split() if ".so" in word]
    foreign = sorted(
        {name for name in libraries if not name.startswith(tuple(ALLOWED)) and not name.startswith("_core")}
    )
    if foreign:
        raise SystemExit(f"the wheel links foreign libraries: {foreign}\n{shown.stdout}")
    timed = "import time; t = time.perf_counter(); import llmsrv; print(time.perf_counter() - t)"
    seconds = sorted(
        float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True, cwd="/").stdout)
        for _ in range(3)
    )[1]
    if seconds > IMPORT_MAX_S:
        raise SystemExit(f"import llmsrv takes {seconds:.2f} s, more than {IMPORT_MAX_S}")
    print(f"wheel: {size / 1e6:.1f} MB, {len(names)} files, no foreign library; import {seconds * 1e3:.0f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
