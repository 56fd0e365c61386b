"""A connection of uvicorn's that does not wait for ever: the head of a request has a time in which it must come.

uvicorn limits only the silence between two requests. Without this, whoever sends a byte now and then holds a connection
as long as they like, without a key.
"""

import asyncio
from typing import Any, cast

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


class LocalConnection(Connection):
    """One over a Unix socket, where the kernel has no time limit for a reader that takes nothing: so it is here.

    The kernel takes more only when most of what it has is read, some 150 KB: one that reads less in the time is cut
    off, too.
    """

    def __init__(self, *arguments: Any, stall_s: float, **named: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **named)
        self._stall_s = stall_s
        self._untaken = 0  # bytes that waited at the last look
        self._look: asyncio.TimerHandle | None = None  # while more waits than should

    def pause_writing(self) -> None:
        """The reader is slow: much waits for it."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._look_no_longer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self._look_no_longer()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._untaken = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(self._stall_s, self._end_unless_taken)

    def _end_unless_taken(self) -> None:
        if self.transport.get_write_buffer_size() < self._untaken:
            self._look_later()
        else:
            self.transport.abort()

    def _look_no_longer(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
