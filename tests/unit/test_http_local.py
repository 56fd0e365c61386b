"""HTTP on a Unix socket over a scripted engine: the same server, with what TCP's options do done by us."""

import asyncio
import json
import socket
import stat
from types import SimpleNamespace

import pytest
import uvicorn
from fakes import FakeEngine, FakeOutput, fake_model, finish
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from llmsrv.config import ServeConfig
from llmsrv.serve.http_api.connection import LocalConnection
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.service import GenerationService

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Served:
    """A server in this loop, on a socket in a folder."""

    def __init__(self, folder, **options):
        self.path = folder / "http.sock"
        self.engine = FakeEngine()
        self.server = HttpServer(ServeConfig(model="fake", http_host=f"unix:{self.path}", **options))

    async def __aenter__(self):
        assert await self.server.start() == 0
        self.service = GenerationService(fake_model(self.engine))
        await self.server.serve(self.service)
        return self

    async def __aexit__(self, *error):
        await self.server.stop()
        await self.service.close()

    async def asked(self, method, path, body=None):
        """A connection on which a request was sent."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return reader, writer

    async def submitted(self):
        while not self.engine.submitted:
            await asyncio.sleep(0.005)
        return len(self.engine.submitted)


def run(folder, test, **options):
    async def body():
        async with Served(folder, **options) as served:
            await asyncio.wait_for(test(served), 30)
            assert served.service.in_flight == 0

    asyncio.run(body())


def test_an_answer_and_a_stream(tmp_path):
    async def test(served):
        reader, writer = await served.asked("GET", "/health")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        reader, writer = await served.asked("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        served.engine.emit(await served.submitted(), b"hello", finish=finish("length"), final=True)
        assert (await reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()

    run(tmp_path, test)


def test_the_socket_is_the_daemons_own_and_goes_with_it(tmp_path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "http.sock"))
    left.close()  # as a daemon that was killed leaves it

    async def test(served):
        assert stat.S_IMODE(served.path.stat().st_mode) & 0o077 == 0
        second = HttpServer(ServeConfig(model="fake", http_host=f"unix:{served.path}"))
        with pytest.raises(OSError, match="another process listens"):
            await second.start()
        reader, writer = await served.asked("GET", "/health")  # which took nothing away
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()

    run(tmp_path, test)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "precious"
    path.write_text("text")
    with pytest.raises(OSError, match="is no socket"):
        asyncio.run(HttpServer(ServeConfig(model="fake", http_host=f"unix:{path}")).start())
    assert path.read_text() == "text"


def test_a_reader_that_takes_nothing_is_cut_off(tmp_path):
    async def test(served):
        _, writer = await served.asked("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        key = await served.submitted()
        while served.service.in_flight:
            served.engine.push([FakeOutput(key, 0, list(b"x" * 4000))])
            await asyncio.sleep(0.01)
        assert ("abort", key) in served.engine.calls
        writer.close()

    run(tmp_path, test, stream_stall_timeout=1.0)


class Clock:
    """Both the loop and the transport of a connection, as far as it asks them: time passes when a test says so."""

    def __init__(self):
        self.timers, self.waiting, self.aborted = [], 0, False

    def call_later(self, _, callback):
        self.timers.append(callback)
        return SimpleNamespace(cancel=lambda: callback in self.timers and self.timers.remove(callback))

    def get_write_buffer_size(self):
        return self.waiting

    def abort(self):
        self.aborted = True

    def pass_time(self):
        due, self.timers = self.timers, []
        for callback in due:
            callback()


def local_connection(clock):
    config = uvicorn.Config(lambda *_: None, lifespan="off", log_config=None)
    config.load()
    made = LocalConnection(config=config, server_state=ServerState(), app_state={}, _loop=clock, stall_s=1.0)
    made.transport, made.flow = clock, FlowControl(clock)
    return made


def test_one_that_is_slow_is_not():
    clock = Clock()
    connection = local_connection(clock)
    clock.waiting = 100_000
    connection.pause_writing()
    for taken in (1, 50_000, 1):
        clock.waiting -= taken
        clock.pass_time()
        assert not clock.aborted
    connection.resume_writing()
    clock.pass_time()
    connection.pause_writing()
    assert not clock.aborted
    clock.pass_time()  # nothing was taken
    assert clock.aborted
    assert clock.timers == []
