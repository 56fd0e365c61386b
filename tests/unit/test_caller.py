"""What a caller may use: limits against a clock that the test turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.caller import Call, Caller, Limits
from llmsrv.errors import Code, ServiceError


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def caller(**limits):
    clock = Clock()
    return Caller("alice", Limits(**limits), clock), clock


def refusal(of):
    with pytest.raises(ServiceError) as caught:
        of()
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert caught.value.metadata["key"] == "alice"
    return caught.value


def test_requests_per_minute():
    alice, clock = caller(requests_per_minute=3)
    for _ in range(3):
        alice.take_request()
    error = refusal(alice.take_request)
    assert (error.reason, error.metadata["limit"]) == ("REQUEST_RATE_EXCEEDED", "3")
    assert error.retry_delay_s == pytest.approx(20)
    clock.now += 19.9
    refusal(alice.take_request)
    clock.now += 0.1
    alice.take_request()
    refusal(alice.take_request)
    clock.now += 1e6  # a long silence saves up no more than a minute
    for _ in range(3):
        alice.take_request()
    refusal(alice.take_request)


@given(limit=st.integers(1, 50), pauses=st.lists(st.floats(0, 30), max_size=200))
def test_no_minute_sees_more_than_twice_the_limit_and_the_hint_is_right(limit, pauses):
    alice, clock = caller(requests_per_minute=limit)
    taken, hints = [], []
    for pause in pauses:
        clock.now += pause
        try:
            alice.take_request()
        except ServiceError as error:
            hints.append(error.retry_delay_s)
            clock.now += error.retry_delay_s
            alice.take_request()
        taken.append(clock.now)
    assert all(0 < each <= 60 / limit + 1e-6 for each in hints)
    for begin in taken:
        assert sum(begin <= each < begin + 60 for each in taken) <= 2 * limit
    if taken:
        assert len(taken) <= limit + (taken[-1] - 1000.0) * limit / 60 + 1e-6


def test_concurrent_streams():
    alice, _ = caller(max_concurrent_streams=2)
    first, second = alice.admit(), alice.admit()
    error = refusal(alice.admit)
    assert (error.reason, error.metadata["limit"], error.retry_delay_s) == ("TOO_MANY_STREAMS", "2", 1.0)
    first.end()
    first.end()  # counts once
    third = alice.admit()
    refusal(alice.admit)
    for each in (second, third):
        each.end()
    assert alice.running == 0


def test_tokens_are_taken_while_they_are_made_and_an_overdraft_is_made_good():
    alice, clock = caller(tokens_per_minute=600)
    used = {"long": 0, "short": 0}
    long = alice.admit()
    long.measure(lambda: used["long"])
    used["long"] = 599
    short = alice.admit()  # one token is left
    short.measure(lambda: used["short"])
    used.update(long=700, short=20)
    error = refusal(alice.admit)
    assert (error.reason, error.metadata["limit"]) == ("TOKEN_RATE_EXCEEDED", "600")
    assert error.retry_delay_s == pytest.approx((720 - 600 + 1) / 10)
    used["long"] = 800
    for each in (long, short):
        each.end()
    used["long"] = 10_000  # nobody asks any more
    assert refusal(alice.admit).retry_delay_s == pytest.approx((820 - 600 + 1) / 10)
    clock.now += 22.2
    alice.admit().end()
    assert alice.running == 0


def test_a_call_covers_one_generation_and_each_further_one_is_a_request():
    alice, _ = caller(requests_per_minute=3)
    call = Call(alice)
    for _ in range(3):
        call.admit()
    assert refusal(call.admit).reason == "REQUEST_RATE_EXCEEDED"
    assert refusal(lambda: Call(alice)).reason == "REQUEST_RATE_EXCEEDED"
    assert alice.running == 3


def test_a_caller_without_limits_is_never_refused():
    alice, _ = caller()
    for _ in range(1000):
        Call(alice).admit().measure(lambda: 1 << 40)
    assert alice.running == 1000


def test_new_limits_count_what_runs():
    alice, _ = caller(max_concurrent_streams=5)
    running = alice.admit()
    alice.set_limits(Limits(max_concurrent_streams=1))
    refusal(alice.admit)
    running.end()
    alice.admit()
