"""One body or one batch with very many prompts: few are in flight, others get in, and nothing is lost or done twice."""

import asyncio
import json

import pytest
from fakes import FakeEngine, FakeOutput, fake_model, finish
from http_client import JSON, call, events_of

from llmsrv.config import ServeConfig
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.serve.in_flight import in_flight_max
from llmsrv.service import GenerationService

WIDTH = 4  # half of the queue, below twice as many as run
OPTIONS = {"max_num_seqs": 4, "max_queued_requests": 2 * WIDTH}


class WaitingEngine(FakeEngine):
    """Nothing runs: what is live waits."""

    most_live = 0

    @property
    def queued(self):
        self.most_live = max(self.most_live, len(self.live))
        return len(self.live)

    @queued.setter
    def queued(self, _):
        pass


class Served:
    """An HTTP server in this loop with a short queue."""

    def __init__(self):
        self.engine = WaitingEngine()
        config = ServeConfig(model="fake", http_port=0, max_model_len=4096, **OPTIONS)
        self.server = HttpServer(config)
        self.config = config

    async def __aenter__(self):
        self.port = await self.server.start()
        self.service = GenerationService(fake_model(self.engine, config=self.config))
        await self.server.serve(self.service)
        return self

    async def __aexit__(self, *error):
        await self.server.stop()
        await self.service.close()

    def post(self, body):
        return asyncio.ensure_future(asyncio.to_thread(call, self.port, "POST", "/v1/completions", body, JSON))

    async def live(self, count):
        while len(self.engine.live) != count:
            await asyncio.sleep(0.002)

    def answer(self, key):
        """One request ends; its answer repeats its prompt."""
        ids = list(self.engine.submitted[key].prompt)
        self.engine.push([FakeOutput(key, 0, ids, finish=finish("length"), final=True)])

    async def answer_all(self, until):
        """Ends the youngest first, so that no order is the order of the prompts."""
        while not until.done():
            for key in sorted(self.engine.live, reverse=True):
                self.answer(key)
            await asyncio.sleep(0.002)


def run(test):
    async def body():
        async with Served() as served:
            await asyncio.wait_for(test(served), 60)
            assert served.service.in_flight == 0
            assert served.engine.live == {}

    asyncio.run(body())


def prompts(count):
    return [f"prompt {number}" for number in range(count)]


def texts(answer, stream):
    found = {}
    for each in events_of(answer.body)[:-1] if stream else [answer.json]:
        for choice in each["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("stream", [False, True])
def test_all_are_answered_and_few_are_in_flight(stream):
    async def test(served):
        asked = served.post({"prompt": prompts(40), "stream": stream})
        await served.live(WIDTH)
        other = served.post({"prompt": "somebody else's"})  # gets in
        await served.live(WIDTH + 1)
        served.answer(WIDTH + 1)
        assert (await other).status == 200
        await served.answer_all(asked)
        answer = await asked
        assert answer.status == 200
        assert texts(answer, stream) == prompts(40)
        assert len(served.engine.submitted) == 41
        assert served.engine.most_live <= WIDTH + 1
        names = [each.id for each in served.engine.submitted.values() if not bytes(each.prompt).startswith(b"some")]
        assert len(set(names)) == 40

    run(test)


def test_two_bodies_leave_room_for_a_third():
    async def test(served):
        first = served.post({"prompt": prompts(40)})
        await served.live(4)
        second = served.post({"prompt": prompts(40)})
        await served.live(4 + 2)  # half of what the first has left
        third = served.post({"prompt": prompts(40)})
        await served.live(4 + 2 + 1)
        single = served.post({"prompt": "x"})
        await served.live(8)
        refused = await served.post({"prompt": "one too many"})
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        everything = asyncio.gather(first, second, third, single)
        await served.answer_all(everything)
        assert [each.status for each in await everything] == [200] * 4

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_that_was_begun_waits_for_a_place(stream):
    async def test(served):
        asked = served.post({"prompt": prompts(WIDTH + 1), "stream": stream})
        await served.live(WIDTH)
        others = [served.post({"prompt": "x"}) for _ in range(WIDTH + 1)]
        while not any(each.done() for each in others):  # one of them found no place
            await asyncio.sleep(0.002)
        served.answer(1)
        more = served.post({"prompt": "x"})  # takes the place that became free, or the last prompt does
        await served.answer_all(asyncio.gather(asked, more))
        answer = await asked
        assert answer.status == 200
        assert texts(answer, stream) == prompts(WIDTH + 1)
        assert sorted(each.status for each in await asyncio.gather(*others)) == [200] * WIDTH + [429]

    run(test)


def test_the_last_prompts_mistake_is_found_before_anything_is_begun():
    async def test(served):
        answer = await served.post({"prompt": [*prompts(20), ""]})
        assert (answer.status, answer.error["param"]) == (400, "prompt[20]")
        assert served.engine.submitted == {}

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_one_ends_all(stream):
    async def test(served):
        asked = served.post({"prompt": prompts(40), "stream": stream})
        await served.live(WIDTH)
        served.answer(2)
        while len(served.engine.submitted) == WIDTH:
            await asyncio.sleep(0.002)
        served.engine.fail_all("broken")
        answer = await asked
        if stream:
            assert "error" in events_of(answer.body)[-1]
        else:
            assert answer.status == 500
        assert len(served.engine.submitted) == WIDTH + 1

    run(test)


def test_a_client_that_leaves_begins_no_other():
    async def test(served):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        data = json.dumps({"prompt": prompts(40)}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await served.live(WIDTH)
        writer.close()
        await served.live(0)
        await asyncio.sleep(0.05)
        assert len(served.engine.submitted) == WIDTH

    run(test)


@pytest.mark.parametrize(
    ("running", "queue", "waiting", "requests", "width"),
    [
        (64, 1024, 0, 1024, 128),  # twice as many as run
        (64, 1024, 0, 3, 3),
        (64, 100, 0, 1024, 50),  # half of the places
        (64, 100, 90, 1024, 5),
        (64, 100, 100, 1024, 1),  # which is refused then
        (1, 1, 0, 1024, 1),
    ],
)
def test_how_many_are_in_flight(running, queue, waiting, requests, width):
    async def test():
        engine = FakeEngine()
        engine.queued = waiting
        config = ServeConfig(model="fake", max_num_seqs=running, max_queued_requests=queue)
        service = GenerationService(fake_model(engine, config=config))
        assert in_flight_max([service], requests) == width
        await service.close()

    asyncio.run(test())
