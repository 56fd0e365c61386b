"""Landlock: the kernel's way for a process to give up files and connections, without being root.

It holds for the thread that asks and for those that it starts later, never for others that are there already, and can
only be made narrower. An open file stays open. Constants are those of linux/landlock.h; each version of the interface
knows more rights, and only those that the kernel knows are asked for.
"""

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on all architectures
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_REG, _MAKE_SOCK, _TRUNCATE = 1 << 8, 1 << 9, 1 << 14
_ALL_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}  # the last one from version 3 on
_CONNECT_TCP = 1 << 1  # from version 4 on
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1  # from version 6 on

READ = _READ_FILE | _READ_DIR
WRITE = READ | _WRITE_FILE | _TRUNCATE
MAKE = WRITE | _MAKE_REG | _MAKE_SOCK | _REMOVE_FILE
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # the others are of folders


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@dataclass(frozen=True)
class Allowed:
    """A file, or a folder and all below it, and the rights to it. What is not there is left out."""

    path: Path
    rights: int = READ


class Unavailable(Exception):
    """This kernel has no Landlock, or it is switched off; the message says why."""


def restrict(allowed: Iterable[Allowed]) -> int:
    """Takes from this thread all files but these, executing, TCP connections, and signals to other processes.

    Connections need version 4 of Landlock and signals version 6. Returns the version that the kernel has. Raises
    Unavailable. Sets no_new_privs.
    """
    version = landlock_version()
    handled = _ALL_FILE_RIGHTS[min(version, max(_ALL_FILE_RIGHTS))]
    attributes = _Ruleset(
        handled_access_fs=handled,
        handled_access_net=_CONNECT_TCP if version >= 4 else 0,
        scoped=_SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL if version >= 6 else 0,
    )
    ruleset = _system_call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    try:
        for each in allowed:
            _add_rule(ruleset, each, handled)
        set_no_new_privileges()
        _system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def landlock_version() -> int:
    """Of the kernel's interface. Raises Unavailable."""
    try:
        return _system_call(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        raise Unavailable(error.strerror) from None


def set_no_new_privileges() -> None:
    """From now on nothing that this thread executes can give it rights."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), f"no_new_privs: {os.strerror(ctypes.get_errno())}")


def _add_rule(ruleset: int, allowed: Allowed, handled: int) -> None:
    try:
        descriptor = os.open(allowed.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = allowed.rights & handled
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _OF_A_FILE
        rule = _PathBeneath(allowed_access=rights, parent_fd=descriptor)
        _system_call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)


def _system_call(number: int, *arguments: object) -> int:
    """The result. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    made = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = library.syscall(ctypes.c_long(number), *made)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
