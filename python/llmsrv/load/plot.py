"""A run as a picture: tokens over time, and the share of requests (or gaps) that took no longer than so long.

Written by hand as SVG: four panels of lines need no plotting library. Light or dark as the viewer prefers.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from llmsrv.load.figures import Sample

PANEL_W, PANEL_H = 440, 220
LEFT, TOP, RIGHT, BOTTOM = 56, 44, 20, 40
HEAD = 58
POINTS_MAX = 400

STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif; }
text { fill: #566273; } .name, .title { fill: #18212d; font-weight: 600; } .title { font-size: 16px; }
.grid { stroke: #e1e6ec; } .line { fill: none; stroke: #2f6fb0; stroke-width: 2; stroke-linejoin: round; }
.area { fill: #2f6fb0; opacity: .12; } .mark { stroke: #c58a1c; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  svg { background: #161b22; } text { fill: #98a5b6; } .name, .title { fill: #e4e9f0; } .grid { stroke: #27303b; }
  .line { stroke: #5a9fe0; } .area { fill: #5a9fe0; }
}
"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Panel:
    name: str
    unit: str
    points: Points
    is_share: bool = False
    mark: float | None = None  # on the x axis


def plot(samples: Sequence[Sample], title: str, limits_ms: dict[str, float]) -> str:
    """The picture as SVG. REQUIRES: at least one sample."""
    good = [sample for sample in samples if sample.is_good]
    panels = [
        _Panel("Output tokens per second", "s", _speed(samples)),
        _Panel("Time to first token", "ms", _shares(each.ttft_ms for each in good), True, limits_ms.get("ttft")),
        _Panel("Time per output token", "ms", _shares(_tpot(good)), True, limits_ms.get("tpot")),
        _Panel("End to end", "ms", _shares(each.e2e_ms for each in good), True, limits_ms.get("e2e")),
    ]
    width, height = 2 * PANEL_W, HEAD + 2 * PANEL_H
    drawn = "".join(
        f'<g transform="translate({i % 2 * PANEL_W},{HEAD + i // 2 * PANEL_H})">{_drawn(panel)}</g>'
        for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{STYLE}</style><text class="title" x="24" y="36">{escape(title)}</text>{drawn}</svg>\n'
    )


def _tpot(good: Iterable[Sample]) -> Iterable[float]:
    return (each for sample in good if (each := sample.tpot_ms) is not None)


def _speed(samples: Sequence[Sample]) -> Points:
    """Tokens of each second, or of longer slices in a long run."""
    began = min(sample.sent for sample in samples)
    arrivals = [(time - began, tokens) for sample in samples for time, tokens in sample.arrivals]
    if not arrivals:
        return []
    slice_s = max(1.0, math.ceil(max(time for time, _ in arrivals) / POINTS_MAX))
    counts = [0] * (int(max(time for time, _ in arrivals) / slice_s) + 1)
    for time, tokens in arrivals:
        counts[int(time / slice_s)] += tokens
    return [((i + 0.5) * slice_s, count / slice_s) for i, count in enumerate(counts)]


def _shares(values: Iterable[float]) -> Points:
    """(value, percent of the values that are no larger), thinned out."""
    ordered = sorted(values)
    places = sorted({round(i * (len(ordered) - 1) / POINTS_MAX) for i in range(POINTS_MAX + 1)}) if ordered else []
    return [(ordered[i], 100 * (i + 1) / len(ordered)) for i in places]


def _drawn(panel: _Panel) -> str:
    note = "share of requests within" if panel.is_share else "over time"
    parts = [
        f'<text class="name" x="{LEFT}" y="24">{panel.name}</text>',
        f'<text x="{PANEL_W - RIGHT}" y="24" text-anchor="end">{note}</text>',
    ]
    if not panel.points:
        parts.append(f'<text x="{LEFT}" y="{PANEL_H / 2}">nothing was measured</text>')
        return "".join(parts)
    x_max = _nice(max(max(x for x, _ in panel.points), panel.mark or 0.0))
    y_max = 100.0 if panel.is_share else _nice(max(y for _, y in panel.points))

    def x_of(x: float) -> float:
        return LEFT + (PANEL_W - LEFT - RIGHT) * x / x_max

    def y_of(y: float) -> float:
        return TOP + (PANEL_H - TOP - BOTTOM) * (1 - y / y_max)

    parts += _axes(panel, x_max, y_max, x_of, y_of)
    path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in panel.points)
    first, last = x_of(panel.points[0][0]), x_of(panel.points[-1][0])
    parts.append(f'<path class="area" d="M{first:.1f} {y_of(0):.1f}L{path}L{last:.1f} {y_of(0):.1f}Z"/>')
    parts.append(f'<path class="line" d="M{path}"/>')
    if panel.mark is not None:
        at = x_of(panel.mark)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{y_of(0):.1f}"/>')
        label = min(max(at, LEFT + 30), PANEL_W - RIGHT - 30)
        parts.append(f'<text x="{label:.1f}" y="{TOP - 5}" text-anchor="middle">limit {panel.mark:g}</text>')
    return "".join(parts)


def _axes(
    panel: _Panel, x_max: float, y_max: float, x_of: Callable[[float], float], y_of: Callable[[float], float]
) -> list[str]:
    parts = []
    for i in range(5):
        y, x = y_max * i / 4, x_max * i / 4
        label = f"{y:.0f} %" if panel.is_share else f"{y:,.4g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{PANEL_W - RIGHT}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y_of(y) + 4:.1f}" text-anchor="end">{label}</text>')
        unit = f" {panel.unit}" if i == 4 else ""
        anchor = "end" if i == 4 else "middle"
        place = PANEL_W - RIGHT if i == 4 else x_of(x)
        parts.append(f'<text x="{place:.1f}" y="{PANEL_H - BOTTOM + 20}" text-anchor="{anchor}">{x:,.6g}{unit}</text>')
    return parts


def _nice(value: float) -> float:
    """The next round number, so that quarters of it are readable."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value * 0.9999)
