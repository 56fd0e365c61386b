"""What protects the daemon's ports: keys with their limits, and certificates; and the count of whom they and others
refuse. All listeners share one."""

import ipaddress
import logging
import os
from collections.abc import Mapping

import grpc
import grpc.aio

from llmsrv.config import ServeConfig
from llmsrv.serve.auth import Guard
from llmsrv.serve.call_errors import CallErrors
from llmsrv.serve.tls import Tls

logger = logging.getLogger(__name__)


class Security:
    """The guard, the count of refused calls and, where there are certificates, TLS."""

    def __init__(self, config: ServeConfig, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ValueError when a file of keys or certificates cannot be used."""
        self._config = config
        self.guard = Guard(config, environment)
        self.call_errors = CallErrors()
        self.tls = None if config.tls_cert is None else Tls(config)

    @property
    def is_reloadable(self) -> bool:
        """Whether there is a file to read again."""
        return (
            self.tls is not None or self._config.api_key_file is not None or self._config.admin_token_file is not None
        )

    def reload(self) -> list[str]:
        """Reads keys and certificates again. What cannot be used stays as it was. One line each for the operator."""
        lines = []
        weights = self.guard.weights
        for what, part in (("keys", self.guard), ("certificates", self.tls)):
            if part is None or (part is self.guard and not self.guard.guards):
                continue
            try:
                part.reload()
            except ValueError as error:
                lines.append(f"the {what} stay as they were: {error}")
            else:
                lines.append(f"the {what} were read again")
        if self._config.scheduling_policy == "fair" and self.guard.weights != weights:
            lines.append("weights of keys stay as they were at the start")
        return lines

    def add_grpc_port(self, server: grpc.aio.Server, address: str) -> int:
        """Makes a server that has not started listen, behind TLS where there is any. Raises what grpc raises."""
        if self.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, self.tls.grpc_credentials())

    def warn_of_exposure(self, host: str, port: int, *, for_admins: bool = False) -> None:
        """Says what is missing on an address that others can reach, unless --insecure-bind says that it is known.

        `for_admins`: the admin token alone guards it.
        """
        missing = []
        if self.tls is None:
            missing.append("encryption (--tls-cert, --tls-key)")
        keyed = self.guard.guards if for_admins else self.guard.key_count
        if not keyed and self._config.tls_client_ca is None:
            missing.append(f"authentication ({'--admin-token-file' if for_admins else '--api-key-file'})")
        if missing and not is_local(host) and not self._config.insecure_bind:
            logger.warning(
                "WARNING: %s:%d IS OPEN TO THE NETWORK WITHOUT %s. Whoever reaches it can use it or listen to it. "
                "--insecure-bind silences this.",
                host,
                port,
                " AND ".join(missing),
            )


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
