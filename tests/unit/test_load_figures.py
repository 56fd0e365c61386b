"""What `llmsrv bench` sends, and what it makes of the answers."""

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.load.figures import Sample, goodput, parse_limits, percentiles, summary
from llmsrv.load.jobs import Job, Prompts, poisson_jobs, trace_jobs
from llmsrv.load.plot import plot

MOONCAKE = [
    {"timestamp": 27000, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 28500, "input_length": 33, "output_length": 0, "hash_ids": [0, 1, 7]},
    {"timestamp": 30000, "input_length": 900, "output_length": 900, "hash_ids": [*range(10, 67)]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def sample(sent, first, last, tokens, *, ended=None, error=""):
    arrivals = [] if error else [(first, 1), (last, tokens - 1)]
    return Sample(sent, sent, arrivals, ended=ended or last, input_tokens=10, error=error)


def test_figures_are_as_they_are_defined():
    samples = [sample(0.0, 0.1, 1.1, 11), sample(1.0, 1.3, 2.3, 21, ended=2.5), sample(1.0, 0, 1.5, 0, error="503")]
    figures = summary(samples)
    assert figures["requests"] == 3
    assert figures["ok"] == 2
    assert figures["errors"] == {"503": 1}
    assert figures["seconds"] == pytest.approx(2.3)
    assert figures["output_tokens_per_s"] == pytest.approx(32 / 2.3, abs=0.1)
    assert figures["ttft_ms"]["mean"] == pytest.approx(200)
    assert figures["ttft_ms"]["max"] == pytest.approx(300)
    assert figures["tpot_ms"]["p50"] == pytest.approx((100 + 50) / 2)
    assert figures["itl_ms"]["p50"] == pytest.approx(1000)
    assert figures["e2e_ms"]["mean"] == pytest.approx((1100 + 1500) / 2)
    kept = goodput(samples, {"ttft": 200, "tpot": 100.5}, 2.0)
    assert (kept["requests"], kept["share"], kept["requests_per_s"]) == (1, round(1 / 3, 4), 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_inside_the_values(values):
    found = percentiles(values)
    ordered = [found[name] for name in ("p50", "p90", "p95", "p99", "max")]
    assert ordered == sorted(ordered)
    assert min(values) - 0.001 <= found["p50"]
    assert found["max"] == round(max(values), 3)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft:0", "ttft:-1", "ttft:x", "itl:5", "ttft:1,ttft:2", "ttft:inf", "ttft:nan"]
)
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="ttft:200,tpot:50"):
        parse_limits(text)
    assert parse_limits("ttft:200, e2e:1.5") == {"ttft": 200.0, "e2e": 1.5}


def test_a_trace_in_either_format(tmp_path):
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text("\n".join(map(json.dumps, MOONCAKE)) + "\n")
    jobs = trace_jobs(mooncake, time_scale=0.5, tokens_max=1000)
    assert [(job.at_s, job.input_tokens, job.output_tokens) for job in jobs] == [(0.0, 40, 5), (0.75, 33, 1)]
    prompts = Prompts(0, 1000)
    first, second = (prompts.ids(i, job) for i, job in enumerate(jobs))
    assert (len(first), len(second)) == (40, 33)
    assert first[:32] == second[:32], "equal hash_ids, equal tokens"
    assert first[32:33] != second[32:33]
    azure = tmp_path / "azure.csv"
    azure.write_text(AZURE)
    found = trace_jobs(azure)
    assert [(job.input_tokens, job.output_tokens) for job in found] == [(374, 44), (396, 109)]
    assert found[1].at_s == pytest.approx(4.314579)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"timestamp": 1, "input_length": "x", "output_length": 1}', "a,b\n1,2\n"]
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ValueError, match="trace"):
        trace_jobs(path)


def test_poisson_arrivals_have_the_rate_and_repeat():
    jobs = poisson_jobs(Job(0.0, 8, 4), 4000, 50.0, seed=1)
    assert jobs[-1].at_s == pytest.approx(4000 / 50, rel=0.1)
    assert jobs == poisson_jobs(Job(0.0, 8, 4), 4000, 50.0, seed=1)
    assert jobs != poisson_jobs(Job(0.0, 8, 4), 4000, 50.0, seed=2)


def test_prompts_repeat_and_differ():
    prompts, job = Prompts("seed", 500, 100), Job(0.0, 20, 1)
    assert prompts.ids(3, job) == Prompts("seed", 500, 100).ids(3, job)
    assert prompts.ids(3, job) != prompts.ids(-3, job)
    assert all(100 <= each < 500 for each in prompts.ids(3, job))
    assert len(prompts.words(3, job).split()) == 20


@pytest.mark.parametrize(
    "samples",
    [
        [sample(0.0, 0.1, 1.1, 11), sample(1.0, 1.3, 2.3, 21)],
        [sample(0.0, 0.1, 0.1, 1)],
        [sample(0.0, 0, 1.0, 0, error="503")],
    ],
)
def test_the_picture_is_well_formed(samples):
    picture = ElementTree.fromstring(plot(samples, 'a <title> & "more"', {"ttft": 200.0}))
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert 'a <title> & "more"' in texts
    for name in ("Output tokens per second", "Time to first token", "Time per output token", "End to end"):
        assert name in texts
    assert ("limit 200" in texts) == (not samples[0].error)
