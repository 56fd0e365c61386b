"""ServiceError -> gRPC status with google.rpc details, whose sizes are bounded: they travel in the HTTP/2 trailers."""

from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.call_errors import note_error
from llmsrv.serve.convert import duration
from llmsrv.v1 import types_pb2

DOMAIN = "llmsrv"
# Peers drop trailers over 8 KiB: these keep the whole status, percent- and base64-encoded, below.
MAX_VIOLATIONS = 16
MAX_TEXT_BYTES = 100
MAX_MESSAGE_BYTES = 500


def status_of(error: ServiceError) -> status_pb2.Status:
    """The error as google.rpc.Status."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason,
            domain=DOMAIN,
            metadata={key: _cut(value, MAX_TEXT_BYTES) for key, value in error.metadata.items()},
        )
    ]
    if error.violations:
        details.append(_bad_request(error))
    if error.resource is not None:
        details.append(
            error_details_pb2.ResourceInfo(
                resource_type=error.resource.kind, resource_name=_cut(error.resource.name, MAX_TEXT_BYTES)
            )
        )
    if error.retry_delay_s is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=duration(error.retry_delay_s)))
    message = _cut(error.message, MAX_MESSAGE_BYTES)
    return status_pb2.Status(code=error.code.value, message=message, details=[_packed(each) for each in details])


def told(error: ServiceError) -> status_pb2.Status:
    """The same for the client of the current call, which is counted: call it once for an answer that leaves."""
    note_error(error.code, error.reason)
    return status_of(error)


def item_status(error: ServiceError) -> types_pb2.ItemStatus:
    """The same for one item of a batch or a session: our message has the wire format of google.rpc.Status."""
    return types_pb2.ItemStatus.FromString(told(error).SerializeToString())


async def abort(context: "grpc.aio.ServicerContext", status: status_pb2.Status) -> NoReturn:  # type: ignore[type-arg]
    """Ends the call with a status and its details.

    grpc.aio keeps the exception that this raises, with all frames on its way, until the garbage collector comes by. So
    call it outside of any `except`, from a frame that holds nothing large.
    """
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status returned")


def internal_error() -> ServiceError:
    """For a bug of ours: the log has the traceback, the client gets none of it."""
    return ServiceError(Code.INTERNAL, "internal error; see the server's log")


def _bad_request(error: ServiceError) -> error_details_pb2.BadRequest:
    listed = [
        error_details_pb2.BadRequest.FieldViolation(
            field=_cut(each.field, MAX_TEXT_BYTES), description=_cut(each.description, MAX_TEXT_BYTES)
        )
        for each in error.violations[:MAX_VIOLATIONS]
    ]
    left_out = len(error.violations) - len(listed)
    if left_out > 0:
        listed.append(error_details_pb2.BadRequest.FieldViolation(field="*", description=f"and {left_out} more"))
    return error_details_pb2.BadRequest(field_violations=listed)


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode("utf-8", "ignore") + "..."


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed
