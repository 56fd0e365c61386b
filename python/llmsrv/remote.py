"""How a command reaches a server over gRPC: its address, TLS and the key."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

API_KEY_VARIABLE = "LLMSRV_API_KEY"
DEFAULT_ADDRESS = "127.0.0.1:50051"
MAX_MESSAGE_BYTES = 64 << 20


@dataclass(frozen=True)
class Remote:
    """A server. `ca_file`: certificates to trust instead of the system's; it implies TLS."""

    address: str
    api_key: str = ""
    tls: bool = False
    ca_file: Path | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


def open_channel(remote: Remote, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """A channel for the running event loop. Raises OSError when the certificates cannot be read."""
    limits = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), *options]
    if remote.tls or remote.ca_file is not None:
        roots = None if remote.ca_file is None else remote.ca_file.read_bytes()
        return grpc.aio.secure_channel(remote.address, grpc.ssl_channel_credentials(roots), options=limits)
    return grpc.aio.insecure_channel(remote.address, options=limits)


def key_from_environment() -> str:
    """The key of the variable LLMSRV_API_KEY, or none."""
    return os.environ.get(API_KEY_VARIABLE, "")
