"""`llmsrv top`: what WatchStats says, in a terminal."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from llmsrv.remote import Remote, open_channel
from llmsrv.v1 import admin_pb2, admin_pb2_grpc, model_pb2, model_pb2_grpc

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

RETRY_S = 2.0
CALL_S = 10.0
STATE_COLORS = {"pending": "yellow", "running": "green", "swapped": "magenta", "preempted": "red"}
BLOCK_COLORS = {"held": "blue", "cached": "cyan", "free": "bright_black"}
SERVER_COLORS = {"serving": "green", "failed": "red", "stalled": "red"}
MAP_ROWS = 4
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


Samples = Mapping[str, admin_pb2.EngineStats]  # by model, the one that is looked at first


class Server:
    """What stands above the figures: who is asked, and what it serves."""

    def __init__(self, address: str, model: str = "") -> None:
        """`model`: the one to look at; empty means the server's first."""
        self.address = address
        self.model = model
        self.others: Sequence[str] = ()
        self.facts = ""
        self.max_running = 0
        self.max_waiting = 0

    async def ask(self, channel: grpc.aio.Channel, remote: Remote) -> None:
        """Fills in what does not change. Raises AioRpcError."""
        call = {"timeout": CALL_S, "metadata": remote.metadata}
        asked = admin_pb2.GetServerInfoRequest(model=self.model)
        info = await admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(asked, **call)
        self.max_running, self.max_waiting = info.max_running, info.max_waiting
        self.facts = f"llmsrv {info.version}"
        if info.state != admin_pb2.SERVER_STATE_STARTING:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            models = (await stub.ListModels(model_pb2.ListModelsRequest(), **call)).models
            model = next(each for each in models if self.model in ("", each.name))
            self.model, self.others = model.name, [each.name for each in models if each.name != model.name]
            self.facts = f"{model.weight_dtype} on {', '.join(info.devices)}, llmsrv {info.version}"


def run_top(remote: Remote, interval_s: float, *, once: bool, model: str = "") -> None:
    """Shows samples until Ctrl-C, or one. Raises OSError when there is no first one."""
    asyncio.run(_once(remote, model) if once else _watch(remote, interval_s, model))


async def _once(remote: Remote, model: str) -> None:
    server = Server(remote.address, model)
    async with open_channel(remote) as channel:
        try:
            await server.ask(channel, remote)
            found = {name: await _sample(channel, remote, name) for name in (server.model, *server.others)}
        except grpc.aio.AioRpcError as error:
            raise OSError(_sentence(remote, error)) from None
    Console().print(screen(server, found))


async def _watch(remote: Remote, interval_s: float, model: str) -> None:
    """A server that loads, or is gone, is tried again, as long as it was there once."""
    console = Console()
    server, answered = Server(remote.address, model), False
    async with open_channel(remote) as channel:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                try:
                    await server.ask(channel, remote)
                    answered = True
                    async for found in _samples(channel, remote, interval_s, server):
                        live.update(screen(server, found), refresh=True)
                except grpc.aio.AioRpcError as error:
                    if not answered or error.code() not in PASSING:
                        raise OSError(_sentence(remote, error)) from None
                    live.update(Text(f"{_sentence(remote, error)}\nTrying again. Ctrl-C ends.", "red"), refresh=True)
                await asyncio.sleep(RETRY_S)


async def _samples(
    channel: grpc.aio.Channel, remote: Remote, interval_s: float, server: Server
) -> AsyncIterator[Samples]:
    """Until the server is drained. Raises AioRpcError while it loads."""
    interval = Duration()
    interval.FromMilliseconds(round(interval_s * 1e3))
    request = admin_pb2.WatchStatsRequest(interval=interval, model=server.model)
    async for answer in admin_pb2_grpc.AdminServiceStub(channel).WatchStats(request, metadata=remote.metadata):
        others = await asyncio.gather(*(_sample(channel, remote, each) for each in server.others))
        yield {server.model: answer.stats, **dict(zip(server.others, others, strict=True))}


async def _sample(channel: grpc.aio.Channel, remote: Remote, model: str) -> admin_pb2.EngineStats:
    """One sample of a model. Raises AioRpcError."""
    request, stub = admin_pb2.GetStatsRequest(model=model), admin_pb2_grpc.AdminServiceStub(channel)
    answer: admin_pb2.GetStatsResponse = await stub.GetStats(request, timeout=CALL_S, metadata=remote.metadata)
    return answer.stats


def screen(server: Server, found: Samples) -> RenderableType:
    """One sample as a terminal shows it: the rates of each model, and all that is known of the first."""
    stats = next(iter(found.values()))
    return Group(
        _head(server, stats),
        *([_models(found), Text()] if len(found) > 1 else []),
        Columns([_speed(stats), _latencies(stats)], padding=(0, 4)),
        Text(),
        _sequences(server, stats),
        Text(),
        _blocks(stats),
        Text(),
        _tenants(stats),
    )


def _head(server: Server, stats: admin_pb2.EngineStats) -> RenderableType:
    state = admin_pb2.ServerState.Name(stats.state).removeprefix("SERVER_STATE_").lower()
    at = time.strftime("%H:%M:%S", time.localtime(stats.time.seconds))
    told = Text.assemble((server.model or "no model yet", "bold"), f"  {server.facts}")
    title = Text.assemble(("llmsrv top", "bold"), f"  {server.address}  ", (state, SERVER_COLORS.get(state, "yellow")))
    return Panel(
        told, title=title, title_align="left", subtitle=at, subtitle_align="right", border_style="bright_black"
    )


def _grid(title: str, rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    table.show_header = bool(head)
    for i in range(len(rows[0])):
        table.add_column(
            head[i] if head else "", justify="left" if i == 0 else "right", header_style="bright_black", no_wrap=True
        )
    for row in rows:
        table.add_row(*row)
    return table


def _speed(stats: admin_pb2.EngineStats) -> RenderableType:
    recent = stats.recent
    rows = [
        ("Output", f"{recent.generation_tokens_per_second:,.1f}", "tokens/s"),
        ("Prompts", f"{recent.prompt_tokens_per_second:,.1f}", "tokens/s"),
        ("Requests", f"{recent.requests_per_second:,.2f}", "/s"),
    ]
    return _grid("Last 10 s", rows)


def _models(found: Samples) -> RenderableType:
    rows = [
        (
            name,
            f"{each.recent.generation_tokens_per_second:,.1f}",
            f"{each.recent.prompt_tokens_per_second:,.1f}",
            f"{each.recent.requests_per_second:,.2f}",
            f"{each.running:,}",
            f"{each.waiting:,}",
        )
        for name, each in found.items()
    ]
    return _grid("Models, last 10 s", rows, ("", "output tok/s", "prompt tok/s", "requests/s", "running", "waiting"))


def _latencies(stats: admin_pb2.EngineStats) -> RenderableType:
    recent = stats.recent
    found = (
        ("First token", recent.first_token),
        ("Between tokens", recent.between_tokens),
        ("Request", recent.request),
    )
    rows = [(name, *(_took(each, part) for part in (each.p50, each.p90, each.p99))) for name, each in found]
    return _grid("Last minute", rows, ("", "p50", "p90", "p99"))


def _took(found: admin_pb2.LatencyStats, value: Duration) -> str:
    if not found.count:
        return "-"
    seconds = value.ToNanoseconds() / 1e9
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _sequences(server: Server, stats: admin_pb2.EngineStats) -> RenderableType:
    counts = {name: stats.sequence_states[name].current for name in STATE_COLORS}
    told = Text.assemble(("Sequences  ", "bold"))
    for name, color in STATE_COLORS.items():
        told.append("■ ", color).append(f"{name} {counts[name]:,}   ")
    told.append(f"finished {stats.sequence_states['finished'].entered:,}")
    wait_s = stats.oldest_wait.ToNanoseconds() / 1e9
    queue = f"Queue      {stats.waiting:,} of {server.max_waiting:,}" + (
        f", longest wait {wait_s:.1f} s" if wait_s else ""
    )
    ended = ", ".join(f"{name.lower()} {count:,}" for name, count in sorted(stats.requests.items())) or "nothing"
    return Group(told, queue, f"Ended      {ended}")


def _blocks(stats: admin_pb2.EngineStats) -> RenderableType:
    counts = {"held": stats.kv_blocks_used, "cached": stats.kv_blocks_cached, "free": stats.kv_blocks_free}
    told = Text.assemble(("KV blocks  ", "bold"))
    for name, color in BLOCK_COLORS.items():
        told.append("■ ", color).append(f"{name} {counts[name]:,}   ")
    told.append(f"of {stats.kv_blocks_total:,}")
    if stats.swap_blocks_total:
        told.append("   ■ ", "magenta").append(f"swapped {stats.swap_blocks_held:,} of {stats.swap_blocks_total:,}")
    return Group(told, BlockMap(counts))


class BlockMap:
    """A few rows of cells; each stands for as many blocks as makes them fit."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def __rich_console__(self, console: Console, options: "ConsoleOptions") -> "RenderResult":
        total = sum(self._counts.values())
        columns = max(options.max_width // 2, 1)
        cells = min(total, columns * MAP_ROWS)
        ends, done = [], 0
        for name, count in self._counts.items():
            done += count
            ends.append((round(done * cells / max(total, 1)), BLOCK_COLORS[name]))
        for first in range(0, cells, columns):
            line = Text()
            for cell in range(first, min(first + columns, cells)):
                line.append("■ ", next(color for end, color in ends if cell < end))
            line.rstrip()
            yield line


def _tenants(stats: admin_pb2.EngineStats) -> RenderableType:
    if not stats.recent.tenants:
        return Text("Nobody asked for anything in the last minute.", "bright_black")
    rows = [
        (
            "all others" if each.others else each.tenant or "no tenant",
            f"{each.generation_tokens_per_second:,.1f}",
            f"{each.prompt_tokens_per_second:,.1f}",
            f"{each.requests_per_second:,.2f}",
        )
        for each in stats.recent.tenants
    ]
    return _grid("Tenants, last minute", rows, ("", "output tok/s", "prompt tok/s", "requests/s"))


def _sentence(remote: Remote, error: grpc.aio.AioRpcError) -> str:
    return f"{remote.address}: {error.code().name}: {error.details()}"
