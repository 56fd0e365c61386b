"""Two models behind one entry, over scripted engines: both transports ask the one that is named."""

import asyncio

import grpc
import grpc.aio
import metrics_text
import pytest
from fakes import EOS, ByteTokenizer, FakeEngine, fake_model, finish
from grpc_served import Served, details, rest_of, until
from http_client import events_of, get, post

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.service import GenerationService, State
from llmsrv.v1 import admin_pb2, inference_pb2, model_pb2, types_pb2

NAMES = ("small", "org/big")


class Reversed(ByteTokenizer):
    """Another model's tokenizer: its ids are bytes from above."""

    def encode(self, text, add_special_tokens=True):
        return [255 - each for each in text.encode()]

    def token_bytes(self, token_id):
        return b"<end>" if token_id == EOS else bytes([255 - token_id])


class TwoModels(Served):
    """Both listeners over both models."""

    async def __aenter__(self):
        self.other = FakeEngine()
        await super().__aenter__()
        await self.service.close()
        models = [
            fake_model(self.engine, name=NAMES[0], config=self.config),
            fake_model(self.other, name=NAMES[1], config=self.config, tokenizer=Reversed(), max_model_len=99),
        ]
        self.services = [GenerationService(each, served=NAMES) for each in models]
        self.http = HttpServer(self.config)
        self.http_port = await self.http.start()
        for listener in (self.server, self.http):
            await listener.serve(*self.services)
        self.entry = self.server.service
        return self

    async def __aexit__(self, *error):
        await self.http.stop()
        await super().__aexit__(*error)
        for each in self.services:
            await each.close()

    def engine_of(self, model):
        return self.other if model == NAMES[1] else self.engine

    async def answer_of(self, model, asked):
        """The answer to a call whose one request the model's engine gets; its tokens are two bytes."""
        engine = self.engine_of(model)
        before = len(engine.submitted)
        call = asyncio.ensure_future(asked)
        await until(lambda: len(engine.submitted) > before or call.done())
        engine.emit(before + 1, b"ab", finish=finish("length"), final=True)
        return await call

    async def post(self, path, body):
        return await asyncio.to_thread(post, self.http_port, path, body)

    async def get(self, path):
        return await asyncio.to_thread(get, self.http_port, path)


def run(test, **options):
    async def body():
        async with TwoModels(http_port=0, **options) as served:
            await asyncio.wait_for(test(served), 60)

    asyncio.run(body())


def message(model, **fields):
    return inference_pb2.GenerateRequest(model=model, text="hi", **fields)


@pytest.mark.parametrize(("model", "text"), [("small", "ab"), ("org/big", "\ufffd\ufffd"), ("", "ab")])
def test_grpc_asks_the_model_that_is_named(model, text):
    async def test(served):
        name = model or NAMES[0]
        answer = await served.answer_of(name, served.inference.Generate(message(model)))
        assert (answer.model, answer.completions[0].text) == (name, text)

        async def streamed():
            request = inference_pb2.GenerateStreamRequest(request=message(model))
            return [each async for each in served.inference.GenerateStream(request)]

        parts = await served.answer_of(name, streamed())
        assert parts[0].start.model == name
        assert "".join(delta.text for part in parts for delta in part.deltas) == text
        asked = inference_pb2.TokenizeRequest(model=model, text="a", pieces=True)
        tokenized = await served.inference.Tokenize(asked)
        assert list(tokenized.token_ids) == [255 - 97 if name == NAMES[1] else 97]
        assert tokenized.pieces[0].token_bytes == b"a"
        back = inference_pb2.DetokenizeRequest(model=model, token_ids=tokenized.token_ids)
        assert (await served.inference.Detokenize(back)).text == "a"

    run(test)


def test_logprobs_have_the_bytes_of_the_models_own_tokens():
    async def test(served):
        asked = message(NAMES[1], output=types_pb2.OutputOptions(prompt_token_ids=True, token_ids=True))
        answer = await served.answer_of(NAMES[1], served.inference.Generate(asked))
        assert list(answer.prompt.token_ids) == [255 - each for each in b"hi"]

    run(test)


def test_a_batch_and_a_session_ask_both():
    async def test(served):
        async def batch():
            asked = inference_pb2.BatchGenerateRequest(requests=[message(NAMES[0]), message(NAMES[1])])
            return [each async for each in served.inference.BatchGenerate(asked)]

        call = asyncio.ensure_future(batch())
        for engine in (served.engine, served.other):
            await until(lambda engine=engine: engine.submitted)
            engine.emit(1, b"ab", finish=finish("length"), final=True)
        assert {each.response.model for each in await call} == set(NAMES)

        session = served.inference.GenerateSession()
        for name in (*NAMES, "nobody"):
            start = inference_pb2.GenerateStreamRequest(request=message(name, request_id=f"of {name}"))
            await session.write(inference_pb2.GenerateSessionRequest(start=start))
        await session.done_writing()
        for engine in (served.engine, served.other):
            await until(lambda engine=engine: len(engine.submitted) == 2)
            engine.emit(2, b"ab", finish=finish("length"), final=True)
        items = [item async for each in session for item in each.items]
        assert {each.response.start.model for each in items if each.response.HasField("start")} == set(NAMES)
        (refused,) = [each for each in items if each.HasField("error")]
        assert (refused.request_id, refused.error.code) == ("of nobody", Code.NOT_FOUND.value)

    run(test)


@pytest.mark.parametrize("model", ["small", "org/big", ""])
def test_http_asks_the_model_that_is_named(model):
    async def test(served):
        name = model or NAMES[0]
        body = {"model": model} if model else {}
        chat = {**body, "messages": [{"role": "user", "content": "hi"}]}
        answer = await served.answer_of(name, served.post("/v1/chat/completions", chat))
        assert (answer.status, answer.json["model"]) == (200, name)
        answer = await served.answer_of(name, served.post("/v1/completions", {**body, "prompt": "hi", "stream": True}))
        *chunks, done = events_of(answer.body)
        assert done == "[DONE]"
        assert {each["model"] for each in chunks} == {name}
        echoed = await served.answer_of(name, served.post("/v1/completions", {**body, "prompt": [97], "echo": True}))
        assert echoed.json["choices"][0]["text"][0] == ("a" if name == NAMES[0] else "\ufffd")
        tokenized = (await served.post("/tokenize", {**body, "prompt": "a", "return_token_strs": True})).json
        assert tokenized["tokens"] == [97 if name == NAMES[0] else 255 - 97]
        assert tokenized["token_strs"] == ["a"]
        assert tokenized["max_model_len"] == (4096 if name == NAMES[0] else 99)
        assert (await served.post("/detokenize", {**body, "tokens": tokenized["tokens"]})).json == {"prompt": "a"}

    run(test)


def test_an_unknown_model_is_refused_everywhere_and_counted_once_each():
    says = "model 'nobody' is not served here; served: 'small', 'org/big'"

    async def test(served):
        calls = [
            served.inference.Generate(message("nobody")),
            served.inference.Tokenize(inference_pb2.TokenizeRequest(model="nobody", text="a")),
            served.inference.Detokenize(inference_pb2.DetokenizeRequest(model="nobody", token_ids=[1])),
            served.models.GetModel(model_pb2.GetModelRequest(name="nobody")),
            served.admin.GetStats(admin_pb2.GetStatsRequest(model="nobody")),
            served.admin.GetServerInfo(admin_pb2.GetServerInfoRequest(model="nobody")),
            served.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest(model="nobody")),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert (error.value.code(), error.value.details()) == (grpc.StatusCode.NOT_FOUND, says)
            assert details(error.value)["ResourceInfo"].resource_name == "nobody"
        posts = {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
            "/v1/completions": {"prompt": "hi"},
            "/tokenize": {"prompt": "hi"},
            "/detokenize": {"tokens": [1]},
        }
        answers = [await served.post(path, {**body, "model": "nobody"}) for path, body in posts.items()]
        answers.append(await served.get("/v1/models/nobody"))
        for answer in answers:
            assert (answer.status, answer.error["message"], answer.error["code"]) == (404, says, "model_not_found")
        assert [each.outcomes for each in served.services] == [{"NOT_FOUND": 3}, {}]
        assert not served.engine.submitted
        assert not served.other.submitted

    run(test)


def test_what_is_refused_before_the_engine_counts_as_the_models():
    async def test(served):
        with pytest.raises(grpc.aio.AioRpcError):
            await served.inference.Generate(message(NAMES[1], structured_output={"regex": "a"}))
        body = {"model": NAMES[1], "prompt": "x", "stream_options": {"include_usage": True}}
        assert (await served.post("/v1/completions", body)).status == 400
        assert [each.outcomes for each in served.services] == [{}, {"UNIMPLEMENTED": 1, "INVALID_ARGUMENT": 1}]

    run(test)


def test_models_are_listed_in_their_order():
    async def test(served):
        listed = (await served.models.ListModels(model_pb2.ListModelsRequest())).models
        assert [(each.name, each.max_context_tokens) for each in listed] == [("small", 4096), ("org/big", 99)]
        data = (await served.get("/v1/models")).json["data"]
        assert [(each["id"], each["max_model_len"]) for each in data] == [("small", 4096), ("org/big", 99)]
        assert (await served.get("/v1/models/org/big")).json == data[1]
        found = await served.models.GetModel(model_pb2.GetModelRequest(name="org/big"))
        assert found.model == listed[1]
        assert (await served.models.GetModel(model_pb2.GetModelRequest())).model == listed[0]

    run(test)


def test_each_model_has_statistics_of_its_own():
    async def test(served):
        await served.answer_of(NAMES[1], served.inference.Generate(message(NAMES[1])))
        for name, outcomes in (("", {}), (NAMES[0], {}), (NAMES[1], {"length": 1})):
            found = await served.admin.GetStats(admin_pb2.GetStatsRequest(model=name))
            assert dict(found.stats.requests) == outcomes
            watched = await served.admin.WatchStats(admin_pb2.WatchStatsRequest(model=name)).read()
            assert dict(watched.stats.requests) == outcomes
        stats = (await served.get("/stats")).json
        assert [(each["name"], each["outcomes"]) for each in stats["models"]] == [
            ("small", {}),
            ("org/big", {"length": 1}),
        ]
        families = metrics_text.read((await served.get("/metrics")).body.decode())
        assert families.pop("llmsrv:call_errors_total") == ("counter", {})  # of calls, whose model may be unknown
        for name, (_, samples) in families.items():
            models = {dict(labels)["model_name"] for _, labels in samples}
            assert models == ({NAMES[1]} if name == "llmsrv:requests_total" else set(NAMES)), name

    run(test)


def test_a_tenant_is_called_the_same_by_both():
    async def test(served):
        for name in NAMES:
            await served.answer_of(name, served.inference.Generate(message(name, cache_salt="secret")))
        models = (await served.get("/stats")).json["models"]
        (one,), (other,) = [[each["name"] for each in model["tenants"]] for model in models]
        assert one == other != "secret"

    run(test)


def test_admin_calls_reach_both():
    async def test(served):
        calls = [
            asyncio.ensure_future(served.inference.Generate(message(name, request_id=f"of {name}"))) for name in NAMES
        ]
        await until(lambda: served.engine.submitted and served.other.submitted)
        cleared = await served.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
        assert cleared.blocks_freed == 6
        cleared = await served.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest(model=NAMES[1]))
        assert cleared.blocks_freed == 3
        ids = admin_pb2.AbortRequest.Ids(request_ids=["of org/big", "gone"])
        aborted = await served.admin.Abort(admin_pb2.AbortRequest(ids=ids))
        assert list(aborted.aborted_request_ids) == ["of org/big"]
        aborted = await served.admin.Abort(admin_pb2.AbortRequest(all=admin_pb2.AbortRequest.All()))
        assert list(aborted.aborted_request_ids) == ["of small"]
        await asyncio.gather(*calls)

    run(test)


def test_a_drain_waits_for_both_and_resume_opens_both():
    async def test(served):
        calls = [asyncio.ensure_future(served.inference.Generate(message(name))) for name in NAMES]
        await until(lambda: served.engine.submitted and served.other.submitted)
        drain = served.admin.Drain(admin_pb2.DrainRequest())
        first = await drain.read()
        assert (first.state, first.in_flight) == (admin_pb2.SERVER_STATE_DRAINING, 2)
        for name in NAMES:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await served.inference.Generate(message(name))
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        served.engine.emit(1, b"a", finish=finish("length"), final=True)
        await calls[0]
        assert served.entry.state is State.DRAINING
        assert (await served.get("/ready")).status == 503
        served.other.emit(1, b"a", finish=finish("length"), final=True)
        await calls[1]
        states = [each.state for each in await rest_of(drain)]
        assert states[-1] == admin_pb2.SERVER_STATE_DRAINED
        assert (await served.admin.Resume(admin_pb2.ResumeRequest())).state == admin_pb2.SERVER_STATE_SERVING
        assert (await served.get("/ready")).status == 200
        await served.answer_of(NAMES[1], served.inference.Generate(message(NAMES[1])))

    run(test)


def test_limits_of_a_key_count_over_all_models(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "alice"\nkey = "sk-0123456789abcdef"\nmax_concurrent_streams = 1\n')
    who = {"metadata": (("authorization", "Bearer sk-0123456789abcdef"),)}

    async def test(served):
        first = asyncio.ensure_future(served.inference.Generate(message(NAMES[0]), **who))
        await until(lambda: served.engine.submitted)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await served.inference.Generate(message(NAMES[1]), **who)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        served.engine.emit(1, b"a", finish=finish("length"), final=True)
        await first
        await served.answer_of(NAMES[1], served.inference.Generate(message(NAMES[1]), **who))

    run(test, api_key_file=str(keys))


def test_one_that_failed_is_told_and_the_other_goes_on():
    async def test(served):
        served.other.fail_all("broken")
        assert served.entry.state is State.FAILED
        assert (await served.get("/health")).status == 503
        stats = (await served.get("/stats")).json
        assert (stats["state"], [each["state"] for each in stats["models"]]) == ("failed", ["serving", "failed"])
        found = await served.admin.GetStats(admin_pb2.GetStatsRequest(model=NAMES[0]))
        assert found.stats.state == admin_pb2.SERVER_STATE_SERVING
        answer = await served.answer_of(NAMES[0], served.inference.Generate(message(NAMES[0])))
        assert answer.model == NAMES[0]
        served.entry.announce_drain()
        with pytest.raises(ServiceError, match="broken"):
            served.entry.resume()
        assert served.services[0].state is State.SERVING

    run(test)
