"""`/stats` and the page over a scripted engine: before there is a model, and after it failed."""

import asyncio
import subprocess
import sys
from dataclasses import replace

from fakes import FakeEngine, fake_model, finish
from http_client import get, post

from llmsrv.config import ServeConfig
from llmsrv.recent import SHOWN_TENANTS_MAX, TENANTS_MAX
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.service import GenerationService


def run(test, **overrides):
    async def body():
        engine, server = FakeEngine(), HttpServer(ServeConfig(model="fake", http_port=0))
        port = await server.start()
        model = fake_model(engine, **overrides)

        async def load():
            service = GenerationService(model)
            await server.serve(service)
            return service

        service = await asyncio.wait_for(test(port, engine, load), 60)
        await server.stop()
        await service.close()

    asyncio.run(body())


async def read(port, path="/stats"):
    return await asyncio.to_thread(get, port, path)


async def complete(port, engine, number, **fields):
    asked = asyncio.ensure_future(asyncio.to_thread(post, port, "/v1/completions", {"prompt": "hi", **fields}))
    while len(engine.submitted) < number:
        await asyncio.sleep(0.002)
    engine.emit(number, b"hello", finish=finish("length"), final=True)
    assert (await asked).status == 200


def test_before_the_model_is_there_the_page_is():
    async def test(port, engine, load):
        assert (await read(port, "/")).status == 200
        answer = await read(port)
        assert answer.status == 200
        assert answer.json["state"] == "starting"
        assert answer.json["models"] == []
        return await load()

    run(test)


def test_an_engine_that_failed_is_told_with_its_reason():
    async def test(port, engine, load):
        service = await load()
        engine.failure = "out of luck"
        found = (await read(port)).json
        assert found["state"] == "failed"
        assert found["models"][0]["failure"] == "out of luck"
        return service

    run(test)


def test_one_sample_has_everything_and_is_bounded():
    async def test(port, engine, load):
        service = await load()
        for number in range(1, TENANTS_MAX + 8):
            await complete(port, engine, number, cache_salt=f"s{number}")
        answer = await read(port)
        (model,) = answer.json["models"]
        assert model["sequences"] == {"swapped": 1}
        assert model["blocks"]["held"] == 0
        assert model["blocks"]["swapped"] == 4
        assert model["outcomes"] == {"length": TENANTS_MAX + 7}
        assert model["latencies"]["first_token_s"]["count"] == TENANTS_MAX + 7
        assert sum(each["generation_tokens"] for each in model["history"]["moments"]) == 5 * (TENANTS_MAX + 7)
        assert len(model["tenants"]) == SHOWN_TENANTS_MAX + 1
        assert model["tenants"][-1]["name"] is None
        assert len(answer.body) < 64 << 10
        return service

    run(test)


def test_tenants_with_a_weight_have_their_name():
    config = replace(fake_model(None).config, tenant_weights={"search": 2.0})

    async def test(port, engine, load):
        service = await load()
        for number, fields in enumerate(({"cache_salt": "search"}, {"cache_salt": "other"}, {}), 1):
            await complete(port, engine, number, **fields)
        (model,) = (await read(port)).json["models"]
        names = {each["name"] for each in model["tenants"]}
        assert {"search", ""} < names
        assert len(names) == 3
        assert "other" not in names
        return service

    run(test, config=config)


def test_a_daemon_imports_nothing_of_the_commands_that_watch_it():
    code = (
        "import sys; import llmsrv.serve.daemon, llmsrv.serve.grpc_server, llmsrv.serve.http_api.server; "
        "print(sorted({'rich', 'typer', 'llmsrv.top', 'llmsrv.load', 'llmsrv.cli_watch'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
