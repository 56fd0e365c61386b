"""The certificate of both ports, replaced while they serve: who is connected stays, who connects gets the new one."""

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from llmsrv.config import ServeConfig


@dataclass(frozen=True, slots=True)
class _Pems:
    """What the files hold: PEM."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


class Tls:
    """A certificate chain and its key, and with `tls_client_ca` the authorities whose clients may connect.

    Thread rule: reload() on one thread; gRPC asks for the certificate from threads of its own.
    """

    def __init__(self, config: ServeConfig) -> None:
        """Raises ValueError when a file cannot be used. REQUIRES: config has tls_cert and tls_key."""
        self._config = config
        self._pems, self._context = self._read()

    def reload(self) -> None:
        """Reads the files again. Raises ValueError, and keeps what it has, when they cannot be used."""
        self._pems, self._context = self._read()

    def ssl_context(self) -> ssl.SSLContext:
        """For asyncio. It follows each reload()."""
        front = self._made()

        def choose(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self._context  # with its authorities: OpenSSL takes them from there

        front.sni_callback = choose  # also called for a client that names no server
        return front

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For one port of gRPC. They follow each reload()."""
        given = self._pems
        lock = threading.Lock()

        def fetch() -> grpc.ServerCertificateConfiguration:
            nonlocal given
            with lock:
                if given is self._pems:
                    return None  # type: ignore[return-value]  # it keeps the one it has
                given = self._pems
                return _grpc_configuration(given)

        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(given), fetch, require_client_authentication=given.client_ca is not None
        )

    def _read(self) -> tuple[_Pems, ssl.SSLContext]:
        pems = self._read_pems()
        context = self._made()
        if self._read_pems() != pems:
            raise ValueError("tls_cert: the files change while they are read")
        return pems, context

    def _read_pems(self) -> _Pems:
        ca = self._config.tls_client_ca
        return _Pems(
            _bytes_of("tls_cert", self._config.tls_cert or ""),
            _bytes_of("tls_key", self._config.tls_key or ""),
            None if ca is None else _bytes_of("tls_client_ca", ca),
        )

    def _made(self) -> ssl.SSLContext:
        """A context of the files as they are. OpenSSL checks that key and certificate belong together."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # No session outlives the authority that its client was let in by.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        cert, key, ca = self._config.tls_cert or "", self._config.tls_key, self._config.tls_client_ca
        try:
            context.load_cert_chain(cert, key, password="")  # never asks the terminal for one
        except (OSError, ValueError) as error:
            raise ValueError(f"tls_cert, tls_key: {cert} with {key} cannot be used: {_reason(error)}") from None
        if ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(ca)
            except (OSError, ValueError) as error:
                raise ValueError(f"tls_client_ca: {ca} cannot be used: {_reason(error)}") from None
        return context


def _grpc_configuration(pems: _Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.client_ca)


def _bytes_of(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{option}: cannot read {path}: {error.strerror}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "it is not PEM"
