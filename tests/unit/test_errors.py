"""The one table of codes, and the rich gRPC status made of an error."""

from base64 import b64encode
from urllib.parse import quote

import pytest
from google.rpc import error_details_pb2
from grpc import StatusCode

from llmsrv import _core
from llmsrv.errors import DEFAULT_REASON, HTTP_STATUS, Code, Resource, ServiceError, Violation
from llmsrv.serve.status import status_of


def details(error):
    unpacked = {}
    for packed in status_of(error).details:
        kind = getattr(error_details_pb2, packed.TypeName().rsplit(".", 1)[1])
        message = kind()
        packed.Unpack(message)
        unpacked[kind.__name__] = message
    return unpacked


def test_codes_are_grpcs_and_the_core_has_no_other():
    codes = {code.name: code.value for code in Code}
    assert dict(_core.status_codes()).items() <= codes.items()
    assert codes == {code.name: code.value[0] for code in StatusCode if code.name in Code.__members__}


def test_every_code_has_an_http_status_and_every_failure_a_reason():
    assert set(HTTP_STATUS) == set(Code)
    assert set(DEFAULT_REASON) == set(Code) - {Code.OK}
    assert all(400 <= HTTP_STATUS[code] < 600 for code in Code if code is not Code.OK)


def test_status_has_every_detail():
    error = ServiceError(
        Code.RESOURCE_EXHAUSTED,
        "full",
        violations=[Violation("a.b", "wrong")],
        metadata={"waiting": "3"},
        resource=Resource("model", "m"),
        retry_delay_s=1.25,
    )
    found = details(error)
    assert found["ErrorInfo"].reason == "QUEUE_FULL"
    assert found["ErrorInfo"].domain == "llmsrv"
    assert found["ErrorInfo"].metadata == {"waiting": "3"}
    assert [(v.field, v.description) for v in found["BadRequest"].field_violations] == [("a.b", "wrong")]
    assert found["ResourceInfo"].resource_name == "m"
    assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1250
    assert status_of(error).code == 8


def test_invalid_names_every_field():
    error = ServiceError.invalid([Violation("a", "x"), Violation("b[3]", "y")])
    assert error.code is Code.INVALID_ARGUMENT
    assert error.message == "a: x; b[3]: y"
    assert error.http_status == 400


@pytest.mark.parametrize("letter", ["x", "\u20ac", "\U0001f600", "\ud800"])
def test_a_hostile_request_cannot_make_the_trailers_too_long(letter):
    error = ServiceError.invalid([Violation(letter * 10_000, letter * 10_000) for _ in range(10_000)])
    status = status_of(error)
    assert len(quote(status.message)) + len(b64encode(status.SerializeToString())) < 8192
    violations = details(error)["BadRequest"].field_violations
    assert violations[-1].description == f"and {10_000 - len(violations) + 1} more"
