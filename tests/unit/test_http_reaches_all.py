"""What gRPC's GenerateRequest can say, HTTP can say, too, or its note says why not: found by walking the message."""

from pathlib import Path

import msgspec

from llmsrv.serve.convert import NOT_IMPLEMENTED
from llmsrv.serve.http_api.fields import ChatFields, ChatMessage, CompletionFields
from llmsrv.v1 import inference_pb2

NOTE = Path(__file__).resolve().parents[2] / "python/llmsrv/serve/http_api/README.md"
# Where HTTP has another name; the rest is called alike.
OTHER_NAMES = {
    "text": "prompt",
    "token_ids.ids": "prompt",
    "chat.messages.reasoning": "reasoning_content",
    "chat.template_kwargs": "chat_template_kwargs",
    "stopping.stop_strings": "stop",
    "stopping.include_stop": "include_stop_str_in_output",
    "output.token_ids": "return_token_ids",
    "output.prompt_token_ids": "return_token_ids",
}
ELSEWHERE = {"request_id": "X-Request-Id"}  # a header
NOT_OVER_HTTP = {"output.text", "max_coalesce_delay", "max_coalesce_tokens"}  # the last two are of a stream


def leaves(descriptor, prefix=""):
    for each in descriptor.fields:
        path = prefix + each.name
        inner = each.message_type
        if path in NOT_IMPLEMENTED:
            continue
        if inner is None or inner.file.package.startswith("google") or inner.GetOptions().map_entry:
            yield path
        else:
            yield from leaves(inner, path + ".")


def test_every_field_of_grpc_has_one_of_http_or_a_reason():
    names = {each.name for kind in (ChatFields, CompletionFields, ChatMessage) for each in msgspec.structs.fields(kind)}
    note = NOTE.read_text()
    paths = set(leaves(inference_pb2.GenerateRequest.DESCRIPTOR))
    paths |= {each.name for each in inference_pb2.StreamOptions.DESCRIPTOR.fields}
    assert {"stopping.time_limit", "queue_timeout", "sampling.logit_bias"} <= paths
    assert (set(OTHER_NAMES) | set(ELSEWHERE) | NOT_OVER_HTTP) <= paths
    for path in sorted(paths - NOT_OVER_HTTP - set(ELSEWHERE)):
        assert OTHER_NAMES.get(path, path.rpartition(".")[2]) in names, path
    for path in (*ELSEWHERE.values(), *NOT_OVER_HTTP):
        assert f"`{path}`" in note, path
