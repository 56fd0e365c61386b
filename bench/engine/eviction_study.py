"""Which cached block should be forgotten first? Replays block names through a cache of a tenth of a big enough pool.

Traces are JSON lines with hash_ids (bench/README.md). The cache holds the trace's own blocks; one request after the
other is looked up (hits are its leading run of known blocks), then held in full, then released, tail first. Results are
hits over the hits of plain LRU.

Two pools are taken as big enough: one for all distinct blocks, and the smallest in which LRU comes within 1 % of an
infinite cache. Rules under "hindsight" know what no server can know; they show what there is to win.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import json
from collections import OrderedDict, defaultdict
from pathlib import Path

NEVER = 1 << 60


class Queues:
    """Least recently used first, in one or more queues. Rules say which queue a block joins and which one gives."""

    def __init__(self, capacity, queues=1, ghosts=0.0):
        self.capacity = capacity
        self.queues = [OrderedDict() for _ in range(queues)]  # name: time of its last use; the oldest first
        self.where = {}  # name: number of its queue
        self.ghosts = OrderedDict()  # names that were forgotten last
        self.ghosts_max = int(ghosts * capacity)

    def replay(self, trace):
        hits = 0
        for now, names in enumerate(trace):
            found = next((i for i, name in enumerate(names) if name not in self.where), len(names))
            hits += found
            for name in reversed(names):
                before = self.where.pop(name, None)
                if before is not None:
                    del self.queues[before][name]
                queue = self.queue_for(name, before)
                self.ghosts.pop(name, None)
                self.where[name] = queue
                self.queues[queue][name] = now
            self.rebalance()
            while len(self.where) > self.capacity:
                self.forget(self.victim_queue(now))
        return hits

    def forget(self, queue):
        name, _ = self.queues[queue].popitem(last=False)
        del self.where[name]
        self.ghosts[name] = queue
        while len(self.ghosts) > self.ghosts_max:
            self.ghosts.popitem(last=False)

    def queue_for(self, name, before):
        return 0

    def rebalance(self):
        pass

    def victim_queue(self, now):
        return next(number for number, queue in enumerate(self.queues) if queue)


class OnceFirst(Queues):
    """Blocks that were never found again go first. At most `share` of the cache counts as found again."""

    def __init__(self, capacity, share=1.0, ghosts=0.0):
        super().__init__(capacity, 2, ghosts)
        self.share = share

    def queue_for(self, name, before):
        return int(before is not None or name in self.ghosts)

    def rebalance(self):
        once, again = self.queues
        while len(again) > self.share * self.capacity:
            name, now = again.popitem(last=False)
            once[name] = now
            self.where[name] = 0


class TwoQueues(OnceFirst):
    """2Q: the once-used give only while they are more than `share` of the cache."""

    def rebalance(self):
        pass

    def victim_queue(self, now):
        once, again = self.queues
        return 0 if once and (len(once) > self.share * self.capacity or not again) else 1


class Arc(Queues):
    """ARC: a name that was forgotten too early moves the share of the once-used."""

    def __init__(self, capacity):
        super().__init__(capacity, 2)
        self.once_target = 0.0
        self.forgotten = [OrderedDict(), OrderedDict()]

    def queue_for(self, name, before):
        once, again = self.forgotten
        if name in once:
            self.once_target = min(self.capacity, self.once_target + max(1, len(again) / len(once)))
            del once[name]
        elif name in again:
            self.once_target = max(0, self.once_target - max(1, len(once) / len(again)))
            del again[name]
        else:
            return int(before is not None)
        return 1

    def victim_queue(self, now):
        once, again = self.queues
        return 0 if once and (len(once) > self.once_target or not again) else 1

    def forget(self, queue):
        name = next(iter(self.queues[queue]))
        super().forget(queue)
        once, again = self.forgotten
        self.forgotten[queue][name] = None
        while once and len(self.queues[0]) + len(once) > self.capacity:
            once.popitem(last=False)
        while again and len(once) + len(again) > self.capacity:
            again.popitem(last=False)


class WeighedAge(Queues):
    """One queue per number of uses; the head with the largest age over its queue's weight goes."""

    def __init__(self, capacity, weights, ghosts):
        super().__init__(capacity, len(weights), ghosts)
        self.weights = weights

    def queue_for(self, name, before):
        last = self.ghosts.get(name, -1) if before is None else before
        return min(last + 1, len(self.queues) - 1)

    def victim_queue(self, now):
        def weighed_age(number):
            return (now - next(iter(self.queues[number].values())) + 1) / self.weights[number]

        return max((number for number, queue in enumerate(self.queues) if queue), key=weighed_age)


class Ranked:
    """The block of the lowest rank goes, and among equals the one that was released first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.ranks = {}
        self.heap = []
        self.releases = 0

    def replay(self, trace):
        hits = 0
        for now, names in enumerate(trace):
            found = next((i for i, name in enumerate(names) if name not in self.ranks), len(names))
            hits += found
            for name in reversed(names):
                self.releases += 1
                self.ranks[name] = (self.rank(now, name, names), self.releases)
                heapq.heappush(self.heap, (self.ranks[name], name))
            while len(self.ranks) > self.capacity:
                rank, name = heapq.heappop(self.heap)
                if self.ranks.get(name) == rank:
                    del self.ranks[name]
                    self.forgot(name, rank[0])
        return hits

    def forgot(self, name, rank):
        pass


class LfuAging(Ranked):
    """Uses plus the rank of the block forgotten last. `by_size`: uses over the request's length, as GDSF has it."""

    def __init__(self, capacity, by_size=False):
        super().__init__(capacity)
        self.by_size = by_size
        self.clock = 0.0
        self.uses = defaultdict(int)

    def rank(self, now, name, names):
        self.uses[name] += 1
        return self.clock + self.uses[name] / (len(names) if self.by_size else 1)

    def forgot(self, name, rank):
        self.clock = rank
        del self.uses[name]


class ColdConversations(Queues):
    """The conversation that was used longest ago gives all of its blocks, the last ones first."""

    def __init__(self, capacity, trace):
        super().__init__(capacity)
        self.root = int(len({names[0] for names in trace}) == 1)  # all share a system prompt
        self.blocks = defaultdict(OrderedDict)

    def replay(self, trace):
        hits = 0
        conversations, (order,) = {}, self.queues
        for names in trace:
            hits += next((i for i, name in enumerate(names) if name not in conversations), len(names))
            own = names[min(self.root, len(names) - 1)]
            for name in reversed(names):
                self.blocks[conversations.get(name, own)].pop(name, None)
                self.blocks[own][name] = None
                conversations[name] = own
            order[own] = None
            order.move_to_end(own)
            while len(conversations) > self.capacity:
                coldest = next(iter(order))
                if self.blocks[coldest]:
                    del conversations[self.blocks[coldest].popitem(last=False)[0]]
                else:
                    del order[coldest]
        return hits


class Belady(Ranked):
    """The block whose next use is furthest goes. Optimal: the blocks of a prompt are used no later than its tail."""

    def __init__(self, capacity, trace):
        super().__init__(capacity)
        self.next_use = {}
        following = {}
        for now in range(len(trace) - 1, -1, -1):
            for name in trace[now]:
                self.next_use[now, name] = following.get(name, NEVER)
                following[name] = now

    def rank(self, now, name, names):
        return -self.next_use[now, name]


class KnowsIfAgain(Belady):
    """LRU that is told of each block whether it will ever be used again."""

    def rank(self, now, name, names):
        return (self.next_use[now, name] < NEVER, now)


class Hazard(Queues):
    """The lowest chance of being used by the next request goes: by uses so far (nothing is forgotten) and age, as
    measured on the very same trace."""

    AGES = (0, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
    USES_MAX = 6

    def __init__(self, capacity, trace):
        super().__init__(capacity, self.USES_MAX)
        self.edges = [age * len(trace) for age in self.AGES]
        self.uses = defaultdict(int)
        self.chances = self.measure(trace)

    def measure(self, trace):
        """[uses - 1][age bucket], made non-increasing in age, since only the oldest of a queue can be chosen."""
        used = [[0.0] * len(self.edges) for _ in range(self.USES_MAX)]
        at_risk = [[1e-9] * len(self.edges) for _ in range(self.USES_MAX)]
        uses, last = defaultdict(int), {}
        ends = [(now, name, True) for now, names in enumerate(trace) for name in names]
        ends += [(len(trace), name, False) for name in {name for names in trace for name in names}]
        for now, name, is_use in ends:
            if uses[name]:
                queue, age = min(uses[name], self.USES_MAX) - 1, now - last[name]
                bucket = bisect.bisect_right(self.edges, age) - 1
                for earlier in range(bucket):
                    at_risk[queue][earlier] += self.edges[earlier + 1] - self.edges[earlier]
                at_risk[queue][bucket] += age - self.edges[bucket]
                used[queue][bucket] += is_use
            uses[name] += 1
            last[name] = now
        return [falling(events, risks) for events, risks in zip(used, at_risk, strict=True)]

    def queue_for(self, name, before):
        self.uses[name] += 1
        return min(self.uses[name], self.USES_MAX) - 1

    def victim_queue(self, now):
        def chance(number):
            last_use = next(iter(self.queues[number].values()))
            return self.chances[number][bisect.bisect_right(self.edges, now - last_use) - 1], last_use

        return min((number for number, queue in enumerate(self.queues) if queue), key=chance)


def falling(events, risks):
    """events / risks of each bucket, neighbours pooled where it would rise."""
    pools = []
    for event, risk in zip(events, risks, strict=True):
        pools.append([event, risk, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] < pools[-1][0] / pools[-1][1]:
            event, risk, buckets = pools.pop()
            pools[-1] = [pools[-1][0] + event, pools[-1][1] + risk, pools[-1][2] + buckets]
    return [event / risk for event, risk, buckets in pools for _ in range(buckets)]


RULES = {
    "LRU": lambda capacity, trace: Queues(capacity),
    "once first": lambda capacity, trace: OnceFirst(capacity),
    "once first, others at most 1/4": lambda capacity, trace: OnceFirst(capacity, 0.25),
    "once first, others at most 1/2": lambda capacity, trace: OnceFirst(capacity, 0.5),
    "the same, remembers as many names": lambda capacity, trace: OnceFirst(capacity, 0.5, ghosts=1),
    "2Q, once-used 1/2": lambda capacity, trace: TwoQueues(capacity, 0.5),
    "2Q, remembers half as many names": lambda capacity, trace: TwoQueues(capacity, 0.5, ghosts=0.5),
    "ARC": lambda capacity, trace: Arc(capacity),
    "age over 1, 4 (uses)": lambda capacity, trace: WeighedAge(capacity, (1, 4), ghosts=0),
    "the same, remembers names": lambda capacity, trace: WeighedAge(capacity, (1, 4), ghosts=1),
    "LFU with aging": lambda capacity, trace: LfuAging(capacity),
    "GDSF (uses over length)": lambda capacity, trace: LfuAging(capacity, by_size=True),
    "whole cold conversations": ColdConversations,
    "hindsight: chance by uses and age": Hazard,
    "hindsight: knows if used again": KnowsIfAgain,
    "hindsight: Belady": Belady,
}


def infinite_hits(trace):
    seen, hits = set(), 0
    for names in trace:
        hits += next((i for i, name in enumerate(names) if name not in seen), len(names))
        seen.update(names)
    return hits, len(seen)


def smallest_big_enough(trace, bound, distinct):
    """The smallest pool, to half a percent, in which LRU comes within 1 % of the bound."""
    low, high = 0, distinct
    while high - low > max(1, distinct // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if Queues(middle).replay(trace) >= 0.99 * bound else (middle, high)
    return high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    columns = []
    for path in parser.parse_args().traces:
        trace = [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]
        bound, distinct = infinite_hits(trace)
        smallest = smallest_big_enough(trace, bound, distinct)
        looked_up = sum(map(len, trace))
        print(
            f"{path.name}: {len(trace)} requests, {looked_up} blocks, {distinct} distinct, "
            f"bound {bound / looked_up:.3f}"
        )
        for pool in (distinct, smallest):
            lru = Queues(pool // 10).replay(trace)
            columns.append((trace, pool // 10, lru))
            print(f"  column {len(columns)}: {pool // 10} of {pool} blocks, LRU {lru / looked_up:.4f} of blocks, "
                  f"bound {bound / lru:.2f} x LRU")  # fmt: skip
    for name, rule in RULES.items():
        ratios = [rule(capacity, trace).replay(trace) / lru for trace, capacity, lru in columns]
        print(f"{name:34s}" + "".join(f"{ratio:7.2f}" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main()
