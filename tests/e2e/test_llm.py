"""The engine in this process: LLM, AsyncLLM, and the same tokens as over gRPC."""

import asyncio
import subprocess
import sys
import time

import pytest
from daemons import request

from llmsrv import LLM, AsyncLLM, SamplingParams
from llmsrv.errors import Code, ServiceError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
LIMITS = {"max_model_len": 512, "kv_cache_memory": "64MiB", "max_num_seqs": 4, "max_num_batched_tokens": 64}


def wait_until_idle(llm):
    """The figures are those of the last step: they may be one step late."""
    end = time.monotonic() + 2.0
    while True:
        stats = llm.model.engine.stats()
        if stats.running == stats.waiting == stats.kv_blocks_held == 0:
            return
        assert time.monotonic() < end, f"{stats.running} running, {stats.kv_blocks_held} blocks held"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(str(smollm2_path), quiet=True, **LIMITS) as llm:
        yield llm
        wait_until_idle(llm)


def test_generate_is_what_grpc_gives(llm, daemon):
    prompts = [f"The number {i} is" for i in range(12)]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.finish_reason for output in outputs] == ["length"] * 12
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = daemon.inference.Generate(request(prompt, output={"token_ids": True}))
        assert list(output.token_ids) == list(answer.completions[0].token_ids)
        assert output.text == answer.completions[0].text
        assert output.usage.completion_tokens == 8


def test_a_prompt_is_text_or_ids(llm):
    ids = llm.tokenizer.encode("Once upon a time")
    (by_text,) = llm.generate("Once upon a time", GREEDY)
    (by_ids,) = llm.generate(ids, GREEDY)
    both = llm.generate([ids, "Once upon a time"], [GREEDY, GREEDY])
    assert by_text.text == by_ids.text == both[0].text == both[1].text


def test_chat(llm):
    params = SamplingParams(temperature=0.0, max_tokens=30, logprobs=True, top_logprobs=2)
    (output,) = llm.chat(QUESTION, params)
    assert "Tokyo" in output.text
    assert output.finish_reason == "stop"
    assert len(output.logprobs) == len(output.token_ids)
    assert len(output.logprobs[0].top) == 2
    assert [each.text for each in llm.chat([QUESTION, QUESTION], params)] == [output.text] * 2


def test_stream(llm):
    whole = llm.generate("Once upon a time", GREEDY)[0].text
    deltas = list(llm.stream("Once upon a time", GREEDY))
    assert "".join(delta.text for delta in deltas) == whole
    assert deltas[-1].finish.reason.value == "length"
    assert "Tokyo" in "".join(
        delta.text for delta in llm.stream(QUESTION, SamplingParams(temperature=0, max_tokens=20))
    )


def test_leaving_a_stream_ends_the_request(llm):
    stream = llm.stream("Once upon a time", SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    stream.close()
    assert llm.generate("x", GREEDY)[0].text
    wait_until_idle(llm)


def test_inside_a_running_loop(llm):
    async def body():
        return llm.generate("Once upon a time", GREEDY)[0].text

    assert asyncio.run(body()) == llm.generate("Once upon a time", GREEDY)[0].text


def test_more_prompts_than_the_queue_holds(smollm2_path):
    limits = {**LIMITS, "max_queued_requests": 2, "max_queued_tokens": 16}
    with LLM(str(smollm2_path), quiet=True, **limits) as llm:
        outputs = llm.generate([f"Number {i}:" for i in range(20)], GREEDY, progress=True)
    assert [output.usage.completion_tokens for output in outputs] == [8] * 20


def test_errors_name_the_field(llm):
    with pytest.raises(ServiceError, match=r"sampling\.top_p") as caught:
        llm.generate(["fine", "also fine"], [GREEDY, SamplingParams(top_p=2.0)])
    assert caught.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(ServiceError, match="out of range"):
        llm.generate("x", SamplingParams(seed=-1))
    with pytest.raises(ValueError, match="2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    assert llm.generate("still alive", GREEDY)[0].text


def test_options_are_checked(smollm2_path):
    with pytest.raises(TypeError, match="gpu_layers"):
        LLM(str(smollm2_path), gpu_layers=3)
    with pytest.raises(ValueError, match="no such file"):
        LLM("/nowhere.gguf")


def test_closing_twice_and_using_afterwards(smollm2_path):
    llm = LLM(str(smollm2_path), quiet=True, **LIMITS)
    llm.close()
    llm.close()


def test_a_script_may_end_without_closing(smollm2_path):
    script = (
        "from llmsrv import LLM, SamplingParams\n"
        f"llm = LLM({str(smollm2_path)!r}, quiet=True, max_model_len=64, kv_cache_memory='16MiB')\n"
        "print(llm.generate('The', SamplingParams(temperature=0, max_tokens=2))[0].finish_reason)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "length\n", "")


def test_async(smollm2_path, llm):
    async def body():
        async with await AsyncLLM.load(str(smollm2_path), quiet=True, **LIMITS) as other:
            outputs = await asyncio.gather(*(other.generate(f"The number {i} is", GREEDY) for i in range(6)))
            pieces = [delta.text async for delta in other.stream("Once upon a time", GREEDY)]
            chat = await other.chat(QUESTION, SamplingParams(temperature=0.0, max_tokens=20))
            task = asyncio.ensure_future(other.generate("x", SamplingParams(max_tokens=400, ignore_eos=True)))
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await other.generate("y", GREEDY)
            return [output.text for output in outputs], "".join(pieces), chat.text

    texts, streamed, answer = asyncio.run(body())
    assert texts == [output.text for output in llm.generate([f"The number {i} is" for i in range(6)], GREEDY)]
    assert streamed == llm.generate("Once upon a time", GREEDY)[0].text
    assert "Tokyo" in answer
