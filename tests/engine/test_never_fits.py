"""A prompt that the model could read, and that the whole KV cache could not hold."""

import pytest
from harness import engine, pool_of, prompt, request, run, tiny_weights

from llmsrv import _core

CODES = _core.status_codes()
MODEL_LEN = 256  # of the tiny model
POOL_BLOCKS = 10
BLOCK_SIZE = 8
POOL_TOKENS = POOL_BLOCKS * BLOCK_SIZE


@pytest.fixture(scope="module")
def running():
    weights = tiny_weights()
    with engine(weights, max_model_len=POOL_TOKENS, **pool_of(weights, POOL_BLOCKS, BLOCK_SIZE)) as made:
        yield made


def refusal(running, made):
    with pytest.raises(_core.StatusError) as caught:
        running.submit(made)
    return caught.value


@pytest.mark.parametrize("length", [POOL_TOKENS, POOL_TOKENS + 1, POOL_TOKENS + 20, MODEL_LEN - 1])
@pytest.mark.parametrize("max_tokens", [None, 1, 500])
def test_it_is_told_how_many_blocks_there_would_have_to_be(running, length, max_tokens):
    made = request("long", prompt(1, length), stopping={"max_tokens": max_tokens})
    assert running.validate(made) == []  # it breaks no rule of the API
    error = refusal(running, made)
    assert error.code == CODES["FAILED_PRECONDITION"]
    assert error.violations == []
    assert error.metadata == {"needed_blocks": str(length // BLOCK_SIZE + 1), "total_blocks": str(POOL_BLOCKS)}
    assert error.metadata["needed_blocks"] in error.message


def test_what_just_fits_is_generated(running):
    (result,) = run(running, [request("fits", prompt(1, POOL_TOKENS - 1), stopping={"ignore_eos": True})])
    assert (result.error, result.usage) == (None, (POOL_TOKENS - 1, 1))


@pytest.mark.parametrize("length", [MODEL_LEN, MODEL_LEN + 1, 10_000])
def test_what_the_model_itself_could_not_read_is_an_invalid_argument(running, length):
    error = refusal(running, request("longer", prompt(1, length)))
    assert error.code == CODES["INVALID_ARGUMENT"]
    assert [field for field, _ in error.violations] == ["input"]
    assert error.metadata == {}


def test_other_violations_of_the_same_request_come_first(running):
    made = request("long", prompt(1, POOL_TOKENS + 5), sampling={"top_p": 2.0}, stopping={"max_tokens": 0})
    error = refusal(running, made)
    assert error.code == CODES["INVALID_ARGUMENT"]
    assert {field for field, _ in error.violations} == {"sampling.top_p", "stopping.max_tokens"}


def test_a_short_max_model_len_alone_is_an_invalid_argument():
    """The pool would hold the prompt: the limit is the server's own."""
    with engine(tiny_weights(), max_model_len=40) as roomy:
        error = refusal(roomy, request("long", prompt(1, 60)))
        assert error.code == CODES["INVALID_ARGUMENT"]
        assert [field for field, _ in error.violations] == ["input"]


def test_it_counts_as_what_it_is():
    weights = tiny_weights()
    with engine(weights, max_model_len=POOL_TOKENS, **pool_of(weights, POOL_BLOCKS, BLOCK_SIZE)) as made:
        refusal(made, request("long", prompt(1, POOL_TOKENS)))
        assert made.stats().requests == {"FAILED_PRECONDITION": 1}
