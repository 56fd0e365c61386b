"""Bodies: JSON that is strict, and everything else refused without harm."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.http_api.body import parse_object

BAD = {
    "nothing": b"",
    "not JSON": b"hello",
    "cut short": b'{"a": [1, 2',
    "a comma too many": b'{"a": 1,}',
    "two values": b"{} {}",
    "a list": b"[]",
    "a string": b'"{}"',
    "null": b"null",
    "single quotes": b"{'a': 1}",
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "a number out of range": b'{"a": 1e999}',
    "a number of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "a key twice": b'{"a": 1, "b": 2, "a": 1}',
    "a key twice inside": b'{"a": [{"b": 1, "b": 1}]}',
    "a key twice by an escape": b'{"a": 1, "\\u0061": 1}',
    "invalid UTF-8": b'{"a": "\xff"}',
    "UTF-8 cut short": b'{"a": "\xe4\xb8"}',
    "an encoded surrogate": b'{"a": "\xed\xa0\x80"}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "half a surrogate pair in a key": b'{"\\udc00x": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a control character": b'{"a": "\x00"}',
    "deep lists": b'{"a": ' + b"[" * 100_000,
    "deep lists that end": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a bad escape": b'{"a": "\\x"}',
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name):
    with pytest.raises(ServiceError) as caught:
        parse_object(BAD[name])
    assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, "INVALID_JSON")
    assert len(caught.value.message) < 500


def test_a_surrogate_pair_is_one_character():
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert parse_object(b'{"a": "\\\\ud800"}') == {"a": "\\ud800"}


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        ),
    ),
    st.booleans(),
)
def test_all_that_is_json_is_read(value, ascii_only):
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=40), st.sampled_from([b"", b'{"a":', b'{"a": "', b"{"]))
def test_any_bytes_are_an_object_or_refused(data, before):
    with contextlib.suppress(ServiceError):
        assert isinstance(parse_object(before + data), dict)
