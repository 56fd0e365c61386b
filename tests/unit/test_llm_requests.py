"""The LLM class over a scripted engine: what it asks for, and in which order."""

import contextlib

import pytest
from fakes import FakeEngine, fake_model, finish

from llmsrv.config import EngineOptions
from llmsrv.llm import LLM
from llmsrv.params import SamplingParams


class EchoEngine(FakeEngine):
    """Answers each request with its own prompt, at once."""

    def submit(self, request, *, deadline_s=None):
        key = super().submit(request, deadline_s=deadline_s)
        self.emit(key, bytes(request.prompt), finish=finish("length"), final=True)
        return key


@contextlib.contextmanager
def scripted(**options):
    engine = EchoEngine()
    llm = LLM.__new__(LLM)
    llm._begin(fake_model(engine, config=EngineOptions(model="fake", max_model_len=4096, **options)))
    with llm:
        yield llm, engine


def order(engine):
    return [bytes(each.prompt).decode() for each in engine.submitted.values()]


def test_what_is_urgent_does_not_wait_behind_what_is_not():
    with scripted(max_num_seqs=1, max_queued_requests=1) as (llm, engine):
        outputs = llm.generate(["a", "b", "c", "d"], priority=[3, -1, 3, 0])
        assert [each.text for each in outputs] == ["a", "b", "c", "d"]
        assert order(engine) == ["b", "d", "a", "c"]
        assert [each.priority for each in engine.submitted.values()] == [-1, 0, 3, 3]


def test_one_value_serves_all_prompts():
    with scripted() as (llm, engine):
        llm.generate(["a", "b"], SamplingParams(time_limit_s=5.0), priority=7)
        llm.chat([{"role": "user", "content": "c"}], priority=8)
        assert [each.text for each in llm.stream("d", priority=9)] == ["d"]
        assert [each.priority for each in engine.submitted.values()] == [7, 7, 8, 9]
        assert [each.params.time_limit_s for each in engine.submitted.values()] == [5.0, 5.0, None, None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"priority": [1]}, "2 prompts need as many priorities, not 1"),
     ({"params": [SamplingParams()] * 3}, "2 prompts need as many SamplingParams, not 3")],
)  # fmt: skip
def test_one_value_each_or_one_for_all(fields, message):
    with scripted() as (llm, engine), pytest.raises(ValueError, match=message):
        llm.generate(["a", "b"], **fields)
    assert engine.submitted == {}
