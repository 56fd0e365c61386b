"""Requests over OpenAI's HTTP API, on sockets: a client library would cost more than the server that is measured.

An event does not say how many tokens it has: each counts as one, and the last gets what the usage at the end has more.
A server that sends no usage is counted in events.
"""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from llmsrv.load.figures import Sample
from llmsrv.load.jobs import Job, Prompts

ERROR_BYTES_MAX = 64 << 10
Prompt = Sequence[int] | str
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class BadAnswer(Exception):
    """What came is not an answer over HTTP."""


class OpenAIClient:
    """Sends jobs to one server. A connection is used again by later requests, unless `reuse` is off.

    `url`: with the version, for example http://127.0.0.1:8000/v1. `chat`: chat completions, of words. `words`:
    completions of words instead of token ids. `fields`: what else stands in every body.
    """

    def __init__(
        self,
        url: str,
        prompts: Prompts,
        *,
        chat: bool = False,
        words: bool = False,
        api_key: str = "",
        tls: ssl.SSLContext | None = None,
        timeout_s: float | None = None,
        reuse: bool = True,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000/v1")
        self._host, self._path = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = f"Host: {parts.netloc}\r\nAccept: */*\r\n"
        if api_key:
            self._headers += f"Authorization: Bearer {api_key}\r\n"
        self._prompts, self._chat, self._words = prompts, chat, words or chat
        self._timeout_s, self._reuse, self._fields = timeout_s, reuse, fields or {}
        self._idle: list[Connection] = []

    async def models(self) -> list[str]:
        """Names of what is served. Raises ValueError with the server's words."""
        sample = Sample(0.0, 0.0)
        found: list[bytes] = []
        await self._exchange("GET", "/models", b"", sample, found)
        if sample.error:
            raise ValueError(f"GET {self._path}/models: {sample.error} {sample.message}".strip())
        try:
            return [str(each["id"]) for each in json.loads(b"".join(found))["data"]]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"GET {self._path}/models: the answer is not a list of models") from None

    async def run(self, index: int, job: Job, planned: float) -> Sample:
        """The job, with the prompt of its index. Failures are in the sample."""
        prompt: Prompt = self._prompts.words(index, job) if self._words else self._prompts.ids(index, job)
        sample = await self.send(prompt, job.output_tokens, planned)
        sample.input_tokens = sample.input_tokens or job.input_tokens
        return sample

    async def send(self, prompt: Prompt, output_tokens: int, planned: float) -> Sample:
        """One request with this prompt."""
        asked = {"messages": [{"role": "user", "content": prompt}]} if self._chat else {"prompt": prompt}
        fields = {"max_tokens": output_tokens, "temperature": 0, "stream": True}
        usage = {"stream_options": {"include_usage": True}}
        body = json.dumps({**asked, **fields, **usage, **self._fields}).encode()
        sample = Sample(planned, time.perf_counter(), input_tokens=0 if isinstance(prompt, str) else len(prompt))
        path = "/chat/completions" if self._chat else "/completions"
        await self._exchange("POST", path, body, sample)
        sample.ended = time.perf_counter()
        return sample

    async def close(self) -> None:
        """Closes its connections."""
        for _, writer in self._idle:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, method: str, path: str, body: bytes, sample: Sample, whole: list[bytes] | None = None
    ) -> None:
        """One request and its answer. What fails is put into the sample."""
        try:
            await asyncio.wait_for(self._exchange_once(method, path, body, sample, whole), self._timeout_s)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError, ValueError, BadAnswer) as error:
            sample.error, sample.message = type(error).__name__, str(error)

    async def _exchange_once(
        self, method: str, path: str, body: bytes, sample: Sample, whole: list[bytes] | None
    ) -> None:
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        keeps = False
        try:
            length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
            head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}{length}\r\n"
            writer.write(head.encode() + body)
            keeps = await self._read_answer(reader, sample, whole) and self._reuse
        finally:
            if keeps:
                self._idle.append((reader, writer))
            else:
                writer.close()

    async def _connect(self) -> Connection:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)

    async def _read_answer(self, reader: asyncio.StreamReader, sample: Sample, whole: list[bytes] | None) -> bool:
        """Whether the connection can be used again."""
        status, headers = await _read_head(reader)
        body = _body(reader, headers)
        if status != "200":
            text = b""
            async for part in body:
                text += part if len(text) < ERROR_BYTES_MAX else b""
            sample.error, sample.message = status, _error_message(text)
        elif whole is not None:
            whole += [part async for part in body]
        else:
            await _read_events(body, sample)
        return "close" not in headers.get("connection", "").lower() and _is_framed(headers)


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, Mapping[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise BadAnswer(f"this is no answer over HTTP/1.1: {first[:100]!r}")
    pairs = (line.partition(":") for line in lines)
    return words[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


def _is_framed(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Its parts as they come."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := _chunk_size(await reader.readline()):
            yield (await reader.readexactly(size + 2))[:size]
        while (await reader.readline()).strip():
            pass
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part


def _chunk_size(line: bytes) -> int:
    if not line.endswith(b"\n"):
        raise BadAnswer("the answer was cut off")
    return int(line.partition(b";")[0], 16)


async def _read_events(body: AsyncIterator[bytes], sample: Sample) -> None:
    rest, completion_tokens = b"", 0
    async for part in body:
        *lines, rest = (rest + part).split(b"\n")
        now, tokens = time.perf_counter(), 0
        for line in lines:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            tokens += _has_token(event)
            if error := event.get("error"):
                sample.error, sample.message = "error event", str(error)
            if usage := event.get("usage"):
                completion_tokens = usage.get("completion_tokens") or 0
                sample.input_tokens = usage.get("prompt_tokens") or sample.input_tokens
        if tokens:
            sample.arrivals.append((now, tokens))
    if completion_tokens and sample.arrivals:
        last, counted = sample.arrivals[-1]
        sample.arrivals[-1] = (last, max(counted + completion_tokens - sample.tokens, 1))


def _has_token(event: Mapping[str, Any]) -> bool:
    """Text is one; so is an event without text that neither begins nor ends anything."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            return True
        if choice.get("finish_reason") is None and "role" not in delta:
            return True
    return False


def _error_message(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return text.decode("utf-8", "replace")[:200]
