"""Unix sockets as addresses: `unix:/path`. Only the daemon's own user can connect."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmsrv.config import UNIX_PREFIX


def socket_path(host: str) -> Path | None:
    """The socket's path, or None for a host of the network."""
    return Path(host.removeprefix(UNIX_PREFIX)) if host.startswith(UNIX_PREFIX) else None


@contextmanager
def room_for_socket(path: Path | None) -> Iterator[None]:
    """Sockets that are bound inside are ours alone; what a dead daemon left at `path` is gone before.

    Raises OSError when somebody listens there, or when something else than a socket is there: gRPC would replace both.
    """
    if path is None:
        yield
        return
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} exists and is no socket")
        if _is_listened_on(path):
            raise OSError(f"another process listens on {path}")
        path.unlink()
    mask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(mask)


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True
