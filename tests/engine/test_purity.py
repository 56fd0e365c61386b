"""Promise P3: a request's ids and log-probabilities are bit-equal whatever else runs and however it is computed."""

import functools

import harness
import pytest
from harness import GEMMA3, prompt, request, run, tiny_weights

SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 11},
    {"temperature": 1.2, "min_p": 0.02, "seed": 13, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
]


def probe(id="probe", sampling=0, length=37, max_tokens=30):
    return request(
        id,
        prompt(100 + sampling, length),
        sampling=SAMPLING[sampling],
        stopping={"max_tokens": max_tokens, "ignore_eos": True},
        output={"logprobs": True, "top_logprobs": 3, "prompt_logprobs": True},
    )


def others(count):
    return [
        request(f"other-{i}", prompt(i, 5 + 9 * i), sampling={"seed": i}, stopping={"max_tokens": 4 + 5 * i})
        for i in range(count)
    ]


def essence(result):
    assert result.finals == 1
    assert result.error is None
    return result.token_ids, result.logprobs, result.prompt_logprobs, result.reasons


@pytest.fixture(scope="module", params=["bfloat16", "float32", "int8", "bfloat16, Gemma 3"])
def case(request):
    """The type of the cache, and whether the model has all that Gemma 3 adds."""
    return request.param


@pytest.fixture(scope="module")
def kv_cache_dtype(case):
    return case.split(",")[0]


@pytest.fixture(scope="module")
def weights(case, kv_cache_dtype):
    dtype = "float32" if kv_cache_dtype == "float32" else "bfloat16"
    return tiny_weights(dtype, **(GEMMA3 if "Gemma 3" in case else {}))


@pytest.fixture(scope="module")
def engine(kv_cache_dtype):
    return functools.partial(harness.engine, kv_cache_dtype=kv_cache_dtype)


@pytest.fixture(scope="module")
def pool_of(kv_cache_dtype):
    return functools.partial(harness.pool_of, kv_cache_dtype=kv_cache_dtype)


@pytest.fixture(scope="module")
def alone(engine, weights):
    """Each probe by itself, its prompt in one piece."""
    results = []
    for sampling in range(len(SAMPLING)):
        with engine(weights, threads=1) as running:
            results.append(essence(run(running, [probe(sampling=sampling)])[0]))
    return results


@pytest.mark.parametrize("sampling", range(len(SAMPLING)))
def test_among_seven_others(engine, weights, alone, sampling):
    with engine(weights) as running:
        results = run(running, [*others(3), probe(sampling=sampling), *others(7)[3:]])
    assert essence(results[3]) == alone[sampling]


@pytest.mark.parametrize("chunk", [1, 7, 16, 256])
def test_any_chunk_size(engine, weights, alone, chunk):
    with engine(weights, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 8)) as running:
        results = run(running, [probe(str(i), sampling=i) for i in range(len(SAMPLING))])
    assert [essence(result) for result in results] == alone


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("chunk", [8, 16, 64])
@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_tiny_pool_with_preemption(engine, pool_of, weights, alone, mode, block_size, chunk, prefix_cache):
    """Swapped or computed again, in any chunks, with and without a prefix cache: bit-equal."""
    # Each probe needs 67 tokens; the pool holds one whole sequence and a bit of another.
    pool = pool_of(weights, blocks=-(-96 // block_size) + 2, block_size=block_size)
    with engine(
        weights, max_num_batched_tokens=chunk, preemption_mode=mode, prefix_cache=prefix_cache, **pool
    ) as running:
        results = run(running, [probe(str(i), sampling=i) for i in range(len(SAMPLING))])
        stats = running.stats()
    assert stats.preemptions > 0
    assert (stats.swap_outs > 0) == (mode != "recompute")
    assert (stats.recomputed_tokens > 0) or mode != "recompute"
    assert stats.swap_outs == stats.swap_ins
    assert stats.swap_blocks_held == 0
    assert sum(result.preemptions for result in results) == stats.preemptions
    assert [essence(result) for result in results] == alone


def test_a_full_swap_pool_means_recomputation(engine, pool_of, weights, alone):
    pool = pool_of(weights, blocks=14, block_size=8)
    block_bytes = pool["kv_cache_memory"] // 14
    with engine(weights, preemption_mode="swap", swap_space=block_bytes * 6, **pool) as running:
        results = run(running, [probe(str(i), sampling=i) for i in range(len(SAMPLING))])
        stats = running.stats()
    assert stats.swap_blocks_total == 6
    assert stats.swap_outs < stats.preemptions
    assert stats.recomputed_tokens > 0
    assert [essence(result) for result in results] == alone


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(engine, weights, alone, threads):
    with engine(weights, threads=threads) as running:
        assert essence(run(running, [probe(sampling=2)])[0]) == alone[2]


def test_choices_are_what_they_are_alone(engine, weights):
    """Choice i of n = 3 is the same with other requests around it, and the choices differ."""
    three = request(
        "three", prompt(1, 20), sampling={"n": 3, "seed": 5}, stopping={"max_tokens": 12, "ignore_eos": True}
    )
    with engine(weights) as running:
        quiet = run(running, [three])[0]
        busy = run(running, [*others(4), three])[4]
    assert quiet.token_ids == busy.token_ids
    assert len({tuple(tokens) for tokens in quiet.token_ids.values()}) == 3
    assert quiet.usage == (20, 36)


def test_same_seed_same_tokens_and_no_seed_other_tokens(engine, weights):
    def draw(id, **sampling):
        return request(id, prompt(1, 20), sampling=sampling, stopping={"max_tokens": 20, "ignore_eos": True})

    with engine(weights) as running:
        a, b, c, d = run(running, [draw("a", seed=1), draw("b", seed=1), draw("c"), draw("d")])
    assert a.token_ids == b.token_ids
    assert c.token_ids != d.token_ids


def test_prefix_cache_cold_warm_half_warm_and_off(engine, weights, alone):
    """Whatever of the prompt others computed before, the request is the same bit for bit."""
    half = [*prompt(102, 37)[:17], 5, 6, 7]
    for options in ({}, {"prefix_cache": False}, {"max_num_batched_tokens": 8}, {"block_size": 8}):
        with engine(weights, **options) as running:
            before = request("half", half, stopping={"max_tokens": 2, "ignore_eos": True})
            run(running, [before])
            for name in ("half warm", "warm", "warm again"):
                # Without log-probabilities of the prompt, which need all of its rows.
                asking = probe(name, sampling=2)
                asking.output.prompt_logprobs = False
                result = run(running, [asking])[0]
                assert result.token_ids == alone[2][0], (options, name)
                assert result.logprobs == alone[2][1], (options, name)
            assert (running.stats().prefix_hits > 0) == options.get("prefix_cache", True)


def test_choices_share_the_prompt_and_are_what_they_are_without_sharing(engine, weights):
    def three(**fields):
        made = request(
            "n", prompt(1, 33), sampling={"n": 3, "seed": 5}, stopping={"max_tokens": 12, "ignore_eos": True}
        )
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    with engine(weights) as running:
        shared = run(running, [three()])[0]
        assert running.stats().prefix_hits == 2 * 32  # the second and the third choice start after two full blocks
        apart = run(running, [three(bypass_prefix_cache=True)])[0]
        assert running.stats().prefix_hits == 2 * 32
    assert shared.token_ids == apart.token_ids
    assert len({tuple(tokens) for tokens in shared.token_ids.values()}) == 3


def test_colliding_hashes_change_nothing(engine, pool_of, weights):
    """With an 8-bit hash most prompts collide: a collision is a miss, never another's text."""
    requests = [
        request(
            str(i), prompt(i % 40, 20 + i % 30), sampling={"seed": i}, stopping={"max_tokens": 3, "ignore_eos": True}
        )
        for i in range(300)
    ]
    results = []
    for options in ({"prefix_cache": False}, {"prefix_hash_bits": 8}):
        with engine(weights, **options, **pool_of(weights, blocks=120)) as running:
            results.append([result.token_ids for result in run(running, requests)])
            hits = running.stats().prefix_hits
    assert hits > 0
    assert results[0] == results[1]
