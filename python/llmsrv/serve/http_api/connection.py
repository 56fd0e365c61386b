"""A connection of uvicorn's that does not wait for ever: the head of a request has a time in which it must come.

uvicorn limits only the silence between two requests. Without this, whoever sends a byte now and then holds a connection
as long as they like, without a key.
"""

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0


class Connection(H11Protocol):
    """uvicorn's, from its first byte to its end."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected; with TLS, after the handshake."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._deadline = self.loop.call_later(HEAD_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if self._deadline is None and self._is_before_head():
            self._deadline = self.loop.call_later(HEAD_S, self.transport.abort)
        super().data_received(data)
        if not self._is_before_head():
            self._forget_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self._forget_deadline()
        super().connection_lost(exc)

    def _is_before_head(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
