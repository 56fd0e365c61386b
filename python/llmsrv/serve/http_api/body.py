"""A request's body, from bytes to a JSON object: bounded, strict, and beside the loop when it is large.

Strict means: UTF-8, no key twice, no number that is not finite, no half of a surrogate pair, no nesting without end.
"""

import asyncio
import json
import math
import re
from typing import NoReturn

from starlette.requests import Request

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.http_api.errors import Refusal

MAX_BODY_BYTES = 8 << 20
DISCARDED_BYTES = 64 << 20  # read and dropped of a body that is too large, so that its sender reads the answer
BODY_S = 300.0
INLINE_BYTES = 32 << 10  # larger bodies are parsed beside the loop, so that they hold up nobody
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_object(request: Request) -> dict[str, object]:
    """The body's JSON object. Raises Refusal or ServiceError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the content type must be application/json", "unsupported_content_type")
    try:
        body = await asyncio.wait_for(_read(request), BODY_S)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_S:g} s", "body_too_slow") from None
    if len(body) <= INLINE_BYTES:
        return parse_object(body)
    return await asyncio.to_thread(parse_object, body)


def parse_object(body: bytes) -> dict[str, object]:
    """The same, of bytes that were read. Raises ServiceError with INVALID_ARGUMENT."""
    try:
        text = body.decode()
        parsed = json.loads(text, object_pairs_hook=_unique_keys, parse_float=_finite, parse_constant=_refuse_constant)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise _malformed("the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise _malformed("a string has half of a surrogate pair") from None
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except ValueError as error:
        raise _malformed(str(error)[:200]) from None
    if not isinstance(parsed, dict):
        raise _malformed("the body must be an object")
    return parsed


async def _read(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > DISCARDED_BYTES:
        raise _too_large()
    chunks, received = [], 0
    async for chunk in request.stream():
        received += len(chunk)
        if received <= MAX_BODY_BYTES:
            chunks.append(chunk)
        else:
            chunks.clear()
        if received > DISCARDED_BYTES:
            break
    if received > MAX_BODY_BYTES:
        raise _too_large()
    return b"".join(chunks)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:100]!r} stands twice in one object")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:100]} is out of range")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _malformed(why: str) -> ServiceError:
    return ServiceError(Code.INVALID_ARGUMENT, f"the body is not valid JSON: {why}", reason="INVALID_JSON")


def _too_large() -> Refusal:
    return Refusal(413, f"the body has more than {MAX_BODY_BYTES} bytes", "body_too_large")
