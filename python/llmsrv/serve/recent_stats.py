"""What happened of late, as messages."""

from llmsrv.recent import Percentiles, Recent
from llmsrv.serve.convert import duration
from llmsrv.v1 import admin_pb2


def recent_stats(recent: Recent, now: float) -> admin_pb2.RecentStats:
    """One sample. `now`: monotonic seconds."""
    rates = recent.rates(now)
    return admin_pb2.RecentStats(
        requests_per_second=rates.requests_per_s,
        prompt_tokens_per_second=rates.prompt_tokens_per_s,
        generation_tokens_per_second=rates.generation_tokens_per_s,
        first_token=_latency_stats(recent.first_token(now)),
        between_tokens=_latency_stats(recent.between_tokens(now)),
        request=_latency_stats(recent.request(now)),
        tenants=[
            admin_pb2.TenantStats(
                tenant=name or "",
                others=name is None,
                requests_per_second=each.requests_per_s,
                prompt_tokens_per_second=each.prompt_tokens_per_s,
                generation_tokens_per_second=each.generation_tokens_per_s,
            )
            for name, each in recent.tenants(now)
        ],
    )


def _latency_stats(found: Percentiles | None) -> admin_pb2.LatencyStats:
    if found is None:
        return admin_pb2.LatencyStats()
    return admin_pb2.LatencyStats(
        count=found.count, p50=duration(found.p50), p90=duration(found.p90), p99=duration(found.p99)
    )
