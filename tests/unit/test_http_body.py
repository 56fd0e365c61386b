"""Bodies: JSON that is strict, and everything else refused without harm."""

import contextlib
import json

import pytest
from bad_json import BAD
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsrv.errors import Code, ServiceError
from llmsrv.serve.http_api.body import parse_object


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
            max_leaves=8,
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
