"""The memory plan: what is left open is chosen, what does not fit is refused with what would (promise P8)."""

import re
from dataclasses import dataclass, field

import pytest

from llmsrv import _core, memory
from llmsrv.config import EngineOptions, parse_size
from llmsrv.memory import (
    DEFAULT_KV_CACHE_BYTES,
    check_device_plans,
    check_plan,
    describe_plan,
    describe_room,
    fit,
    plan_memory,
    plan_together,
)

MIB = 1 << 20
# This model's keys and values take 2 layers x 2 x 2 heads x 16 x 2 bytes = 256 bytes per token.
TOKEN_BYTES = 256


@dataclass
class Model:
    """What a plan needs to know."""

    spec: _core.ModelSpec
    weight_sources: dict = field(default_factory=dict)


def model_of(max_position):
    return Model(spec(max_position))


def spec(max_position):
    return _core.ModelSpec(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=max_position,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
    )


def planned(max_position=1000, **asked):
    """The model, the fitted options and the core's plan."""
    model = model_of(max_position)
    config = fit(model, EngineOptions(model="m", **{"threads": 1, **asked}), lambda line: None)
    return model, config, plan_memory(model, config)


@pytest.mark.parametrize(
    ("own", "asked", "expected_len", "expected_memory"),
    [
        (1000, {}, 1000, DEFAULT_KV_CACHE_BYTES),
        (1 << 22, {}, DEFAULT_KV_CACHE_BYTES // TOKEN_BYTES, DEFAULT_KV_CACHE_BYTES),
        (1000, {"kv_cache_memory": 1 << 16}, (1 << 16) // TOKEN_BYTES, 1 << 16),
        (1 << 22, {"max_model_len": 3 << 20}, 3 << 20, (3 << 20) * TOKEN_BYTES),
        (1000, {"max_model_len": 77, "kv_cache_memory": 1 << 20}, 77, 1 << 20),
    ],
)
def test_what_is_left_open_is_worked_out(own, asked, expected_len, expected_memory):
    lines = []
    config = fit(model_of(own), EngineOptions(model="m", threads=1, **asked), lines.append)
    assert (config.max_model_len, config.kv_cache_memory) == (expected_len, expected_memory)
    assert bool(lines) == (expected_len < own and "max_model_len" not in asked)


def test_the_machines_cores_are_the_default():
    assert planned(threads=None)[1].threads == _core.physical_cores()


def test_the_plan_is_printed_with_its_sum():
    _, config, plan = planned(swap_space=3 * MIB)
    text = describe_plan(plan, config, process_bytes=10 * MIB)
    assert f"{(plan.total_bytes + 10 * MIB) / MIB:.1f} MiB" in text
    assert f"{plan.kv_blocks} blocks of 16 tokens, {TOKEN_BYTES} B/token" in text
    assert re.search(r"swap +3\.0 MiB  768 blocks, preemption auto\n", text)
    rows = [float(figure) for figure in re.findall(r"([\d.]+) MiB", text)]
    assert sum(rows[:-1]) == pytest.approx(rows[-1], abs=0.05 * len(rows))


@pytest.mark.parametrize(
    ("dtype", "sources", "note"),
    [
        ("bfloat16", {"embed": "q4_0"}, "bfloat16; float32 norms"),
        ("float32", {"embed": "q4_0"}, "float32; float32 norms"),
        ("auto", {}, "bfloat16; float32 norms"),
        (
            "auto",
            {"embed": "q4_0", "layers.1.q": "q5_1", "layers.0.down": "q5_1"},
            "bfloat16, q5_1, q4_0; float32 norms",
        ),
    ],
)
def test_the_plan_names_the_formats(dtype, sources, note):
    model = Model(spec(1000), sources)
    config = fit(model, EngineOptions(model="m", threads=1, dtype=dtype), lambda line: None)
    plan = plan_memory(model, config)
    assert f" MiB  {note}\n" in describe_plan(plan, config, process_bytes=0)
    assert plan.weights_bytes == _core.Weights(model.spec, dtype=dtype, threads=1, sources=sources).bytes


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"swap_space": 0}, 0),
        ({"swap_space": 16 * TOKEN_BYTES - 1}, 0),
        ({"swap_space": 16 * TOKEN_BYTES}, 1),
        ({"swap_space": 10 * MIB + 1}, 10 * MIB // (16 * TOKEN_BYTES)),
        ({"swap_space": 10 * MIB, "block_size": 32, "kv_cache_dtype": "float32"}, 10 * MIB // (64 * TOKEN_BYTES)),
        # Elements of a byte, and a scale of four per vector of 16.
        ({"swap_space": 10 * MIB, "kv_cache_dtype": "int8"}, 10 * MIB // (16 * 160)),
        ({"swap_space": 10 * MIB, "preemption_mode": "swap"}, 10 * MIB // (16 * TOKEN_BYTES)),
        ({"swap_space": 10 * MIB, "preemption_mode": "recompute"}, 0),
    ],
)
def test_the_swap_pool_is_never_larger_than_configured(options, blocks):
    _, _, plan = planned(**options)
    assert plan.swap_blocks == blocks
    assert plan.swap_bytes == blocks * plan.kv_block_bytes <= options["swap_space"]
    assert plan.total_bytes == plan.weights_bytes + plan.workspace_bytes + plan.kv_cache_bytes + plan.swap_bytes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"preemption_mode": "swap", "swap_space": 0}, "swap_space must be above 0"),
        ({"idle_timeout": 0.01}, "idle_timeout must be at least 0.1 seconds"),
        ({"tenant_weights": {"a": -1.0}}, "weight of 'a'"),
        ({"tenant_weights": {"a": float("nan")}}, "weight of 'a'"),
        ({"tenant_weights": {"": 1.0}}, "name must not be empty"),
        ({"trace_steps": ""}, "trace_steps must not be empty"),
    ],
)
def test_the_core_checks_the_options(options, says):
    config = _core.EngineConfig(max_model_len=64, **options)
    with pytest.raises(ValueError, match=says):
        _core.plan_memory(spec(64), weights_dtype="bfloat16", config=config, threads=1)


def test_a_plan_that_fits_exactly_is_accepted():
    model, config, plan = planned()
    check_plan(model, plan, config, plan.total_bytes)
    with pytest.raises(ValueError, match="not enough memory"):
        check_plan(model, plan, config, plan.total_bytes - 1)


@pytest.mark.parametrize("available", [200 * MIB, 131 * MIB, 64 * MIB, 9 * MIB])
def test_the_refusal_names_the_largest_that_fit(available):
    asked = {"max_model_len": 1 << 18, "kv_cache_memory": 1 << 30, "swap_space": 2 * MIB}
    model, config, plan = planned(1 << 20, **asked)
    with pytest.raises(ValueError, match="not enough memory: the plan needs") as refusal:
        check_plan(model, plan, config, available)
    text = str(refusal.value)
    assert f"needs {plan.total_bytes / MIB:.1f} MiB, available are {available / MIB:.1f} MiB" in text
    size, length = re.search(r"kv_cache_memory that fits is (\w+), the largest max_model_len (\d+)$", text).groups()
    fitting = {**asked, "kv_cache_memory": parse_size(size), "max_model_len": int(length)}
    model, config, plan = planned(1 << 20, **fitting)
    check_plan(model, plan, config, available)
    one_more = {"kv_cache_memory": parse_size(size) + plan.kv_block_bytes}
    model, config, plan = planned(1 << 20, **fitting | one_more)
    with pytest.raises(ValueError, match="not enough memory"):
        check_plan(model, plan, config, available)
    if int(length) < asked["max_model_len"]:
        longer = fitting | {"max_model_len": int(length) + 16}  # lengths are tried in whole blocks
        needed = longer["max_model_len"] * TOKEN_BYTES
        model, config, plan = planned(1 << 20, **longer | {"kv_cache_memory": needed})
        with pytest.raises(ValueError, match="not enough memory"):
            check_plan(model, plan, config, available)


def test_the_refusal_says_when_no_cache_fits():
    model, config, plan = planned(swap_space=300 * MIB)
    with pytest.raises(
        ValueError, match=r"no KV cache fits, the rest alone needs 30\d\.\d MiB \(swap space 300\.0 MiB"
    ):
        check_plan(model, plan, config, 100 * MIB)


def test_room_is_counted_in_whole_sequences():
    _, config, plan = planned(10_000, max_model_len=2100, kv_cache_memory=1 * MIB)  # 256 blocks; 132 and 64 are needed
    assert describe_room(plan, config) == (
        "sequences that fit at once: 1 of max_model_len 2,100, 4 of 1,024 tokens (max_num_seqs is 64)"
    )
    _, config, plan = planned(10_000, max_model_len=17, kv_cache_memory=1 * MIB)
    assert describe_room(plan, config) == "sequences that fit at once: 128 of max_model_len 17 (max_num_seqs is 64)"


CGROUP_2 = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 500\ninactive_file 150\n"}
CGROUP_1 = {
    "memory/memory.limit_in_bytes": "2000",
    "memory/memory.usage_in_bytes": "700",
    "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, []),
        (CGROUP_2, [450]),
        (CGROUP_2 | {"memory.max": "max"}, []),
        (CGROUP_2 | {"memory.current": "5000"}, [0]),
        (CGROUP_1, [1350]),
    ],
    ids=str,
)
def test_a_containers_limit_counts(tmp_path, files, left):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert list(memory._left_in_container(tmp_path)) == left


def test_the_machine_has_memory():
    assert 0 < memory.resident_bytes() < memory.available_bytes() + memory.resident_bytes()


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 100 MiB, 80 of them free, whose plans are the CPU's."""
    plan_on_cpu = _core.plan_memory
    monkeypatch.setattr(_core, "plan_memory", lambda *args, device, **options: plan_on_cpu(*args, **options))
    monkeypatch.setattr(memory, "device_memory", lambda: (100 * MIB, 80 * MIB))


@pytest.mark.parametrize(("share", "used"), [(None, 80 * MIB), (0.5, 50 * MIB)])
def test_a_gpus_kv_cache_gets_what_its_share_leaves(gpu, share, used):
    _, _, plan = planned(device="cuda", gpu_memory_utilization=share, max_num_batched_tokens=64)
    taken = plan.total_bytes - plan.swap_bytes
    assert used - TOKEN_BYTES * 16 < taken <= used


def test_an_explicit_kv_cache_goes_before_the_share(gpu):
    _, config, _ = planned(device="cuda", gpu_memory_utilization=0.5, kv_cache_memory=3 * MIB)
    assert config.kv_cache_memory == 3 * MIB


def test_a_share_without_room_names_what_is_needed(gpu):
    with pytest.raises(ValueError, match="kv_cache_memory is too small"):
        planned(device="cuda", gpu_memory_utilization=0.001)


def gpu_plans(*asked):
    options = {"threads": 1, "device": "cuda", "max_num_batched_tokens": 64, "swap_space": MIB}
    models = {f"m{i}": (model_of(1000), EngineOptions(model="m", **(options | each))) for i, each in enumerate(asked)}
    return [each.plan for each in plan_together(models, available=1 << 40)]


def on_gpu(plans):
    return sum(plan.total_bytes - plan.swap_bytes for plan in plans)


@pytest.mark.parametrize(("share", "used"), [(None, 80 * MIB), (0.5, 50 * MIB)])
def test_models_on_a_gpu_share_what_one_would_take(gpu, share, used):
    plans = gpu_plans(*[{"gpu_memory_utilization": share}] * 3)
    check_device_plans(plans, free=80 * MIB, host=3 * MIB)
    assert used - 3 * TOKEN_BYTES * 16 < on_gpu(plans) <= used
    assert max(plan.kv_blocks for plan in plans) - min(plan.kv_blocks for plan in plans) <= 1


def test_an_explicit_kv_cache_leaves_the_others_the_rest_of_the_gpu(gpu):
    plans = gpu_plans({}, {"kv_cache_memory": 10 * MIB}, {})
    assert plans[1].kv_cache_bytes == 10 * MIB
    assert plans[0].kv_cache_bytes > 25 * MIB
    assert 80 * MIB - 2 * TOKEN_BYTES * 16 < on_gpu(plans) <= 80 * MIB


def test_models_whose_rest_fills_the_gpu_are_refused(gpu):
    plans = gpu_plans({"kv_cache_memory": 70 * MIB}, {"kv_cache_memory": 20 * MIB})
    with pytest.raises(ValueError, match="not enough memory on the GPU: the plans of 2 models need"):
        check_device_plans(plans, free=80 * MIB, host=2 * MIB)


def test_a_plan_beyond_the_gpu_is_refused():
    plan = planned(kv_cache_memory=10 * MIB, swap_space=5 * MIB)[2]
    taken = on_gpu([plan])
    check_device_plans([plan], free=taken, host=plan.swap_bytes)
    with pytest.raises(ValueError, match="not enough memory on the GPU"):
        check_device_plans([plan], free=taken - 1, host=plan.swap_bytes)
    with pytest.raises(ValueError, match="the swap space needs"):
        check_device_plans([plan], free=taken, host=plan.swap_bytes - 1)
