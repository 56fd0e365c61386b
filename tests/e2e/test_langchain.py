"""LangChain's ChatOpenAI, as its users write it."""

import langchain_openai
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

QUESTION = "What is the capital of Japan?"


@pytest.fixture
def model(daemon):
    def made(**options):
        return langchain_openai.ChatOpenAI(
            model="smol",
            base_url=f"http://127.0.0.1:{daemon.http_port}/v1",
            api_key="none",
            **{"temperature": 0, "max_tokens": 12, "max_retries": 0, **options},
        )

    return made


def test_an_answer_and_its_usage(model):
    answer = model().invoke(QUESTION)
    assert "Tokyo" in answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    usage = answer.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_conversation(model):
    messages = [
        SystemMessage("You answer briefly."),
        HumanMessage(QUESTION),
        AIMessage("Tokyo."),
        HumanMessage("Sure?"),
    ]
    assert model().invoke(messages).content


def test_a_stream_with_usage(model):
    chunks = list(model(stream_usage=True).stream(QUESTION))
    whole = sum(chunks[1:], chunks[0])
    assert whole.content == model().invoke(QUESTION).content
    assert len([each for each in chunks if each.content]) > 1
    assert whole.usage_metadata["output_tokens"] == model().invoke(QUESTION).usage_metadata["output_tokens"]


def test_log_probabilities_stop_and_choices(model):
    bound = model().bind(logprobs=True, top_logprobs=2)
    answer = bound.invoke(QUESTION)
    entries = answer.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in entries) == answer.content
    assert {len(each["top_logprobs"]) for each in entries} == {2}
    assert model().invoke(QUESTION, stop=["Tokyo"]).content == answer.content.partition("Tokyo")[0]
    (generations,) = model(n=2, temperature=1, seed=1).generate([[HumanMessage(QUESTION)]]).generations
    assert len(generations) == 2


def test_a_batch_and_our_extensions(model):
    answers = model(extra_body={"top_k": 1, "ignore_eos": True}).batch([QUESTION, "Hello", "1 2 3"])
    assert [each.usage_metadata["output_tokens"] for each in answers] == [12, 12, 12]


def test_failures_are_typed(model):
    with pytest.raises(openai.BadRequestError) as caught:
        model(top_p=7).invoke(QUESTION)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.NotFoundError):
        model().bind(model="other").invoke(QUESTION)
    with pytest.raises(openai.BadRequestError) as caught:
        model().bind_tools([{"type": "function", "function": {"name": "f", "parameters": {}}}]).invoke(QUESTION)
    assert "tools: is not implemented" in caught.value.message


def test_a_reader_who_leaves_frees_the_blocks(daemon, model):
    before = daemon.stats().requests.get("CANCELLED", 0)
    stream = model(max_tokens=900, extra_body={"ignore_eos": True}).stream(QUESTION)
    next(stream)
    stream.close()
    daemon.wait_until_idle(10.0)
    assert daemon.stats().requests["CANCELLED"] == before + 1
