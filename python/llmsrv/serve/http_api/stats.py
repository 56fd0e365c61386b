"""What `GET /stats` says: one sample of everything that a person looks at, from the same sources as GetStats.

Its size is bounded: models are few, and `recent.py` bounds history and tenants.
"""

import time
from dataclasses import asdict
from typing import Any

import llmsrv
from llmsrv.recent import SLICE_S, SLICES, Percentiles, Recent
from llmsrv.serve.listener import Listener
from llmsrv.service import GenerationService, State

Values = dict[str, Any]


def stats(listener: Listener) -> Values:
    """One sample. Without models while they are loaded."""
    state = listener.state
    services = [] if state is State.STARTING else listener.service.services
    return {
        "version": llmsrv.__version__,
        "time": time.time(),
        "state": state.value,
        "models": [model_stats(each, time.monotonic()) for each in services],
    }


def model_stats(service: GenerationService, now: float) -> Values:
    """One model's. `now`: monotonic seconds."""
    return {
        "name": service.model.name,
        "state": service.state.value,
        "failure": service.failure,
        "facts": _facts(service),
        **_engine_values(service),
        "outcomes": dict(service.outcomes),
        **_recent_values(service.latencies.recent, now),
    }


def _facts(service: GenerationService) -> Values:
    """What does not change."""
    model = service.model
    return {
        "architecture": model.architecture,
        "weight_dtype": model.quantization or model.weight_dtype,
        "kv_cache_dtype": model.config.kv_cache_dtype,
        "device": model.engine.device,
        "max_model_len": model.max_model_len,
        "max_running": model.config.max_num_seqs,
        "max_waiting": model.config.max_queued_requests,
        "policy": model.config.scheduling_policy,
        "chat": model.chat_template is not None,
    }


def _engine_values(service: GenerationService) -> Values:
    sample = service.stats()
    states = sample.states
    return {
        "sequences": {name: each.current for name, each in states.items() if name != "finished"},
        "finished": states["finished"].entered if "finished" in states else 0,
        "queue": {"waiting": sample.waiting, "oldest_wait_s": sample.oldest_wait_s},
        "blocks": {
            "tokens": service.model.config.block_size,
            "total": sample.kv_blocks_total,
            "free": sample.kv_blocks_free,
            "cached": sample.kv_blocks_cached,
            "held": sample.kv_blocks_held,
            "swapped": sample.swap_blocks_held,
            "swap_total": sample.swap_blocks_total,
            "utilization": sample.utilization,
        },
        "tokens": {"prompt": sample.prompt_tokens, "generation": sample.generation_tokens},
        "prefix_cache": {"queries": sample.prefix_queries, "hits": sample.prefix_hits},
        "preemptions": sample.preemptions,
        "swap_outs": sample.swap_outs,
        "steps": sample.steps,
    }


def _recent_values(recent: Recent, now: float) -> Values:
    return {
        "window_s": recent.window_s(now),
        "rates": asdict(recent.rates(now)),
        "latencies": {
            "first_token_s": _percentile_values(recent.first_token(now)),
            "between_tokens_s": _percentile_values(recent.between_tokens(now)),
            "request_s": _percentile_values(recent.request(now)),
        },
        "tenants": [{"name": name, **asdict(rates)} for name, rates in recent.tenants(now)],
        "history": {"slice_s": SLICE_S, "slices": SLICES, "moments": [asdict(each) for each in recent.moments(now)]},
    }


def _percentile_values(found: Percentiles | None) -> Values | None:
    return None if found is None else asdict(found)
