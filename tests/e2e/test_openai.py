"""OpenAI's own Python client against a real daemon, and what it knows of the API."""

import asyncio
import typing

import openai
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from llmsrv.serve.http_api.fields import NOT_IMPLEMENTED, ChatFields, CompletionFields

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]


@pytest.fixture
def client(daemon):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{daemon.http_port}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client, **fields):
    return client.chat.completions.create(
        **{"model": "smol", "messages": QUESTION, "temperature": 0, "max_tokens": 12, **fields}
    )


def complete(client, **fields):
    return client.completions.create(
        **{"model": "smol", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, **fields}
    )


def test_models(client):
    (listed,) = client.models.list().data
    assert listed.id == "smol"
    assert client.models.retrieve("smol") == listed
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/one")


def test_chat_and_completion(client):
    answer = chat(client, max_tokens=None, max_completion_tokens=30)
    assert "Tokyo" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id == answer.id
    text = complete(client)
    assert (text.choices[0].finish_reason, text.usage.completion_tokens) == ("length", 12)
    assert complete(client, echo=True).choices[0].text == "Once upon a time" + text.choices[0].text
    assert complete(client, max_tokens=openai.omit).usage.completion_tokens == 16


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_is_the_answer_in_pieces(client, n):
    fields = {"n": n, "seed": 5, "temperature": 1.0, "logprobs": True, "top_logprobs": 2}
    whole = chat(client, **fields)
    chunks = list(chat(client, **fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [each.usage for each in chunks[:-1]] == [None] * (len(chunks) - 1)
    for choice in whole.choices:
        mine = [each.choices[0] for each in chunks[:-1] if each.choices[0].index == choice.index]
        assert (mine[0].delta.role, mine[0].delta.content) == ("assistant", "")
        assert "".join(each.delta.content or "" for each in mine) == choice.message.content
        assert [each.finish_reason for each in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        entries = [entry for each in mine if each.logprobs for entry in each.logprobs.content]
        assert [each.model_dump() for each in entries] == [each.model_dump() for each in choice.logprobs.content]


def bytes_of(token):
    """A token as it is shown: part of a character is shown as its bytes."""
    return bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()


def test_a_streamed_completion_is_the_answer_in_pieces(client):
    fields = {"prompt": ["Once upon", [1, 2, 3]], "n": 2, "seed": 3, "temperature": 1.0, "logprobs": 2, "echo": True}
    whole = complete(client, **fields)
    chunks = list(complete(client, **fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == whole.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )
    assert len(whole.choices) == 4
    for choice in whole.choices:
        mine = [each.choices[0] for each in chunks[:-1] if each.choices[0].index == choice.index]
        assert "".join(each.text for each in mine) == choice.text
        assert mine[-1].finish_reason == choice.finish_reason
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            pieces = [entry for each in mine if each.logprobs for entry in getattr(each.logprobs, name)]
            assert pieces == getattr(choice.logprobs, name), name
        assert choice.logprobs.token_logprobs[0] is None
        assert b"".join(map(bytes_of, choice.logprobs.tokens)).decode("utf-8", "replace") == choice.text


def test_logprobs(client):
    content = chat(client, logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert len(content) == 4
    for each in content:
        assert len(each.top_logprobs) == 3
        assert each.top_logprobs[0].token == each.token  # greedy
        assert bytes(each.bytes).decode() == each.token


def test_stop_and_the_extensions(client):
    whole = complete(client, max_tokens=24).choices[0].text
    cut = complete(client, max_tokens=24, stop=[whole[20:26]])
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (whole[: whole.index(whole[20:26])], "stop")
    extra = {"min_tokens": 5, "ignore_eos": True, "top_k": 1, "return_token_ids": True, "prompt_logprobs": 2}
    answer = chat(client, temperature=1.0, extra_body=extra)
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens == 12
    assert len(answer.prompt_token_ids) == len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    assert answer.prompt_logprobs[0] is None
    for token_id, entries in zip(answer.prompt_token_ids[1:], answer.prompt_logprobs[1:], strict=True):
        assert str(token_id) in entries
        assert 2 <= len(entries) <= 3
    token = answer.choices[0].token_ids[3]
    stopped = chat(client, temperature=1.0, extra_body={**extra, "stop_token_ids": [token], "min_tokens": 0})
    assert (stopped.choices[0].finish_reason, token in stopped.choices[0].token_ids) == ("stop", False)


def test_a_message_can_be_continued(client):
    messages = [*QUESTION, {"role": "assistant", "content": "The capital of Japan is the city of"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    answer = chat(client, messages=messages, extra_body=extra)
    assert answer.choices[0].message.content.startswith(" Tokyo")


def test_failures_are_typed(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, temperature=-1, top_p=3, extra_body={"nonsense": 1})
    assert (caught.value.param, caught.value.code) == ("nonsense", "invalid_field")
    assert all(f"{name}: " in caught.value.message for name in ("nonsense", "temperature", "top_p"))
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="other")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        complete(client, suffix="x")
    with pytest.raises(openai.BadRequestError):
        complete(client, prompt=[1] * 5000)


def test_a_full_queue_is_a_rate_limit(tiny_daemon):
    async def test():
        url = f"http://127.0.0.1:{tiny_daemon.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            def ask(**options):
                return client.with_options(**options).completions.create(
                    model="", prompt="x", max_tokens=30, extra_body={"ignore_eos": True}
                )

            answers = await asyncio.gather(*(ask() for _ in range(16)), return_exceptions=True)
            refused = [each for each in answers if isinstance(each, Exception)]
            assert refused
            assert {type(each) for each in refused} == {openai.RateLimitError}
            assert all(int(each.response.headers["retry-after"]) >= 1 for each in refused)
            # With its usual patience the client gets its answers.
            patient = await asyncio.gather(*(ask(max_retries=50) for _ in range(10)))
            assert all(each.usage.completion_tokens == 30 for each in patient)

    asyncio.run(test())


@pytest.mark.parametrize("how", ["close the stream", "cancel the stream", "cancel the call"])
def test_a_client_that_leaves_frees_its_blocks(daemon, how):
    before = daemon.stats().requests.get("CANCELLED", 0)
    fields = {"model": "smol", "messages": QUESTION, "max_tokens": 900, "extra_body": {"ignore_eos": True}}

    async def test():
        url = f"http://127.0.0.1:{daemon.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            if how == "cancel the call":
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.chat.completions.create(**fields), 1.0)
                return
            stream = await client.chat.completions.create(**fields, stream=True)
            async for _ in stream:
                break
            if how == "close the stream":
                await stream.close()

    asyncio.run(test())
    daemon.wait_until_idle()
    assert daemon.stats().requests["CANCELLED"] == before + 1


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (ChatFields, chat_params.CompletionCreateParamsBase),
        (CompletionFields, completion_params.CompletionCreateParamsBase),
    ],
)
def test_every_field_that_the_client_knows_is_declared_or_refused_by_name(kind, params):
    known = set(typing.get_type_hints(params)) | {"stream"}
    assert known <= set(kind.__struct_fields__) | NOT_IMPLEMENTED[kind]
