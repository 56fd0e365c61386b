"""One definition of a decoding rate for every engine that is measured. Needs nothing but Python."""

from __future__ import annotations

from collections import Counter


def steady_rate(arrivals, batch, output_tokens):
    """Tokens per second while all of a batch run: from the first moment at which every sequence has a token to the
    first at which one has all of its own. `arrivals`: (seconds, {sequence: new tokens}), in order, to the end."""
    counts, total, start, end = Counter(), 0, None, None
    for moment, new in arrivals:
        counts.update(new)
        total += sum(new.values())
        if start is None and len(counts) == batch:
            start = (moment, total)
        if end is None and max(counts.values(), default=0) >= output_tokens:
            end = (moment, total)
    if start is None or end is None or end[0] <= start[0]:
        raise ValueError(f"no moment at which all {batch} sequences run: more output tokens are needed")
    return (end[1] - start[1]) / (end[0] - start[0])
