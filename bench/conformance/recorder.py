"""A proxy in front of a daemon that keeps every answer, so that what another program's client got can be looked at."""

import contextlib
import threading
import time

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

KEPT = ("content-type", "accept")


class Answer:
    """What one request asked for and got. `whole` is set when the daemon has ended it."""

    def __init__(self, path, asked, status, content_type):
        self.path = path
        self.asked = asked
        self.status = status
        self.content_type = content_type
        self.body = b""
        self.whole = False


class Recorder:
    """Listens from the construction to stop(), in a thread of its own. Use it as a context."""

    def __init__(self, target):
        self.answers = []
        self._client = httpx2.AsyncClient(base_url=f"http://{target}", timeout=None)
        routes = [Route("/{path:path}", self._pass_on, methods=["GET", "POST"])]
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), port=0, log_level="warning", access_log=False)
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    async def _pass_on(self, request: Request):
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        asked = await request.body()
        sent = self._client.build_request(request.method, request.url.path, content=asked, headers=headers)
        got = await self._client.send(sent, stream=True)
        answer = Answer(request.url.path, asked, got.status_code, got.headers.get("content-type", ""))
        self.answers.append(answer)

        async def pieces():
            async with contextlib.aclosing(got.aiter_raw()) as raw:
                async for piece in raw:
                    answer.body += piece
                    yield piece
            answer.whole = True

        return StreamingResponse(pieces(), got.status_code, media_type=answer.content_type)

    def stop(self):
        self._server.should_exit = True
        self._thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()
