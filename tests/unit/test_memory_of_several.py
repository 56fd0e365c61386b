"""The memory plan of several models: one sum, shares of what is left, and one refusal (promise P8)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_memory import MIB, TOKEN_BYTES, Model, spec

from llmsrv.config import EngineOptions, parse_size
from llmsrv.memory import DEFAULT_KV_CACHE_BYTES, check_plans, describe_plan, describe_sum, plan_together

SWAP = 2 * MIB
OWN_LEN = 1 << 18  # one such sequence takes 64 MiB


def together(available, *asked, max_position=OWN_LEN):
    """The plans of so many models with these options."""
    models = {
        f"m{i}": (Model(spec(max_position)), EngineOptions(model="m", threads=1, **{"swap_space": SWAP, **each}))
        for i, each in enumerate(asked)
    }
    return plan_together(models, available)


def needed(planned):
    return sum(each.plan.total_bytes for each in planned)


def test_with_room_each_has_what_it_would_have_alone():
    planned = together(1 << 40, {}, {})
    assert [each.config.kv_cache_memory for each in planned] == [DEFAULT_KV_CACHE_BYTES] * 2
    assert planned[0].plan.total_bytes == together(1 << 40, {})[0].plan.total_bytes


def test_caches_that_are_left_open_share_what_is_left():
    available = 400 * MIB
    planned = together(available, {}, {"kv_cache_memory": 100 * MIB}, {})
    check_plans(planned, available)
    caches = [each.plan.kv_cache_bytes for each in planned]
    assert caches[1] == 100 * MIB
    assert caches[0] == caches[2] < DEFAULT_KV_CACHE_BYTES
    assert 0 <= available - needed(planned) < 2 * 16 * TOKEN_BYTES


def test_a_share_that_holds_no_whole_sequence_makes_the_context_shorter():
    planned = together(150 * MIB, {}, {})
    check_plans(planned, 150 * MIB)
    for each in planned:
        length = each.config.max_model_len
        assert length == each.plan.kv_cache_bytes // TOKEN_BYTES < OWN_LEN
        assert each.notes == [
            f"max_model_len is {length}, not the model's {OWN_LEN}: more does not fit into the KV cache"
        ]


@given(st.integers(8, 2000), st.lists(st.sampled_from([None, 20, 600]), min_size=2, max_size=4))
def test_shares_never_exceed_what_is_there(available_mib, caches):
    available = available_mib * MIB
    asked = [{} if each is None else {"kv_cache_memory": each * MIB} for each in caches]
    planned = together(available, *asked, max_position=4096)
    fixed = [each and each * MIB for each in caches]
    assert all(size is None or each.config.kv_cache_memory == size for size, each in zip(fixed, planned, strict=True))
    rest = needed(planned) - sum(each.plan.kv_cache_bytes for each in planned)
    left = available - rest - sum(size or 0 for size in fixed)
    if None in caches and left >= caches.count(None) * 4096 * TOKEN_BYTES:
        check_plans(planned, available)
    elif left < 0:
        with pytest.raises(ValueError, match="not enough memory"):
            check_plans(planned, available)


def test_one_model_is_refused_as_ever():
    with pytest.raises(ValueError, match=r"^not enough memory: the plan needs"):
        check_plans(together(100 * MIB, {}), 100 * MIB)


def test_the_refusal_says_what_would_fit():
    asked = {"max_model_len": 1024, "kv_cache_memory": 1 << 30}
    available = 900 * MIB
    planned = together(available, asked, asked)
    with pytest.raises(ValueError, match="not enough memory: the plans of 2 models need") as refusal:
        check_plans(planned, available)
    text = str(refusal.value)
    assert f"(m0 {planned[0].plan.total_bytes / MIB:.1f} MiB, m1 " in text
    fitting = asked | {"kv_cache_memory": parse_size(re.search(r"a kv_cache_memory of ([\w.]+) fits$", text)[1])}
    check_plans(together(available, fitting, fitting), available)
    with pytest.raises(ValueError, match=r"and no KV caches fit$"):
        check_plans(together(available, asked, asked, {"swap_space": available}), available)


def test_a_model_that_its_own_limits_exclude_is_named():
    with pytest.raises(ValueError, match=r"^model m1: kv_cache_memory is too small"):
        together(1 << 40, {}, {"max_model_len": 4096, "kv_cache_memory": MIB // 2})


def test_the_sum_is_told():
    planned = together(1 << 40, {}, {})
    text = describe_sum(planned, process_bytes=10 * MIB)
    assert text.startswith("memory plan of 2 models:\n  m0 ")
    assert text.endswith(f"{(needed(planned) + 10 * MIB) / MIB:9.1f} MiB")
    assert "process" not in describe_plan(planned[0].plan, planned[0].config, process_bytes=None)
