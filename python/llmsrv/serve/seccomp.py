"""A seccomp filter: system calls that no thread of this process may make any more. It cannot be taken back.

A filter sees a call's number and its plain arguments, never what pointers lead to. So files are told apart by how
they are opened, not by name (Landlock does that), and sockets are refused as a whole: those that listen, and those
that they accept, exist without `socket`.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from llmsrv.serve.landlock import set_no_new_privileges

_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data; arguments have 8 bytes
_X32_BIT = 0x40000000  # x86-64's other set of numbers
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NOT_A_STREAM = 0xE  # of the kinds of sockets; an event loop makes a pair of streams for itself, also when it ends


@dataclass(frozen=True)
class _Architecture:
    """As the kernel calls it, its own number of seccomp(), and which of the two numbers of a call is its."""

    audit: int
    seccomp: int
    column: int


_ARCHITECTURES = {
    "x86_64": _Architecture(audit=0xC000003E, seccomp=317, column=0),
    "aarch64": _Architecture(audit=0xC00000B7, seccomp=277, column=1),
}
Numbers = tuple[int | None, int | None]  # of one call on x86-64, and on AArch64, which lacks the older ones
_EXECUTING: dict[str, Numbers] = {"execve": (59, 221), "execveat": (322, 281)}
_CONNECTING: dict[str, Numbers] = {"socket": (41, 198), "connect": (42, 203)}
_CHANGING_FILES: dict[str, Numbers] = {
    "creat": (85, None),
    "truncate": (76, 45),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "rmdir": (84, None),
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
}
_REACHING_OTHERS: dict[str, Numbers] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
_CHANGING_THE_SYSTEM: dict[str, Numbers] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
}
_REFUSED = _EXECUTING | _CONNECTING | _CHANGING_FILES | _REACHING_OTHERS | _CHANGING_THE_SYSTEM
_REMOVING_FILES: dict[str, Numbers] = {"unlink": (87, None), "unlinkat": (263, 35)}
# Callers take these for calls that an older kernel lacks, and do without.
_CARRIERS: dict[str, Numbers] = {"openat2": (437, 437), "io_uring_setup": (425, 425)}
# Refused when this argument has one of these bits.
_BY_ARGUMENT: dict[str, tuple[Numbers, int, int]] = {
    "open": ((2, None), 1, _WRITES),
    "openat": ((257, 56), 2, _WRITES),
    "socketpair": ((53, 199), 1, _NOT_A_STREAM),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_carriers() -> None:
    """From now on nobody makes what carries system calls past a filter, such as the ring of an event loop.

    For this thread and those that it starts; what is there already goes on. Raises OSError when the kernel or the
    architecture has no filters. Sets no_new_privs.
    """
    _install(_filter(_architecture(), {name: (numbers, errno.ENOSYS) for name, numbers in _CARRIERS.items()}, {}))


def refuse_for_all_threads(*, may_remove_files: bool = False) -> None:
    """From now on no thread executes, opens or connects a socket, changes a file by name, or opens one for writing.

    Raises OSError and sets no_new_privs likewise, for all threads.
    """
    calls = _REFUSED if may_remove_files else _REFUSED | _REMOVING_FILES
    refused = {name: (numbers, errno.EPERM) for name, numbers in calls.items()}
    _install(_filter(_architecture(), refused, _BY_ARGUMENT))


def _architecture() -> _Architecture:
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"system calls cannot be filtered on {machine}")
    return _ARCHITECTURES[machine]


def _install(instructions: bytes) -> None:
    set_no_new_privileges()
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    program = _Program(len(instructions) // 8, instructions)
    arguments = [ctypes.c_long(each) for each in (_architecture().seccomp, _SET_MODE_FILTER, _ALL_THREADS)]
    result = library.syscall(*arguments, ctypes.byref(program))
    if result != 0:
        reason = os.strerror(ctypes.get_errno()) if result < 0 else f"thread {result} has a filter of its own"
        raise OSError(ctypes.get_errno(), f"system calls cannot be filtered: {reason}")


def _filter(
    architecture: _Architecture,
    refused: Mapping[str, tuple[Numbers, int]],
    by_argument: Mapping[str, tuple[Numbers, int, int]],
) -> bytes:
    """The program: from top to bottom, the first return that is reached counts.

    `refused`: calls and the error that each gives. `by_argument`: calls, which argument of each, and its bits that
    may not be set.
    """
    code = [_instruction(_LOAD, _ARCHITECTURE_AT), _instruction(_IF_EQUAL, architecture.audit, skip_if=1)]
    code += [_instruction(_RETURN, _REFUSE | errno.EPERM), _instruction(_LOAD, _NUMBER_AT)]
    code += [_instruction(_IF_AT_LEAST, _X32_BIT, skip_else=1), _instruction(_RETURN, _REFUSE | errno.EPERM)]
    for numbers, error in refused.values():
        number = numbers[architecture.column]
        if number is not None:
            code += [_instruction(_IF_EQUAL, number, skip_else=1), _instruction(_RETURN, _REFUSE | error)]
    for numbers, argument, bits in by_argument.values():
        number = numbers[architecture.column]
        if number is not None:
            code += [
                _instruction(_IF_EQUAL, number, skip_else=4),
                _instruction(_LOAD, _ARGUMENTS_AT + 8 * argument),
                _instruction(_IF_ANY_BIT, bits, skip_else=1),
                _instruction(_RETURN, _REFUSE | errno.EPERM),
                _instruction(_RETURN, _ALLOW),
            ]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _instruction(code: int, operand: int, *, skip_if: int = 0, skip_else: int = 0) -> bytes:
    return struct.pack("=HBBI", code, skip_if, skip_else, operand)
