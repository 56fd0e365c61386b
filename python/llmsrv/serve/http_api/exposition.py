"""The service's counters in Prometheus' text format, under vLLM's names with the prefix `llmsrv:`.

Written by hand: the counters live in the core and in the service, so the client library would add a registry and a
dependency to copy them into, for a format of two lines per value.
"""

from collections.abc import Iterable, Iterator, Mapping

import llmsrv
from llmsrv.latencies import Histogram
from llmsrv.service import GenerationService, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "llmsrv:"
# Outcomes of accepted requests that gave a result, by vLLM's names. A client that left is an abort, too.
FINISHED = {"stop": "stop", "length": "length", "time_limit": "time_limit", "aborted": "abort", "CANCELLED": "abort"}

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float]]


def exposition(service: GenerationService) -> str:
    """One consistent sample."""
    model = {"model_name": service.model.name}
    lines = [
        *_lines("info", "gauge", "What runs; always 1.", [({**model, "version": llmsrv.__version__}, 1)]),
        *_engine_lines(service, model),
        *_outcome_lines(service.outcomes, model),
        *_latency_lines(service, model),
    ]
    return "\n".join(lines) + "\n"


def _engine_lines(service: GenerationService, model: Labels) -> Iterator[str]:
    sample, state = service.stats(), service.state
    swapped = sample.states["swapped"].current if "swapped" in sample.states else 0
    used = sample.kv_blocks_held / max(sample.kv_blocks_total, 1)
    blocks = {"free": sample.kv_blocks_free, "held": sample.kv_blocks_held, "cached": sample.kv_blocks_cached}
    gauges = (
        ("num_requests_running", "Sequences that run.", sample.running),
        ("num_requests_waiting", "Requests that wait.", sample.waiting),
        ("num_requests_swapped", "Sequences whose keys and values are in host memory.", swapped),
        ("kv_cache_usage_perc", "Share of the KV blocks that requests hold, in [0, 1].", used),
        ("kv_slot_utilization", "Share of the held token slots that carry a token, in [0, 1].", sample.utilization),
        ("swap_blocks_held", "Blocks of host memory that swapped sequences hold.", sample.swap_blocks_held),
        ("swap_blocks_total", "Blocks of host memory in all.", sample.swap_blocks_total),
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
        ("deadline_drops", "Requests ended because of their deadline.", sample.deadline_drops),
    )
    for name, text, value in gauges:
        yield from _lines(name, "gauge", text, [(model, value)])
    yield from _lines("kv_blocks", "gauge", "KV blocks.", [({**model, "state": s}, n) for s, n in blocks.items()])
    states = [({**model, "state": each.value}, float(each is state)) for each in State]
    yield from _lines("server_state", "gauge", "1 for the state of the server.", states)
    for name, text, value in counters:
        yield from _lines(f"{name}_total", "counter", text, [(model, value)])


def _outcome_lines(outcomes: Mapping[str, int], model: Labels) -> Iterator[str]:
    ended = dict.fromkeys(FINISHED.values(), 0)
    for outcome, count in outcomes.items():
        if outcome in FINISHED:
            ended[FINISHED[outcome]] += count
    text = "Requests that gave a result, and those whose client left, by how the first sequence ended."
    by_reason = [({**model, "finished_reason": reason}, count) for reason, count in ended.items()]
    yield from _lines("request_success_total", "counter", text, by_reason)
    every = [({**model, "outcome": outcome}, count) for outcome, count in sorted(outcomes.items())]
    yield from _lines(
        "requests_total", "counter", "All requests, refused ones too: a finish reason or a status.", every
    )


def _latency_lines(service: GenerationService, model: Labels) -> Iterator[str]:
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
        yield from _head(name, "histogram", text)
        yield from _histogram_values(name, histogram, model)


def _histogram_values(name: str, histogram: Histogram, model: Labels) -> Iterator[str]:
    below = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        below += count
        yield _value(f"{name}_bucket", {**model, "le": str(bound)}, below)
    yield _value(f"{name}_sum", model, histogram.sum)
    yield _value(f"{name}_count", model, below)


def _lines(name: str, kind: str, text: str, values: Values) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in values:
        yield _value(name, labels, value)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _value(name: str, labels: Labels, value: float) -> str:
    listed = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
    return f"{PREFIX}{name}{{{listed}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
