"""The services' counters in Prometheus' text format, under vLLM's names with the prefix `llmsrv:`, and where that is
wanted under vLLM's own prefix, too.

Written by hand: the counters live in the core and in the service, so the client library would add a registry and a
dependency to copy them into, for a format of two lines per value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import llmsrv
from llmsrv.errors import Code
from llmsrv.latencies import Histogram
from llmsrv.serve.call_errors import Kind
from llmsrv.service import GenerationService, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX, VLLM_PREFIX = "llmsrv:", "vllm:"
# What vLLM tells, too, and in the same sense.
VLLM_NAMES = frozenset(
    {
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "time_to_first_token_seconds"),
        *("inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
        *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens", "request_params_n"),
        "request_params_max_tokens",
    }
)
# Outcomes of accepted requests that gave a result, by vLLM's names. A client that left is an abort, too.
FINISHED = {"stop": "stop", "length": "length", "time_limit": "time_limit", "aborted": "abort", "CANCELLED": "abort"}

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Family:
    """All values of one name. Those of a histogram have suffixes."""

    name: str
    kind: str
    text: str
    values: Sequence[tuple[str, Labels, float]]  # suffix, labels, value


def exposition(
    services: Sequence[GenerationService],
    call_errors: Mapping[Kind, int] | None = None,
    *,
    vllm_names: bool = False,
) -> str:
    """One consistent sample of each model. `call_errors`: of all listeners. REQUIRES: there is one model at least."""
    families = [_merged(parts) for parts in zip(*map(_families, services), strict=True)]
    families.append(_call_error_family(call_errors or {}))
    lines = [line for each in families for line in _lines(each, PREFIX, {})]
    if vllm_names:
        known = [each for each in families if each.name in VLLM_NAMES]
        lines += [line for each in known for line in _lines(each, VLLM_PREFIX, {"engine": "0"})]
    return "\n".join(lines) + "\n"


def _families(service: GenerationService) -> list[_Family]:
    """The same ones for every model."""
    model = {"model_name": service.model.name}
    return [
        _family("info", "gauge", "What runs; always 1.", [({**model, "version": llmsrv.__version__}, 1)]),
        *_engine_families(service, model),
        *_outcome_families(service.outcomes, model),
        *_latency_families(service, model),
    ]


def _merged(parts: Sequence[_Family]) -> _Family:
    """The values of all models together: a name may stand only once in the text."""
    return replace(parts[0], values=[each for part in parts for each in part.values])


def _engine_families(service: GenerationService, model: Labels) -> Iterator[_Family]:
    sample, state = service.stats(), service.state
    swapped = sample.states["swapped"].current if "swapped" in sample.states else 0
    late = service.outcomes.get(Code.DEADLINE_EXCEEDED.name, 0)  # the core does not see all of them
    used = sample.kv_blocks_held / max(sample.kv_blocks_total, 1)
    blocks = {"free": sample.kv_blocks_free, "held": sample.kv_blocks_held, "cached": sample.kv_blocks_cached}
    gauges = (
        ("num_requests_running", "Sequences that run.", sample.running),
        ("num_requests_waiting", "Requests that wait.", sample.waiting),
        ("num_requests_swapped", "Sequences whose keys and values are in host memory.", swapped),
        ("kv_cache_usage_perc", "Share of the KV blocks that requests hold, in [0, 1].", used),
        ("kv_slot_utilization", "Share of the held token slots that carry a token, in [0, 1].", sample.utilization),
        ("swap_blocks_held", "Blocks of host memory that swapped sequences hold.", sample.swap_blocks_held),
        ("swap_blocks", "Blocks of host memory in all.", sample.swap_blocks_total),
        ("oldest_wait_seconds", "How long the request that waits longest has waited.", sample.oldest_wait_s),
        ("progress_age_seconds", "Time since a step while there is work.", sample.seconds_since_progress),
    )
    counters = (
        ("engine_steps", "Steps of the engine.", sample.steps),
        ("prompt_tokens", "Prompt tokens computed, again after a preemption too.", sample.prompt_tokens),
        ("generation_tokens", "Tokens generated.", sample.generation_tokens),
        ("recomputed_tokens", "Tokens computed again after a preemption.", sample.recomputed_tokens),
        ("num_preemptions", "Preemptions.", sample.preemptions),
        ("swapped_out_blocks", "KV blocks written to host memory.", sample.swapped_out_blocks),
        ("swapped_in_blocks", "KV blocks read back from host memory.", sample.swapped_in_blocks),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", sample.prefix_queries),
        ("prefix_cache_hits", "Of these, found.", sample.prefix_hits),
        ("prompt_tokens_cached", "Prompt tokens that were not computed, but found in the cache.", sample.prefix_hits),
        ("deadline_drops", "Requests that missed their deadline.", late),
    )
    for name, text, value in gauges:
        yield _family(name, "gauge", text, [(model, value)])
    yield _family("kv_blocks", "gauge", "KV blocks.", [({**model, "state": s}, n) for s, n in blocks.items()])
    states = [({**model, "state": each.value}, float(each is state)) for each in State]
    yield _family("server_state", "gauge", "1 for the state of the model.", states)
    for name, text, value in counters:
        yield _family(f"{name}_total", "counter", text, [(model, value)])


def _outcome_families(outcomes: Mapping[str, int], model: Labels) -> Iterator[_Family]:
    ended = dict.fromkeys(FINISHED.values(), 0)
    for outcome, count in outcomes.items():
        if outcome in FINISHED:
            ended[FINISHED[outcome]] += count
    text = "Requests that gave a result, and those whose client left, by how the first sequence ended."
    by_reason = [({**model, "finished_reason": reason}, count) for reason, count in ended.items()]
    yield _family("request_success_total", "counter", text, by_reason)
    every = [({**model, "outcome": outcome}, count) for outcome, count in sorted(outcomes.items())]
    yield _family("requests_total", "counter", "All requests, refused ones too: a finish reason or a status.", every)


def _call_error_family(counts: Mapping[Kind, int]) -> _Family:
    text = "Calls, and items of batches and sessions, that were answered with an error, as their clients were told it."
    kinds = sorted(counts.items())
    values = [({"protocol": protocol, "code": code, "reason": reason}, n) for (protocol, code, reason), n in kinds]
    return _family("call_errors_total", "counter", text, values)


def _latency_families(service: GenerationService, model: Labels) -> Iterator[_Family]:
    found = service.latencies
    histograms = (
        ("time_to_first_token_seconds", "From arrival to the first token.", found.first_token_s),
        ("inter_token_latency_seconds", "Between two tokens of a sequence.", found.between_tokens_s),
        ("request_time_per_output_token_seconds", "Mean time per token after the first.", found.per_token_s),
        ("e2e_request_latency_seconds", "From arrival to the last token.", found.request_s),
        ("request_queue_time_seconds", "Waiting.", found.queue_s),
        ("request_prefill_time_seconds", "Reading the prompt.", found.prefill_s),
        ("request_decode_time_seconds", "Generating.", found.decode_s),
        ("request_inference_time_seconds", "Reading the prompt and generating.", found.inference_s),
        ("request_prompt_tokens", "Tokens of a prompt.", found.prompt_tokens),
        ("request_generation_tokens", "Tokens generated for a request.", found.generation_tokens),
        ("request_params_n", "Sequences asked for.", found.params_n),
        ("request_params_max_tokens", "max_tokens, where it was set.", found.params_max_tokens),
    )
    for name, text, histogram in histograms:
        yield _Family(name, "histogram", text, list(_histogram_values(histogram, model)))


def _histogram_values(histogram: Histogram, model: Labels) -> Iterator[tuple[str, Labels, float]]:
    below = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        below += count
        yield "_bucket", {**model, "le": str(bound)}, below
    yield "_sum", model, histogram.sum
    yield "_count", model, below


def _family(name: str, kind: str, text: str, values: Iterable[tuple[Labels, float]]) -> _Family:
    return _Family(name, kind, text, [("", labels, value) for labels, value in values])


def _lines(family: _Family, prefix: str, more: Labels) -> Iterator[str]:
    yield f"# HELP {prefix}{family.name} {family.text}"
    yield f"# TYPE {prefix}{family.name} {family.kind}"
    for suffix, labels, value in family.values:
        listed = ",".join(f'{key}="{_escaped(each)}"' for key, each in {**labels, **more}.items())
        yield f"{prefix}{family.name}{suffix}{{{listed}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
