"""The page and what it shows. Pictures of it in a browser, and its figures there: bench/dashboard/shoot.py."""

import base64
import hashlib
import re

import pytest
from daemons import request
from http_client import get, post

EXTERNAL = re.compile(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]", re.IGNORECASE)
LENGTHS = ("first_token_s", "between_tokens_s", "request_s")


def stats(daemon):
    answer = get(daemon.http_port, "/stats")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json


def policy(answer):
    parts = (each.split() for each in answer.headers["content-security-policy"].split(";"))
    return {name: values for name, *values in parts}


def test_the_page_needs_nothing_from_elsewhere(daemon):
    answer = get(daemon.http_port, "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not EXTERNAL.search(answer.body)
    assert not re.search(rb"<(?:link|script|img|iframe)[^>]*\s(?:src|href)=\"(?!data:)", answer.body)
    assert b" style=" not in answer.body, "the content policy would not allow it"
    assert b" onclick=" not in answer.body


def test_only_its_own_script_and_style_may_run(daemon):
    answer = get(daemon.http_port, "/")
    allowed = policy(answer)
    assert allowed["default-src"] == ["'none'"]
    assert allowed["connect-src"] == ["'self'"]
    assert allowed["frame-ancestors"] == ["'none'"]
    for tag, name in ((b"script", "script-src"), (b"style", "style-src")):
        (inline,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), answer.body, re.DOTALL)
        assert allowed[name] == [f"'sha256-{base64.b64encode(hashlib.sha256(inline).digest()).decode()}'"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_figures_are_those_of_get_stats(daemon):
    for i in range(3):
        daemon.inference.Generate(request(f"Number {i}", max_tokens=6))
    daemon.wait_until_idle()
    found, sample = stats(daemon), daemon.stats()
    assert found["state"] == "serving"
    (model,) = found["models"]
    assert model["name"] == "smol"
    blocks = model["blocks"]
    assert blocks["free"] + blocks["cached"] + blocks["held"] == blocks["total"]
    same = ((blocks["held"], sample.kv_blocks_used), (blocks["cached"], sample.kv_blocks_cached))
    same += ((blocks["total"], sample.kv_blocks_total), (blocks["swap_total"], sample.swap_blocks_total))
    same += ((model["tokens"]["generation"], sample.generation_tokens), (model["steps"], sample.steps))
    same += ((model["tokens"]["prompt"], sample.prompt_tokens), (model["outcomes"], dict(sample.requests)))
    same += ((model["prefix_cache"]["hits"], sample.prefix_cache_hits), (model["queue"]["waiting"], sample.waiting))
    same += ((model["finished"], sample.sequence_states["finished"].entered),)
    for shown, told in same:
        assert shown == told
    for name, each in model["sequences"].items():
        assert each == sample.sequence_states[name].current == 0


def test_what_just_ran_is_in_the_recent_figures(daemon):
    before = sum(each["generation_tokens"] for each in stats(daemon)["models"][0]["history"]["moments"])
    answer = daemon.inference.Generate(request("Recently", max_tokens=9))
    (model,) = stats(daemon)["models"]
    moments = model["history"]["moments"]
    # What is older than two minutes has left in between, at most all of it.
    assert 9 <= sum(each["generation_tokens"] for each in moments) <= before + 9
    assert model["rates"]["generation_tokens_per_s"] > 0
    for name in LENGTHS:
        found = model["latencies"][name]
        assert found["count"] > 0
        assert 0 < found["p50"] <= found["p90"] <= found["p99"]
    recent = daemon.stats().recent
    assert recent.generation_tokens_per_second > 0
    assert recent.first_token.count == model["latencies"]["first_token_s"]["count"]
    assert answer.usage.completion_tokens == 9


def test_a_tenant_is_shown_without_its_salt(daemon):
    salt = "known to its owner alone"
    for _ in range(2):
        daemon.inference.Generate(request("Mine", max_tokens=4, cache_salt=salt))
    answer = get(daemon.http_port, "/stats")
    assert salt.encode() not in answer.body
    names = [each["name"] for each in answer.json["models"][0]["tenants"]]
    assert sum(name.startswith("salt ") for name in names if name) >= 1
    assert len(set(names)) == len(names)
    told = daemon.stats().recent.tenants
    assert {each.tenant for each in told if not each.others} == {name for name in names if name is not None}


@pytest.mark.parametrize("path", ["/", "/stats"])
def test_both_are_only_read(daemon, path):
    assert post(daemon.http_port, path, {}).status == 405
