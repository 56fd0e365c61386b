"""Checks a built CUDA plug-in without a GPU: its targets, what it links, and the machine code of its kernels.

Needs cuobjdump and nvdisasm: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm.
"""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
SIZE_MAX_BYTES = 8 << 20
EXPORTED = {"llmsrv_plugin"}
LINKED = ("libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "ld-linux", "librt.so", "libdl.so")
# Instructions that a kernel must consist of on every target: tensor cores, copies past the registers, matrix loads.
REQUIRED = {
    "attend_segment_kernel": ("HMMA", "LDGSTS", "LDSM"),
    "attend_prefill_kernel": ("HMMA", "LDGSTS", "LDSM"),
    "attend_segment_f32_kernel": ("FFMA",),
    "attend_prefill_f32_kernel": ("FFMA",),
    "packed_linear_kernel": ("HMMA",),
    "packed_gemm_kernel": ("HMMA", "LDGSTS"),
}
# Kernels for one target alone: products of warp groups, copies of boxes, barriers that count bytes, moved registers.
REQUIRED_ON = {
    "sm_90a": {
        "attend_prefill_hopper_kernel": ("HGMMA", "UTMALDG", "SYNCS", "USETMAXREG"),
        "compare_products_kernel": ("HGMMA", "HMMA"),
    }
}
# Instances of a kernel, pairs of types times head sizes: bf16 queries over three types of keys, fp16 over two.
INSTANCES = {"attend_segment_kernel": 5 * 5, "attend_prefill_kernel": 5 * 5, "attend_prefill_hopper_kernel": 2}
SPILLS = ("LDL", "STL")  # local memory: registers that did not suffice, or an array that is indexed at run time


def main(plugin: Path) -> None:
    """Raises SystemExit with every rule that the plug-in breaks."""
    code = machine_code(plugin)
    wrong = [*wrong_links(plugin), *wrong_code(code), *wrong_answer(plugin)]
    if plugin.stat().st_size > SIZE_MAX_BYTES:
        wrong.append(f"has {plugin.stat().st_size} bytes, more than {SIZE_MAX_BYTES}")
    if wrong:
        raise SystemExit("\n".join(f"{plugin.name} {each}" for each in wrong))
    kernels = {len(functions) for functions in code.values()}
    print(f"plug-in: {plugin.stat().st_size / 1e6:.1f} MB, {max(kernels)} kernels for {', '.join(TARGETS)}, no spills")


def machine_code(plugin: Path) -> dict[str, dict[str, Counter[str]]]:
    """target -> kernel -> how often each instruction stands in it."""
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    target = kernel = ""
    for line in run("cuobjdump", "-sass", str(plugin)).splitlines():
        if match := re.match(r"\s*code for (sm_\w+)", line):
            target = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            kernel = match[1]
        elif match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", line):
            found[target][kernel][match[1]] += 1
    return found


def wrong_code(code: dict[str, dict[str, Counter[str]]]) -> list[str]:
    """What is missing or spilled, kernel by kernel."""
    wrong = [f"lacks code for {target}" for target in TARGETS if target not in code]
    for target, kernels in code.items():
        for kernel, instructions in kernels.items():
            if spilled := sum(instructions[name] for name in SPILLS):
                wrong.append(f"{target} {kernel}: {spilled} accesses to local memory")
            for part, required in (REQUIRED | REQUIRED_ON.get(target, {})).items():
                missing = [name for name in required if part in kernel and not instructions[name]]
                wrong += [f"{target} {kernel}: no {name}" for name in missing]
        for part in REQUIRED | REQUIRED_ON.get(target, {}):
            found, wanted = sum(part in kernel for kernel in kernels), INSTANCES.get(part, 1)
            if found < wanted:
                wrong.append(f"{target}: {found} of {part}, not {wanted}")
        elsewhere = {part for other, parts in REQUIRED_ON.items() if other != target for part in parts}
        wrong += [
            f"{target} {kernel}: is for another target" for kernel in kernels if any(p in kernel for p in elsewhere)
        ]
    return wrong


def wrong_links(plugin: Path) -> list[str]:
    """Libraries and symbols that should not be there."""
    linked = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", str(plugin)))
    wrong = [f"links {name}" for name in linked if not name.startswith(LINKED)]
    symbols = {line.split()[-1] for line in run("nm", "-D", "--defined-only", str(plugin)).splitlines()}
    return wrong + [f"exports {name}" for name in sorted(symbols - EXPORTED)]


class Table(ctypes.Structure):
    """PluginTable of cpp/ops/plugin.h."""

    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("count_devices", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)),
    )


def wrong_answer(plugin: Path) -> list[str]:
    """The plug-in must load without a driver, and count devices or say why there are none."""
    function = ctypes.CDLL(str(plugin.resolve())).llmsrv_plugin
    function.restype = ctypes.POINTER(Table)
    table = function().contents
    why = ctypes.create_string_buffer(256)
    count = table.count_devices(ctypes.cast(why, ctypes.c_char_p), len(why))
    print(f"plug-in: interface {table.abi}, {count} devices {why.value.decode()}".rstrip())
    return [] if count or why.value else ["neither counts devices nor says why there are none"]


def run(*command: str) -> str:
    """The output of a tool of the system or of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    folders = [f"{root}/cu13/bin" for root in (spec.submodule_search_locations or [])] if spec else []
    environment = os.environ | {"PATH": os.pathsep.join([*folders, os.environ["PATH"]])}
    # The tool is looked up along our own PATH, what it starts itself along the one it is given.
    return subprocess.run(
        ["/usr/bin/env", *command], env=environment, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
