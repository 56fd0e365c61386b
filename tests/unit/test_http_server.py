"""The HTTP server over a scripted engine: what a real one does too rarely to wait for it."""

import asyncio
import json
import socket
import struct
from types import SimpleNamespace

import pytest
from fakes import EOS, FakeEngine, FakeOutput, fake_model, finish
from http_client import JSON, call, events_of, get, post
from prometheus_client.parser import text_string_to_metric_families

from llmsrv.config import ServeConfig
from llmsrv.serve.http_api import body as body_module
from llmsrv.serve.http_api import connection
from llmsrv.serve.http_api.body import DISCARDED_BYTES, MAX_BODY_BYTES
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.service import GenerationService, State

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Served:
    """A server in this loop; calls go out from threads."""

    def __init__(self, **options):
        self.engine = FakeEngine()
        self.server = HttpServer(ServeConfig(model="fake", http_port=0, **options))

    async def __aenter__(self):
        self.port = await self.server.start()
        return self

    async def load(self):
        self.service = GenerationService(fake_model(self.engine))
        await self.server.serve(self.service)

    async def __aexit__(self, *error):
        await self.server.stop()
        await self.service.close()

    async def post(self, path, body, **more):
        return await asyncio.to_thread(post, self.port, path, body, **more)

    async def get(self, path):
        return await asyncio.to_thread(get, self.port, path)

    async def submitted(self, count=1):
        """Waits until the engine has so many requests; the key of the last."""
        while len(self.engine.submitted) < count:
            await asyncio.sleep(0.005)
        return count

    async def answered(self, path, body, *emit):
        """The answer to a body whose one request gets these outputs."""
        asked = asyncio.ensure_future(self.post(path, body))
        key = await self.submitted(len(self.engine.submitted) + 1)
        for each in emit:
            each(key)
        return await asked


def run(test, load=True, **options):
    async def body():
        async with Served(**options) as served:
            if load:
                await served.load()
            await asyncio.wait_for(test(served), 30)
            assert served.service.in_flight == 0

    asyncio.run(body())


def ends(engine, text=b"hello", **fields):
    return lambda key: engine.emit(key, text, finish=finish("length"), final=True, **fields)


# --- answers ---


def test_a_chat_completion():
    async def test(served):
        answer = await served.answered("/v1/chat/completions", CHAT, ends(served.engine))
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        made = answer.json
        assert made.pop("created") > 1.7e9
        assert made.pop("id") == answer.headers["x-request-id"]
        message = {"role": "assistant", "content": "hello", "refusal": None}
        assert made == {
            "object": "chat.completion",
            "model": "fake",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
            "usage": {
                "prompt_tokens": len("[user]hi[assistant]"),
                "completion_tokens": 5,
                "total_tokens": len("[user]hi[assistant]") + 5,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }

    run(test)


def test_a_stream_opens_with_its_first_token_and_ends_each_choice_once():
    async def test(served):
        body = {**CHAT, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
        answer = await served.answered(
            "/v1/chat/completions",
            body,
            lambda key: served.engine.push([FakeOutput(key, 1, [65])]),
            lambda key: served.engine.push([FakeOutput(key, 0, [66])]),
            lambda key: served.engine.push([FakeOutput(key, 1, [EOS], finish=finish("stop", EOS, True))]),
            lambda key: served.engine.push([FakeOutput(key, 0, [67], finish=finish("length"), final=True)]),
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["transfer-encoding"] == "chunked"
        *chunks, usage, done = events_of(answer.body)
        assert done == "[DONE]"
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
        assert all(each["usage"] is None for each in chunks)
        assert {each["object"] for each in chunks} == {"chat.completion.chunk"}
        assert len({each["id"] for each in [*chunks, usage]}) == 1
        assert chunks[0]["choices"][0]["index"] == 1
        for index, text in ((0, "BC"), (1, "A")):
            choices = [choice for each in chunks for choice in each["choices"] if choice["index"] == index]
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(each["delta"]["content"] for each in choices[:-1]) == text
            assert [each["finish_reason"] for each in choices[:-1]] == [None] * (len(choices) - 1)
            assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "stop" if index else "length")

    run(test)


def test_nothing_is_sent_before_the_first_token():
    async def test(served):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(raw({**CHAT, "stream": True}))
        key = await served.submitted()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        served.engine.emit(key, b"a")
        first = await asyncio.wait_for(reader.readuntil(b'"content":"a"'), 5)
        assert b'"role":"assistant"' in first
        writer.close()
        while served.service.in_flight:
            await asyncio.sleep(0.01)

    run(test)


def test_several_prompts_are_answered_in_their_order():
    async def test(served):
        body = {"prompt": ["a", [98, 99]], "n": 2, "echo": True, "stream": True, "return_token_ids": True}
        asked = asyncio.ensure_future(served.post("/v1/completions", body))
        await served.submitted(2)
        for key in (2, 1):
            for index in (1, 0):
                ids, ending = [48 + index], finish("length")
                served.engine.push([FakeOutput(key, index, ids, finish=ending, final=index == 0)])
        *chunks, done = events_of((await asked).body)
        assert done == "[DONE]"
        texts, prompts, ids = {}, {}, {}
        for choice in (choice for each in chunks for choice in each["choices"]):
            index = choice["index"]
            texts[index] = texts.get(index, "") + choice["text"]
            ids[index] = ids.get(index, []) + choice.get("token_ids", [])
            prompts.setdefault(index, choice.get("prompt_token_ids"))
        assert texts == {0: "a0", 1: "a1", 2: "bc0", 3: "bc1"}
        assert prompts == {0: [97], 1: [97], 2: [98, 99], 3: [98, 99]}
        assert ids == {0: [48], 1: [49], 2: [48], 3: [49]}

    run(test)


def logprob(token_id, value, *top):
    return SimpleNamespace(token_id=token_id, logprob=value, rank=1, top=list(top))


def test_logprobs_in_both_shapes():
    entries = [logprob(0xE4, -0.5, (0xE4, -0.5), (65, -float("inf"))), logprob(66, -2.0, (65, -1.0), (67, -1.5))]

    async def test(served):
        def outputs(key):
            first, second = ({"token_ids": [each.token_id], "logprobs": [each]} for each in entries)
            last = FakeOutput(key, finish=finish("length"), final=True, **second)
            served.engine.push([FakeOutput(key, **first), last])

        chat = await served.answered("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}, outputs)
        first, second = chat.json["choices"][0]["logprobs"]["content"]
        assert (first["token"], first["bytes"], first["logprob"]) == ("bytes:\\xe4", [0xE4], -0.5)
        assert first["top_logprobs"][1] == {"token": "A", "bytes": [65], "logprob": -9999.0}
        assert [each["token"] for each in second["top_logprobs"]] == ["A", "C"]
        text = await served.answered("/v1/completions", {"prompt": "x", "logprobs": 1}, outputs)
        assert text.json["choices"][0]["logprobs"] == {
            "tokens": ["bytes:\\xe4", "B"],
            "token_logprobs": [-0.5, -2.0],
            "top_logprobs": [{"bytes:\\xe4": -0.5}, {"A": -1.0, "B": -2.0}],
            "text_offset": [0, 1],
        }

    run(test)


def test_text_endpoints():
    async def test(served):
        assert (await served.post("/tokenize", {"prompt": "ab", "return_token_strs": True})).json == {
            "count": 2,
            "max_model_len": 4096,
            "tokens": [97, 98],
            "token_strs": ["a", "b"],
        }
        chat = {**CHAT, "add_generation_prompt": False}
        assert bytes((await served.post("/tokenize", chat)).json["tokens"]) == b"[user]hi"
        assert (await served.post("/detokenize", {"tokens": [97, EOS]})).json == {"prompt": "a<eos>"}
        assert (await served.post("/detokenize", {"tokens": [97, 999]})).error["param"] == "tokens[1]"
        assert (await served.post("/tokenize", {})).error["param"] == "prompt"
        assert (await served.post("/tokenize", {"messages": []})).error["param"] == "messages"

    run(test)


# --- failures ---


def test_states():
    async def test(served):
        async def statuses():
            chat = await served.post("/v1/completions", {"prompt": "x", "temperature": -1})
            return [(await served.get(path)).status for path in ("/health", "/ready")] + [chat.status]

        assert await statuses() == [200, 503, 503]
        starting = await served.get("/v1/models")
        assert (starting.status, starting.error["code"]) == (503, "starting")
        assert int(starting.headers["retry-after"]) >= 1
        await served.load()
        assert await statuses() == [200, 200, 400]
        served.engine.stuck_s = 100.0
        assert await statuses() == [503, 503, 400]
        served.engine.stuck_s = 0.0
        await served.service.drain(1.0)
        assert await statuses() == [200, 503, 503]
        served.engine.fail_all("broken")
        assert served.server.state is State.FAILED
        assert await statuses() == [503, 503, 503]

    run(test, load=False)


def test_a_refusal_names_every_field_as_the_client_wrote_it():
    async def test(served):
        body = {"messages": [{"role": "king", "content": "x"}], "temperature": -1, "n": "x", "nonsense": 1}
        answer = await served.post("/v1/chat/completions", body)
        assert answer.status == 400
        assert set(answer.error) == {"message", "type", "param", "code"}
        assert (answer.error["type"], answer.error["code"]) == ("invalid_request_error", "invalid_field")
        for field in ("messages[0].role", "temperature", "n", "nonsense"):
            assert f"{field}: " in answer.error["message"]
        answer = await served.post("/v1/completions", {"prompt": ["x", [1, 700]]})
        assert answer.error["param"] == "prompt[1][1]"
        assert served.service.outcomes["INVALID_ARGUMENT"] == 2
        answer = await served.post("/v1/completions", {"prompt": "x", "model": "other"})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (404, "model", "model_not_found")

    run(test)


def test_overload_says_when_to_come_back():
    async def test(served):
        served.engine.queued = 5000
        answer = await served.post("/v1/completions", {"prompt": "x"})
        assert (answer.status, answer.error["code"], answer.error["type"]) == (429, "queue_full", "rate_limit_error")
        assert int(answer.headers["retry-after"]) * 1000 >= int(answer.headers["retry-after-ms"]) > 0

    run(test)


def test_one_refused_prompt_takes_the_others_with_it():
    async def test(served):
        answer = await served.post("/v1/completions", {"prompt": ["a", "b", ""]})
        assert (answer.status, answer.error["param"]) == (400, "prompt[2]")
        assert [call for call, _ in served.engine.calls] == ["abort", "abort"]

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_a_status(stream):
    async def test(served):
        asked = asyncio.ensure_future(served.post("/v1/chat/completions", {**CHAT, "stream": stream}))
        await served.submitted()
        served.engine.fail_all("a broken invariant")
        answer = await asked
        assert (answer.status, answer.error["type"]) == (500, "server_error")

    run(test)


def test_a_failure_in_mid_stream_is_an_event_and_no_done():
    async def test(served):
        answer = await served.answered(
            "/v1/chat/completions",
            {**CHAT, "stream": True},
            lambda key: served.engine.emit(key, b"a"),
            lambda key: served.engine.fail_all("a broken invariant"),
        )
        assert answer.status == 200
        *_, last = events_of(answer.body)
        assert last["error"]["code"] == "internal"
        assert b"Traceback" not in answer.body

    run(test)


def test_a_bug_shows_nothing_of_itself(monkeypatch):
    async def test(served):
        monkeypatch.setattr(served.service, "submit", None)
        answer = await served.post("/v1/chat/completions", CHAT)
        assert (answer.status, answer.error["code"]) == (500, "internal")
        assert "NoneType" not in answer.error["message"]

    run(test)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/v1/completions", b'{"prompt": "x"', JSON, 400),
        ("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/completions", b"{}", {}, 415),
        ("POST", "/v1/completions", b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}', JSON, 413),
        ("GET", "/v1/completions", None, {}, 405),
        ("POST", "/v1/completions/", b"{}", JSON, 404),
        ("GET", "/v1/models/" + "x" * 5000, None, {}, 404),
        ("GET", "/v1/models/%ff%00", None, {}, 404),
        ("GET", "/../../etc/passwd", None, {}, 404),
    ],
)
def test_requests_that_are_none(method, path, body, headers, status):
    async def test(served):
        answer = await asyncio.to_thread(call, served.port, method, path, body, headers)
        assert answer.status == status
        assert set(answer.error) == {"message", "type", "param", "code"}

    run(test)


def test_bodies_that_are_too_large_are_not_kept():
    async def test(served):
        announced = {**JSON, "Content-Length": str(DISCARDED_BYTES + 1)}
        answer = await asyncio.to_thread(call, served.port, "POST", "/v1/completions", b"", announced)
        assert answer.status == 413  # at once: none of it was sent

    run(test)


def raw(body):
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_gives_its_request_up(stream, tokens, reset):
    async def test(served):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(raw({**CHAT, "stream": stream}))
        key = await served.submitted()
        served.engine.emit(key, b"a" * tokens)
        await asyncio.sleep(0.05)
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        assert ("abort", key) in served.engine.calls
        assert served.service.outcomes == {"CANCELLED": 1}

    run(test)


def test_a_client_that_leaves_in_mid_body_is_no_failure(caplog):
    async def test(served):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(raw(CHAT)[:-5])
        await asyncio.sleep(0.05)
        writer.close()
        assert (await served.get("/health")).status == 200
        await asyncio.sleep(0.05)

    run(test)
    assert not caplog.records


def test_clients_that_hang_do_not_hold_up_the_end(caplog):
    async def test(served):
        kept = []  # one that nobody holds is closed
        for data in (raw(CHAT)[:-5], raw(CHAT), b"POST /"):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(data)
            kept.append(writer)
        await served.submitted()
        await served.service.close()
        await asyncio.wait_for(served.server.stop(), 5)

    run(test)
    assert not caplog.records


def test_a_slow_reader_holds_up_nobody_and_gets_everything():
    async def test(served):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 10)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        writer.write(raw({**CHAT, "stream": True}))
        key = await served.submitted()
        letters = b"0123456789abcdef" * (1 << 12)
        for begin in range(0, len(letters), 1 << 10):
            served.engine.emit(key, letters[begin : begin + (1 << 10)])
            await asyncio.sleep(0)
        other = await served.answered("/v1/chat/completions", CHAT, ends(served.engine))
        assert other.json["choices"][0]["message"]["content"] == "hello"
        served.engine.emit(key, b"!", finish=finish("length"), final=True)
        received = b""
        while b"[DONE]" not in received:
            received += await asyncio.wait_for(reader.read(1 << 16), 10)
        pieces = [json.loads(line[6:]) for line in received.splitlines() if line.startswith(b'data: {"id"')]
        text = "".join(each["choices"][0]["delta"].get("content", "") for each in pieces)
        assert text == letters.decode() + "!"
        assert len(pieces) < len(letters) / 4
        writer.close()

    run(test)


def test_a_reader_that_stalls_for_good_is_cut_off():
    async def test(served):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 10)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        writer.write(raw({**CHAT, "stream": True}))
        key = await served.submitted()
        while served.service.in_flight:
            served.engine.emit(key, b"0123456789abcdef" * 1024)
            await asyncio.sleep(0.05)
        assert ("abort", key) in served.engine.calls
        writer.close()

    run(test, stream_stall_timeout=2.0)


def test_a_head_that_does_not_come_ends_the_connection(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.3)

    async def test(served):
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n"
        for first in (b"", request, request + b"\r\n" + request):  # at once, and after an answer
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(first)
            read = asyncio.ensure_future(reader.read())
            while not read.done():
                await asyncio.sleep(0.02)
                writer.write(b"a" if first else b"")
            assert read.exception() is not None or (b"200 OK" in read.result()) == (first.count(b"GET") == 2)
            writer.close()
        busy = asyncio.ensure_future(served.post("/v1/chat/completions", CHAT))
        key = await served.submitted()
        await asyncio.sleep(0.6)  # a request that came whole may take its time
        served.engine.emit(key, b"x", finish=finish("length"), final=True)
        assert (await busy).status == 200

    run(test)


def test_a_body_that_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr(body_module, "BODY_S", 0.2)

    async def test(served):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(raw(CHAT)[:-5])
        assert (await reader.readline()).split()[1] == b"408"
        writer.close()

    run(test)


# --- metrics ---


def test_metrics_are_read_by_prometheus_and_count_the_truth():
    async def test(served):
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x", "max_tokens": 7})):
            await served.answered(path, body, ends(served.engine))
        served.engine.queued = 5000
        await served.post("/v1/completions", {"prompt": "x"})
        answer = await served.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {each.name: each for each in text_string_to_metric_families(answer.body.decode())}
        assert all(each.documentation and each.samples for each in families.values())
        (refused,) = families.pop("llmsrv:call_errors").samples
        expected = {"protocol": "http", "code": "RESOURCE_EXHAUSTED", "reason": "QUEUE_FULL"}
        assert (refused.labels, refused.value) == (expected, 1)
        assert all(sample.labels["model_name"] == "fake" for each in families.values() for sample in each.samples)

        def values(name, label):
            return {each.labels[label]: each.value for each in families[name].samples if label in each.labels}

        success = values("llmsrv:request_success", "finished_reason")
        assert success == {"stop": 0, "length": 2, "time_limit": 0, "abort": 0}
        assert values("llmsrv:requests", "outcome") == {"length": 2, "RESOURCE_EXHAUSTED": 1}
        assert values("llmsrv:kv_blocks", "state") == {"free": 61, "held": 0, "cached": 3}
        for name, count, total in (
            ("time_to_first_token_seconds", 2, None),
            ("inter_token_latency_seconds", 8, None),
            ("e2e_request_latency_seconds", 2, None),
            ("request_queue_time_seconds", 2, 0.5),
            ("request_inference_time_seconds", 2, 3.0),
            ("request_generation_tokens", 2, 10),
            ("request_params_max_tokens", 1, 7),
        ):
            samples = {each.name.rpartition("_")[2]: each.value for each in families[f"llmsrv:{name}"].samples}
            assert samples["count"] == count, name
            assert total is None or samples["sum"] == total, name
            buckets = [each.value for each in families[f"llmsrv:{name}"].samples if each.name.endswith("_bucket")]
            assert buckets == sorted(buckets)
            assert buckets[-1] == count

    run(test)
