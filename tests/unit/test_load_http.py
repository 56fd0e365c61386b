"""The HTTP client of `llmsrv bench` against servers that answer in their own ways."""

import asyncio
import json

import pytest

from llmsrv.load.http_client import OpenAIClient
from llmsrv.load.jobs import Job, Prompts

JOB = Job(0.0, 6, 3)
USAGE = {"prompt_tokens": 6, "completion_tokens": 3}


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(words, finish=None):
    return event(choices=[{"index": 0, "text": words, "finish_reason": finish}])


def chat(**delta):
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])


TEXT_EVENTS = [text("a"), text(""), text("c"), text("", "length"), event(choices=[], usage=USAGE), b"data: [DONE]\n\n"]
CHAT_EVENTS = [chat(role="assistant", content=""), chat(content="a"), chat(content="b"), chat(content="c")]


def answer(head, parts):
    return [f"HTTP/1.1 {head}\r\n\r\n".encode(), *parts]


def chunked(parts):
    framed = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    return answer("200 OK\r\nTransfer-Encoding: chunked", [*framed, b"0\r\n\r\n"])


def whole(parts, status="200 OK"):
    body = b"".join(parts)
    return answer(f"{status}\r\nContent-Length: {len(body)}", [body])


async def ask(*answers, requests=1, dies=False, **options):
    """Samples of so many requests, and what the server read. Each connection gets one of the answers, again and again
    unless the server `dies` of the first."""
    seen, turns = [], iter(answers)

    async def serve(reader, writer):
        parts = next(turns)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                seen.append((head.decode(), await reader.readexactly(length)))
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if dies or (b"Content-Length" not in parts[0] and b"chunked" not in parts[0]):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = OpenAIClient(f"http://127.0.0.1:{port}/v1", Prompts(0, 100), **options)
    samples = [await client.run(i, JOB, 0.0) for i in range(requests)]
    await client.close()
    server.close()
    return samples, seen


@pytest.mark.parametrize("framed", [chunked, whole, lambda parts: answer("200 OK", parts)])
def test_tokens_are_counted_however_the_answer_is_framed(framed):
    (sample,), seen = asyncio.run(ask(framed(TEXT_EVENTS)))
    assert (sample.error, sample.tokens, sample.input_tokens) == ("", 3, 6)
    assert sample.ended >= sample.arrivals[-1][0] >= sample.sent
    body = json.loads(seen[0][1])
    assert len(body["prompt"]) == 6
    assert (body["max_tokens"], body["stream"], body["temperature"]) == (3, True, 0)


def test_a_chat_begins_without_a_token_and_may_tell_no_usage():
    (sample,), seen = asyncio.run(ask(chunked(CHAT_EVENTS), chat=True, api_key="secret", fields={"model": "m"}))
    assert (sample.error, sample.tokens) == ("", 3)
    assert seen[0][0].startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in seen[0][0]
    body = json.loads(seen[0][1])
    assert body["model"] == "m"
    assert len(body["messages"][0]["content"].split()) == 6


def test_events_may_be_cut_anywhere():
    stream = b"".join(TEXT_EVENTS)
    (sample,), _ = asyncio.run(ask(chunked([stream[i : i + 7] for i in range(0, len(stream), 7)])))
    assert (sample.error, sample.tokens) == ("", 3)


def test_a_connection_is_used_again_unless_it_is_told_not_to():
    samples, seen = asyncio.run(ask(chunked(TEXT_EVENTS), requests=3))
    assert [each.error for each in samples] == ["", "", ""]
    assert len(seen) == 3
    samples, _ = asyncio.run(ask(*[chunked(TEXT_EVENTS)] * 3, requests=3, reuse=False))
    assert [each.tokens for each in samples] == [3, 3, 3]


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        (whole([b'{"error": {"message": "the queue is full"}}'], "429 Too Many"), "429", "the queue is full"),
        (whole([b"<html>bad gateway</html>"], "502 Bad Gateway"), "502", "bad gateway"),
        (whole([text("a"), event(error={"message": "engine"})]), "error event", "engine"),
        (chunked(TEXT_EVENTS)[:3], "BadAnswer", "cut off"),
        (whole([b"0123456789"])[:1], "IncompleteReadError", ""),
        ([b"SSH-2.0-OpenSSH_9\r\n\r\n"], "BadAnswer", "no answer over HTTP"),
        (whole([b"data: {nonsense\n\n"]), "JSONDecodeError", ""),
    ],
)
def test_what_fails_is_told(parts, error, message):
    (sample,), _ = asyncio.run(ask(parts, dies=True))
    assert sample.error == error
    assert message in sample.message
    assert not sample.is_good


def test_nobody_listens():
    async def run():
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await OpenAIClient(f"http://127.0.0.1:{port}/v1", Prompts(0, 100)).run(0, JOB, 0.0)

    assert asyncio.run(run()).error == "ConnectionRefusedError"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host/v1", "http:///v1"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="is not an address"):
        OpenAIClient(url, Prompts(0, 100))
