"""What an engine records with trace_steps, replayed without its model: every decision is made again."""

import json
import re

import pytest
from harness import collect, engine, pool_of, prompt, request, run, tiny_weights
from typer.testing import CliRunner

from llmsrv.cli import app
from llmsrv.replay import CutOffError, RecordError, replay_file

SALTS = ["", 'quote " and \\ backslash', "line\nbreak\ttab \x01\x1f", "ümlaut 模 \x7f", "\u2028"]


@pytest.fixture(scope="module")
def weights():
    return tiny_weights()


def traffic(count, policy):
    """Prompts that share beginnings, with salts, priorities, tenants and several choices."""
    made = []
    for i in range(count):
        each = request(
            f"r{i}",
            prompt(i % 3, 9 + 11 * (i % 4)),
            sampling={"seed": i, "n": 1 + 2 * (i % 5 == 0)},
            stopping={"max_tokens": 6 + 9 * (i % 4), "min_tokens": i % 3, "stop_token_ids": [40 + i]},
        )
        each.cache_salt, each.tenant = SALTS[i % len(SALTS)], ["a", "b", 'c"\n'][i % 3]
        each.bypass_prefix_cache = i % 7 == 6
        each.priority = i % 3 - 1 if policy == "priority" else 0
        made.append(each)
    return made


def recorded(weights, path, **options):
    """A run with preemptions, aborts and a cleared cache; its statistics."""
    pool = pool_of(weights, blocks=18, block_size=8)
    options = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "tenant_weights": {"a": 2.0, 'c"\n': 0.5}} | options
    with engine(weights, trace_steps=str(path), **pool, **options) as running:
        requests = traffic(24, options.get("scheduling_policy"))
        first = [running.submit(each) for each in requests[:16]]
        running.abort(first[3])
        running.abort(first[9])
        collect(running, first)
        running.clear_prefix_cache()
        # By now the engine has rested, and tenants have come and gone.
        for each in requests[16:20]:
            run(running, [each])
        collect(running, [running.submit(each) for each in requests[20:]])
        stats = running.stats()
        running.submit(request("ended by the shutdown", prompt(9, 60), stopping={"ignore_eos": True}))
    return stats


def replayed(path, **options):
    lines = []
    return replay_file(path, report=lines.append, **options), lines


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_every_plan_is_made_again(weights, tmp_path, policy, mode):
    path = tmp_path / "steps"
    stats = recorded(weights, path, scheduling_policy=policy, preemption_mode=mode)
    assert stats.preemptions > 0
    same, lines = replayed(path)
    assert same, "\n".join(lines)
    steps = sum("plan" in event and bool(event["plan"]["ranges"]) for event in map(json.loads, path.open()))
    assert steps >= stats.steps
    assert lines[-1] == f"all {steps} plans are the same"
    sequences = 24 + 2 * 5 + 1  # five requests have three choices
    kept = int(lines[0].split(" sequences")[0].rsplit(" ", 1)[1])
    assert 24 <= kept <= sequences  # an aborted one may have ended before its further choices came
    assert f"{stats.preemptions} preemptions, {stats.swap_outs} swaps" in lines[0]


@pytest.mark.parametrize("options", [{"prefix_cache": False}, {"prefix_hash_bits": 3}, {"swap_space": 0}])
def test_whatever_the_caches_are(weights, tmp_path, options):
    path = tmp_path / "steps"
    recorded(weights, path, **options)
    same, lines = replayed(path)
    assert same, "\n".join(lines)


@pytest.fixture(scope="module")
def record(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "steps"
    recorded(weights, path, preemption_mode="swap")
    return path.read_bytes().splitlines(keepends=True)


def write(tmp_path, lines):
    path = tmp_path / "changed"
    path.write_bytes(b"".join(lines))
    return path


def plans_of(record):
    """Index of the line and content of each plan that is not empty."""
    events = [json.loads(line) for line in record]
    return [(i, event["plan"]) for i, event in enumerate(events) if event.get("plan", {}).get("ranges")]


def changed(record, index, event):
    return [*record[:index], json.dumps(event).encode() + b"\n", *record[index + 1 :]]


@pytest.mark.parametrize("step", [1, 7, 20])
def test_a_changed_plan_is_found_at_its_step(record, tmp_path, step):
    index, plan = plans_of(record)[step - 1]
    wrong = plan | {"token_count": plan["token_count"] + 1, "preempted": [77]}
    path = write(tmp_path, changed(record, index, {"plan": wrong}))
    same, lines = replayed(path)
    assert not same
    assert lines[0].splitlines() == [
        f"step {step}, line {index + 1}: this is not the recorded decision",
        "  token_count:", f"    recorded: {wrong['token_count']}", f"    now:      {plan['token_count']}",
        "  preempted:", "    recorded: [77]", f"    now:      {json.dumps(plan['preempted'])}",
    ]  # fmt: skip
    assert lines[1].startswith(f"until here: {step} steps, ")
    # Only the record of this one decision is wrong: the others are the same again.
    same, lines = replayed(path, keep_going=True)
    assert not same
    assert lines[0].startswith(f"step {step}, ")
    assert lines[-1] == "1 decisions differ, counted from the first one on"


def test_another_scheduler_decides_otherwise_and_is_followed_to_the_end(record, tmp_path):
    """As when the record is of an older version: sequences run in other steps, and none of it fails."""
    limits = json.loads(record[0])["limits"]
    for changes in ({"max_step_tokens": 16}, {"blocks": 40}, {"blocks": 13}, {"preemption_mode": "recompute"}):
        path = write(tmp_path, changed(record, 0, {"limits": limits | changes}))
        same, lines = replayed(path, keep_going=True)
        assert not same
        steps = len(plans_of(record))
        assert lines[1].startswith(f"{steps} steps, ")
        assert 1 <= int(lines[-1].split()[0]) <= len(record)


def test_another_count_of_cleared_blocks_is_a_difference(record, tmp_path):
    index = next(i for i, line in enumerate(record) if b"clear_prefix_cache" in line)
    freed = json.loads(record[index])["clear_prefix_cache"]
    same, lines = replayed(write(tmp_path, changed(record, index, {"clear_prefix_cache": freed + 1})))
    assert not same
    assert f"recorded: {freed + 1}\n    now:      {freed}" in lines[0]


def test_a_record_may_end_anywhere_between_two_lines(record, tmp_path):
    for length in (1, 2, 10, len(record) // 2, len(record) - 1):
        same, lines = replayed(write(tmp_path, record[:length]))
        assert same, lines


@pytest.mark.parametrize("kept", [1, 0.5, -2])
def test_a_last_line_that_is_cut_off_is_said_and_the_rest_is_compared(record, tmp_path, kept):
    index, _ = plans_of(record)[9]
    line = record[index]
    path = write(tmp_path, [*record[:index], line[: kept if isinstance(kept, int) else len(line) // 2]])
    lines = []
    with pytest.raises(CutOffError, match=f"^line {index + 1}, the last one, is cut off"):
        replay_file(path, report=lines.append)
    (text,) = lines
    assert text.startswith("until there: 9 steps, ")
    assert text.endswith(", 0 decisions differ")


NONSENSE = [
    b"not json\n", b"\xff\xfe\n", b"[]\n", b"{}\n", b"7\n", b"\n", b'{"add": {}, "remove": 1}\n',
    b"[" * 100_000 + b"\n",
    b'{"add": {"id": 900}}\n', b'{"add": {"id": 900, "prompt": [], "max_tokens": 1}}\n',
    b'{"add": {"id": 900, "prompt": [1], "max_tokens": 100000}}\n', b'{"add": 7}\n',
    b'{"add": {"id": 900, "prompt": ["x"], "max_tokens": 1}}\n', b'{"remove": 900}\n', b'{"remove": "x"}\n',
    b'{"costs": {"swap_s_per_block": "x"}}\n', b'{"plan": {}}\n', b'{"plan": []}\n', b'{"commit": [1]}\n',
    b'{"limits": {}}\n', b'{"unknown": 1}\n',
]  # fmt: skip


@pytest.mark.parametrize("line", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("at", [0, 25])
def test_what_is_no_record_is_one_error_with_its_line(record, tmp_path, line, at):
    # Not between a plan and its commit, where also a good event would be out of place.
    while at and b'"plan"' in record[at - 1]:
        at += 1
    path = write(tmp_path, [*record[:at], line, *record[at:]])
    with pytest.raises(RecordError, match=rf"^line {at + 1}\b") as wrong:
        replayed(path)
    assert not isinstance(wrong.value, CutOffError)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("change", [{"blocks": -1}, {"blocks": "x"}, {"block_size": 0}, {"max_step_tokens": 1},
                                    {"scheduling_policy": "x"}, {"tenant_weights": {"a": 0}}, {"other": 1},
                                    {"blocks": 1 << 40}, {"prefix_hash_key": [1]}])  # fmt: skip
def test_impossible_limits_are_an_error(record, tmp_path, change):
    path = write(tmp_path, changed(record, 0, {"limits": json.loads(record[0])["limits"] | change}))
    if "tenant_weights" in change:
        limits = json.loads(record[0])["limits"] | change | {"scheduling_policy": "fair"}
        path = write(tmp_path, changed(record, 0, {"limits": limits}))
    with pytest.raises(RecordError, match=r"^line 1"):
        replayed(path)


def test_the_command_says_the_same(record, tmp_path):
    def call(lines, *flags):
        return CliRunner().invoke(app, ["replay", str(write(tmp_path, lines)), *flags])

    good = call(record)
    assert (good.exit_code, good.stderr) == (0, "")
    assert good.stdout.splitlines()[-1].endswith("plans are the same")
    index, plan = plans_of(record)[4]
    other = changed(record, index, {"plan": plan | {"token_count": 1000}})
    for flags in ((), ("--keep-going",)):
        bad = call(other, *flags)
        assert bad.exit_code == 1
        assert bad.stdout.startswith("step 5, line ")
    for lines, says in ((record[1:], r"line 1: \w+: a record begins with"), ([], "the file is empty")):
        broken = call(lines)
        assert broken.exit_code == 1
        assert re.match(f"error: {says}", broken.stderr)
        assert broken.stderr.count("\n") == 1
    missing = CliRunner().invoke(app, ["replay", str(tmp_path / "missing")])
    assert missing.exit_code == 1
    assert missing.stderr.startswith("error: ")


def test_long_records_show_progress(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("llmsrv.replay.PROGRESS_BYTES", 1000)
    assert replayed(write(tmp_path, record))[0]
    assert "replaying: done" in capsys.readouterr().err


def test_a_line_without_end_is_not_read_into_memory(record, tmp_path, monkeypatch):
    monkeypatch.setattr("llmsrv.replay.LINE_BYTES_MAX", 1 << 16)
    path = write(tmp_path, [record[0], b'{"add": {"prompt": [', b"1, " * (1 << 16), b"1]}}\n"])
    with pytest.raises(RecordError, match=r"^line 2"):
        replayed(path)
