"""Keys from files and the environment, and the decision that both protocols ask for."""

import hashlib
import hmac

import pytest

from llmsrv.config import ServeConfig
from llmsrv.errors import Code, ServiceError
from llmsrv.serve.auth import ADMIN_NAME, Access, Guard, read_keys
from llmsrv.serve.refusals import RefusalLog

ALICE, BOB, ADMIN = "alice-key-0123456789", "bob-key-0123456789", "admin-token-0123456789"


def key_file(tmp_path, text, name="keys.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def guard(environment=None, **options):
    return Guard(ServeConfig(model="fake", **options), environment or {})


def bearer(token):
    return [f"Bearer {token}"]


def outcome(guarded, access, headers):
    """The caller's name, None for somebody unknown who may, or the code and reason of the refusal."""
    try:
        call = guarded.check(access, headers)
    except ServiceError as error:
        return error.code, error.reason
    return None if call is None else call.caller.name


MISSING = (Code.UNAUTHENTICATED, "MISSING_API_KEY")
INVALID = (Code.UNAUTHENTICATED, "INVALID_API_KEY")
FORBIDDEN = (Code.PERMISSION_DENIED, "ADMIN_REQUIRED")


def test_a_file_of_keys(tmp_path):
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    text = f"""
        [[key]]
        name = "alice"
        key = "{ALICE}"
        requests_per_minute = 60
        tokens_per_minute = 1000
        max_concurrent_streams = 4
        weight = 2

        [[key]]
        name = "bob"
        sha256 = "{digest.upper()}"
        admin = true
    """
    alice, bob = read_keys(key_file(tmp_path, text))
    assert (alice.name, alice.weight, alice.admin) == ("alice", 2.0, False)
    limits = alice.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrent_streams) == (60, 1000, 4)
    assert (bob.name, bob.weight, bob.admin) == ("bob", 1.0, True)
    assert bob.digest.hex() == digest
    assert ALICE not in repr(alice)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "one \\[\\[key\\]\\] table"),
        ("[[key]", "keys.toml: "),
        ("key = 3", "one \\[\\[key\\]\\] table"),
        ("key = [3]", "key 1: "),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\n[other]', "and nothing else"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\nlimit = 3', "key 1: .*limit"),
        (f'[[key]]\nkey = "{ALICE}"', "key 1: .*name"),
        (f'[[key]]\nname = "a b"\nkey = "{ALICE}"', "name: "),
        (f'[[key]]\nname = "{ADMIN_NAME}"\nkey = "{ALICE}"', "name: "),
        ('[[key]]\nname = "a"', "needs either key or sha256"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\nsha256 = "{"0" * 64}"', "needs either key or sha256"),
        ('[[key]]\nname = "a"\nsha256 = "alice-key-0123456789"', "64 hexadecimal digits"),
        ('[[key]]\nname = "a"\nkey = "short-key"', "16 to 1024 printable"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE} {ALICE}"', "without spaces"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}\u20ac"', "ASCII"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\nrequests_per_minute = 0', "requests_per_minute: must be at least 1"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\ntokens_per_minute = "9"', "key 1: .*tokens_per_minute"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\nweight = 0', "weight: must be above 0"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\nweight = nan', "weight: must be above 0"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\n[[key]]\nname = "a"\nkey = "{BOB}"', "'a': another one has this name"),
        (f'[[key]]\nname = "a"\nkey = "{ALICE}"\n[[key]]\nname = "b"\nkey = "{ALICE}"', "'b': another .* same key"),
    ],
)
def test_a_wrong_file_is_named_and_no_key_is_shown(tmp_path, text, says):
    path = key_file(tmp_path, text)
    with pytest.raises(ValueError, match=says) as caught:
        guard(api_key_file=path)
    assert str(caught.value).startswith("api_key_file: ")
    for secret in (ALICE, BOB, "short-key"):
        assert secret not in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"api_key_file: cannot read .*: No such file"):
        guard(api_key_file=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"admin_token_file: cannot read .*: No such file"):
        guard(admin_token_file=str(tmp_path / "none"))


@pytest.mark.parametrize("variable", ["LLMSRV_API_KEY", "LLMSRV_ADMIN_TOKEN"])
@pytest.mark.parametrize("value", ["", "short-key", "with space 0123456789", "tab\t0123456789abcdef"])
def test_an_environment_that_cannot_be_meant(variable, value):
    with pytest.raises(ValueError, match=variable) as caught:
        guard({variable: value})
    assert not value or value not in str(caught.value)


def test_a_key_cannot_be_the_admins_token():
    with pytest.raises(ValueError, match="also a key"):
        guard({"LLMSRV_API_KEY": ALICE, "LLMSRV_ADMIN_TOKEN": ALICE})


def test_the_environment_holds_one_key_and_the_admin_token(tmp_path):
    guarded = guard({"LLMSRV_API_KEY": ALICE, "LLMSRV_ADMIN_TOKEN": ADMIN})
    assert outcome(guarded, Access.USER, bearer(ALICE)) == "default"
    assert outcome(guarded, Access.ADMIN, bearer(ADMIN)) == ADMIN_NAME
    token = key_file(tmp_path, f"{ADMIN}\n", "token")
    with pytest.raises(ValueError, match="cannot be combined"):
        guard({"LLMSRV_ADMIN_TOKEN": ADMIN}, admin_token_file=token)
    assert outcome(guard(admin_token_file=token), Access.ADMIN, bearer(ADMIN)) == ADMIN_NAME


EVERYBODY = {
    "user": bearer(ALICE),
    "admin": bearer(ADMIN),
    "key of an admin": bearer(BOB),
    "nobody": [],
    "wrong": bearer("x"),
}


@pytest.mark.parametrize(
    ("keys", "admin_token", "expected"),
    [
        # (who, access) -> outcome; who is not listed gets the outcome of "others"
        (False, False, {"others": dict.fromkeys(Access)}),
        (
            False,
            True,
            {
                "admin": {Access.OPEN: None, Access.USER: None, Access.ADMIN: ADMIN_NAME},
                "nobody": {Access.OPEN: None, Access.USER: None, Access.ADMIN: MISSING},
                "others": {Access.OPEN: None, Access.USER: None, Access.ADMIN: INVALID},
            },
        ),
        (
            True,
            False,
            {
                "user": {Access.OPEN: None, Access.USER: "alice", Access.ADMIN: FORBIDDEN},
                "key of an admin": {Access.OPEN: None, Access.USER: "bob", Access.ADMIN: "bob"},
                "nobody": {Access.OPEN: None, Access.USER: MISSING, Access.ADMIN: MISSING},
                "others": {Access.OPEN: None, Access.USER: INVALID, Access.ADMIN: INVALID},
            },
        ),
        (
            True,
            True,
            {
                "user": {Access.OPEN: None, Access.USER: "alice", Access.ADMIN: FORBIDDEN},
                "key of an admin": {Access.OPEN: None, Access.USER: "bob", Access.ADMIN: "bob"},
                "admin": {Access.OPEN: None, Access.USER: ADMIN_NAME, Access.ADMIN: ADMIN_NAME},
                "nobody": {Access.OPEN: None, Access.USER: MISSING, Access.ADMIN: MISSING},
                "others": {Access.OPEN: None, Access.USER: INVALID, Access.ADMIN: INVALID},
            },
        ),
    ],
)
def test_who_may_do_what(tmp_path, keys, admin_token, expected):
    text = f'[[key]]\nname = "alice"\nkey = "{ALICE}"\n[[key]]\nname = "bob"\nkey = "{BOB}"\nadmin = true\n'
    environment = {"LLMSRV_ADMIN_TOKEN": ADMIN} if admin_token else {}
    guarded = guard(environment, api_key_file=key_file(tmp_path, text) if keys else None)
    for who, headers in EVERYBODY.items():
        found = {access: outcome(guarded, access, headers) for access in Access}
        assert found == expected.get(who, expected["others"]), who


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([f"bearer   {ALICE}  "], "default"),
        ([ALICE], INVALID),
        ([f"Basic {ALICE}"], INVALID),
        ([f"Bearer {ALICE}", f"Bearer {ALICE}"], INVALID),
        ([f"Bearer {ALICE},{ALICE}"], INVALID),
        (["Bearer"], INVALID),
        (["Bearer "], INVALID),
        ([""], INVALID),
        (["Bearer \xff\udcff"], INVALID),
        ([f"Bearer {ALICE[:-1]}"], INVALID),
        ([f"Bearer {ALICE.upper()}"], INVALID),
    ],
)
def test_headers(headers, expected):
    assert outcome(guard({"LLMSRV_API_KEY": ALICE}), Access.USER, headers) == expected


@pytest.mark.parametrize("token", [ALICE, BOB, ADMIN, "wrong"])
def test_every_key_is_compared_in_constant_time_whoever_asks(tmp_path, monkeypatch, token):
    text = f'[[key]]\nname = "alice"\nkey = "{ALICE}"\n[[key]]\nname = "bob"\nkey = "{BOB}"\n'
    guarded = guard({"LLMSRV_ADMIN_TOKEN": ADMIN}, api_key_file=key_file(tmp_path, text))
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    outcome(guarded, Access.USER, bearer(token))
    assert [a for a, _ in compared] == [hashlib.sha256(each.encode()).digest() for each in (ALICE, BOB, ADMIN)]
    assert {b for _, b in compared} == {hashlib.sha256(token.encode()).digest()}


def test_reload_takes_new_keys_keeps_what_was_used_and_survives_a_broken_file(tmp_path):
    def entry(name, key, requests):
        return f'[[key]]\nname = "{name}"\nkey = "{key}"\nrequests_per_minute = {requests}\n'

    path = key_file(tmp_path, entry("alice", ALICE, 1))
    guarded = guard(api_key_file=path)
    assert outcome(guarded, Access.USER, bearer(ALICE)) == "alice"
    used_up = (Code.RESOURCE_EXHAUSTED, "REQUEST_RATE_EXCEEDED")
    assert outcome(guarded, Access.USER, bearer(ALICE)) == used_up

    key_file(tmp_path, entry("alice", ALICE, 1) + entry("bob", BOB, 1))
    guarded.reload()
    assert outcome(guarded, Access.USER, bearer(ALICE)) == used_up
    assert outcome(guarded, Access.USER, bearer(BOB)) == "bob"

    key_file(tmp_path, "[[key]]\nname = 3")
    with pytest.raises(ValueError, match="key 1"):
        guarded.reload()
    assert outcome(guarded, Access.USER, bearer(ALICE)) == used_up

    key_file(tmp_path, entry("alice", ALICE, 2))  # new limits begin afresh
    guarded.reload()
    assert outcome(guarded, Access.USER, bearer(ALICE)) == "alice"
    assert outcome(guarded, Access.USER, bearer(BOB)) == INVALID


@pytest.mark.parametrize(
    "becomes", [f'[[key]]\nname = "alice"\nkey = "{BOB}"', f'[[key]]\nname = "bob"\nkey = "{ALICE}"']
)
def test_a_call_that_is_open_when_its_key_goes_begins_nothing_new(tmp_path, becomes):
    path = key_file(tmp_path, f'[[key]]\nname = "alice"\nkey = "{ALICE}"')
    guarded = guard({"LLMSRV_ADMIN_TOKEN": ADMIN}, api_key_file=path)
    call, admins = guarded.check(Access.USER, bearer(ALICE)), guarded.check(Access.USER, bearer(ADMIN))
    running = call.admit()
    guarded.reload()
    call.admit().end()
    key_file(tmp_path, becomes)
    guarded.reload()
    with pytest.raises(ServiceError, match="revoked") as caught:
        call.admit()
    assert (caught.value.code, caught.value.reason) == (Code.UNAUTHENTICATED, "REVOKED_API_KEY")
    running.end()
    admins.admit().end()


@pytest.mark.parametrize(
    ("method", "access"),
    [
        ("/llmsrv.v1.InferenceService/Generate", Access.USER),
        ("/llmsrv.v1.AdminService/Drain", Access.ADMIN),
        ("/grpc.channelz.v1.Channelz/GetServers", Access.ADMIN),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Access.USER),
        ("/grpc.health.v1.Health/Watch", Access.OPEN),
        ("/grpc.health.v1.Health2/Watch", Access.USER),
        ("grpc.health.v1.Health", Access.OPEN),
        ("", Access.USER),
    ],
)
def test_rpcs(method, access):
    assert guard().method_access(method) is access


def test_refusals_are_told_at_once_and_then_a_minute_at_a_time(caplog):
    now = [0.0]
    log = RefusalLog(lambda: now[0])
    for second in range(121):
        now[0] = float(second)
        log.note("INVALID_API_KEY" if second % 2 else "MISSING_API_KEY")
    assert [record.getMessage() for record in caplog.records] == [
        "refused calls: 1 MISSING_API_KEY",
        "refused calls: 30 INVALID_API_KEY, 30 MISSING_API_KEY",
        "refused calls: 30 INVALID_API_KEY, 30 MISSING_API_KEY",
    ]


def test_a_refusal_is_told_without_what_was_sent(caplog):
    guarded = guard({"LLMSRV_API_KEY": ALICE})
    assert outcome(guarded, Access.USER, bearer(ALICE)) == "default"
    assert caplog.records == []
    assert outcome(guarded, Access.USER, bearer("some-wrong-key")) == INVALID
    assert [record.getMessage() for record in caplog.records] == ["refused calls: 1 INVALID_API_KEY"]


def test_weights_are_those_of_the_keys(tmp_path):
    text = f'[[key]]\nname = "alice"\nkey = "{ALICE}"\nweight = 2.5\n'
    guarded = guard({"LLMSRV_API_KEY": BOB}, api_key_file=key_file(tmp_path, text))
    assert guarded.weights == {"alice": 2.5, "default": 1.0}
