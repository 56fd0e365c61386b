"""From a caller's request to the core's, and from the core's refusal to ours."""

from llmsrv import _core
from llmsrv.engine import SERVER_DEFAULTS, Engine, service_error
from llmsrv.errors import Code, Violation

ENGINE = Engine(core=None)


def test_every_field_reaches_the_core():
    built, violations = ENGINE.build(
        "id",
        [1, 2],
        SERVER_DEFAULTS,
        cache_salt="salt",
        bypass_prefix_cache=True,
        priority=-5,
        tenant="team",
        queue_timeout_s=1.5,
    )
    assert violations == []
    assert (built.id, built.prompt, built.cache_salt, built.bypass_prefix_cache) == ("id", [1, 2], "salt", True)
    assert (built.priority, built.tenant, built.queue_timeout_s, built.deadline_s) == (-5, "team", 1.5, None)
    assert built.stopping.time_limit_s is None


def test_a_priority_that_the_core_cannot_hold_is_named():
    for priority in (1 << 31, -(1 << 31) - 1):
        built, violations = ENGINE.build("id", [1], SERVER_DEFAULTS, priority=priority)
        assert violations == [Violation("priority", f"{priority} is out of range")]
        assert built.priority == 0


def test_the_deadline_goes_with_the_submission():
    class Core:
        def submit(self, request):
            self.request = request
            return 7

    core = Core()
    built, _ = ENGINE.build("id", [1], SERVER_DEFAULTS)
    assert Engine(core).submit(built, deadline_s=2.5) == 7
    assert core.request.deadline_s == 2.5


def test_a_refusal_keeps_all_that_it_says():
    refusal = _core.StatusError("too small")
    refusal.code, refusal.message = Code.FAILED_PRECONDITION.value, "too small"
    refusal.violations, refusal.metadata = [("a.b", "wrong")], {"needed_blocks": "9"}
    error = service_error(refusal)
    assert (error.code, error.message, error.reason) == (Code.FAILED_PRECONDITION, "too small", "KV_CACHE_TOO_SMALL")
    assert error.violations == (Violation("a.b", "wrong"),)
    assert error.metadata == {"needed_blocks": "9"}
