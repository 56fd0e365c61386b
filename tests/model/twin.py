"""The rules of cpp/sched, written for reading only: the naive twin of the scheduler.

Its blocks have no ids. Where a plan names blocks, the twin names places: the n-th block of a sequence.
"""

from dataclasses import dataclass, field

from twin_policy import make_policy
from twin_pool import TwinBlock, TwinPool

EOS = 0
STOP = 1


@dataclass(eq=False)
class TwinSequence:
    id: int
    prompt: tuple
    max_tokens: int
    min_tokens: int = 0
    salt: str = ""
    reads: bool = True
    fills: bool = True
    sibling: int | None = None
    priority: int = 0
    tenant: str = ""
    state: str = "pending"
    tokens: list[int | None] = field(default_factory=list)  # None: drawn and not known yet, the last one at most
    computed: int = 0
    lost: int = 0  # computed before, given up by a preemption
    blocks: list[TwinBlock] = field(default_factory=list)
    swapped_blocks: int = 0
    indexed: int = 0
    content: int | None = None  # of the last indexed block; None after a first one: it was forgotten, nothing follows
    cached_prompt: int = 0
    count_at_admission: int = 0

    def __post_init__(self):
        self.tokens = list(self.prompt)
        self.count_at_admission = len(self.tokens)

    @property
    def pending(self):
        return len(self.tokens) - self.computed

    @property
    def gained(self):
        return len(self.tokens) - self.count_at_admission

    @property
    def decodes(self):
        return self.pending == 1 and len(self.tokens) > len(self.prompt)

    @property
    def ends_for_sure(self):
        return len(self.tokens) - len(self.prompt) >= self.max_tokens


class Twin:
    def __init__(
        self,
        *,
        block_size,
        blocks,
        max_sequences,
        max_step_tokens,
        swap_blocks=0,
        prefix_cache=True,
        once_first=True,
        preemption_mode="auto",
        scheduling_policy="fcfs",
        tenant_weights=None,
    ):
        self.block_size = block_size
        self.pool = TwinPool(blocks, once_first)
        self.swap_free = swap_blocks
        self.watermark = max(1, blocks // 100)
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.prefix_cache = prefix_cache
        self.mode = preemption_mode
        self.costs = (0.0, 0.0)  # of a block's swap one way, of a token's recomputation
        self.policy = make_policy(scheduling_policy, tenant_weights or {}, max_step_tokens)
        self.running: list[TwinSequence] = []
        self.waiting: list[TwinSequence] = []
        self.ending: list[TwinSequence] = []  # only their last token is to become known
        self.drawing = None  # ids that draw in the plan before the newest one, while that is not committed
        self.counters = dict.fromkeys(
            ["preemptions", "swap_outs", "swap_ins", "swapped_out_blocks", "swapped_in_blocks", "recomputed_tokens",
             "prefix_queries", "prefix_hits", "copied_tokens"], 0
        )  # fmt: skip
        self.start_plan()

    def start_plan(self):
        self.ranges = []
        self.moves = {"swap_outs": [], "copies": [], "swap_ins": []}
        self.transitions = {"admitted": [], "resumed": [], "preempted": [], "swapped": []}
        self.budget = self.max_step_tokens

    def blocks_for(self, tokens):
        return -(-tokens // self.block_size)

    def alive(self, id):
        return next((s for s in self.running + self.waiting + self.ending if s.id == id), None)

    def add(self, sequence):
        self.policy.enter(sequence)
        self.waiting.append(sequence)

    def remove(self, id):
        sequence = self.alive(id)
        if sequence in self.running:
            self.running.remove(sequence)
            self.pool.give_back(sequence.blocks)
        elif sequence in self.ending:
            self.ending.remove(sequence)
        else:
            self.waiting.remove(sequence)
            self.swap_free += sequence.swapped_blocks
        self.policy.leave(sequence)

    def plan(self):
        """(id, first position, count, samples) of each range."""
        if self.ranges:
            self.advance()
            self.let_go_of_ending()
        self.start_plan()
        self.policy.begin_step(self.running, self.waiting)
        self.running.sort(key=self.policy.order)
        self.make_way()
        for sequence in list(self.running):
            if sequence in self.running and self.decodes_now(sequence) and self.grow(sequence):
                self.compute(sequence)
        prompts = [s for s in self.running if not s.decodes and self.policy.has_turn(s)]
        for sequence in prompts:
            self.admit_before(sequence)
            if self.budget > 0:
                self.compute(sequence)
        self.admit_before(None)
        return self.ranges

    def decodes_now(self, sequence):
        return sequence.decodes and self.policy.has_turn(sequence)

    def compute(self, sequence):
        count = min(sequence.pending, self.budget)
        self.ranges.append((sequence.id, sequence.computed, count, count == sequence.pending))
        self.budget -= count
        self.policy.charge(sequence, count)

    def make_way(self):
        """The first in the queue takes the places of those it outranks, if what they alone hold is enough."""
        head = self.policy.next(self.waiting)
        if not head or not self.running or not self.policy.outranks(head, self.running[-1]):
            return
        yielding = []
        for sequence in reversed(self.running):
            if not self.policy.outranks(head, sequence):
                break
            yielding.append(sequence)
        alone = sum(block.holders == 1 for sequence in yielding for block in sequence.blocks)
        needed = self.blocks_for(len(head.tokens)) + self.growth()
        if len(yielding) < len(self.running) and self.pool.available + alone < needed:
            return
        while len(self.running) >= self.max_sequences or not self.has_room(head, self.growth()):
            self.preempt(self.running[-1])
        self.admit(head)

    def growth(self):
        """Blocks that decoding sequences will take in this step."""
        return sum(self.blocks_for(len(s.tokens)) - len(s.blocks) for s in self.running if self.decodes_now(s))

    def grow(self, sequence):
        missing = self.blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        while self.pool.available < missing:
            victim = self.running[-1]
            self.preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.take(missing)
        return True

    def preempt(self, victim):
        self.counters["preemptions"] += 1
        count = self.blocks_for(victim.computed)
        if 0 < count <= self.swap_free and self.swaps(victim, count):
            self.moves["swap_outs"] += [(victim.id, i) for i in range(count)]
            self.transitions["swapped"].append(victim.id)
            self.counters["swap_outs"] += 1
            self.counters["swapped_out_blocks"] += count
            self.swap_free -= count
            victim.swapped_blocks, victim.state = count, "swapped"
        else:
            self.transitions["preempted"].append(victim.id)
            victim.lost, victim.computed, victim.state = victim.computed, 0, "preempted"
        self.pool.give_back(victim.blocks)
        victim.blocks, victim.indexed, victim.content = [], 0, None
        self.running.remove(victim)
        self.waiting.append(victim)

    def swaps(self, victim, count):
        if self.mode != "auto":
            return self.mode == "swap"
        shared = 0  # leading blocks that others keep: they will be found again
        while shared < count and victim.blocks[shared].holders > 1:
            shared += 1
        lost = victim.computed - shared * self.block_size
        return 2 * count * self.costs[0] < lost * self.costs[1]

    def admit_before(self, limit):
        while not self.transitions["preempted"] and not self.transitions["swapped"]:
            head = self.policy.next(self.waiting)
            if not head or self.budget == 0 or len(self.running) == self.max_sequences:
                return
            if limit and self.policy.order(head) > self.policy.order(limit):
                return
            if not self.has_room(head, self.watermark if self.running else 0):
                return
            self.admit(head)
            self.compute(head)

    def key(self, sequence, index, parent):
        tokens = tuple(sequence.tokens[index * self.block_size : (index + 1) * self.block_size])
        return parent, tokens, sequence.salt if index == 0 else ""

    def find(self, sequence):
        """The full blocks that hold the beginning of the sequence; its last token is always computed."""
        assert None not in sequence.tokens
        found = []
        while self.prefix_cache and sequence.reads and (len(found) + 1) * self.block_size < len(sequence.tokens):
            block = self.pool.known.get(self.key(sequence, len(found), found[-1].content if found else None))
            if block is None:
                break
            found.append(block)
        return found

    def find_head(self, sequence, found):
        """How many tokens of the block after the found ones can be copied."""
        first = len(found) * self.block_size
        tokens = sequence.tokens[first : len(sequence.tokens) - 1][: self.block_size]
        if not (self.prefix_cache and sequence.reads and tokens) or sequence.state == "swapped":
            return 0
        parent, salt = (found[-1].content, "") if found else (None, sequence.salt)
        shared = 0
        sibling = next((s for s in self.running if s.id == sequence.sibling), None)
        # One that comes back in this step has its keys and values only after the copies.
        if sibling and sibling.id not in self.transitions["resumed"]:
            prompt = sequence.prompt[first : first + len(tokens)]
            shared = min(max(0, sibling.computed - first), len(prompt))
        return max(shared, self.pool.common_head(parent, tokens, salt))

    def findable(self, sequence):
        found = self.find(sequence)
        return len(found) * self.block_size + self.find_head(sequence, found)

    def has_room(self, sequence, reserve):
        found = self.find(sequence)
        needed = self.blocks_for(len(sequence.tokens)) - len(found)
        room = self.pool.available - sum(block.holders == 0 for block in found)
        return needed + reserve <= room

    def admit(self, sequence):
        found = self.find(sequence)
        head = self.find_head(sequence, found)
        for block in found:
            self.pool.adopt(block)
        sequence.blocks = found + self.pool.take(self.blocks_for(len(sequence.tokens)) - len(found))
        sequence.indexed = len(found)
        sequence.content = found[-1].content if found else None
        sequence.count_at_admission = len(sequence.tokens)
        if sequence.state == "swapped":
            self.restore(sequence, len(found))
        else:
            self.start(sequence, len(found), head)
        sequence.state = "running"
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.running.sort(key=self.policy.order)

    def restore(self, sequence, found):
        brought = range(found, sequence.swapped_blocks)
        self.moves["swap_ins"] += [(sequence.id, i) for i in brought]
        self.counters["swap_ins"] += 1
        self.counters["swapped_in_blocks"] += len(brought)
        self.swap_free += sequence.swapped_blocks
        sequence.swapped_blocks = 0
        sequence.computed = max(sequence.computed, found * self.block_size)
        self.transitions["resumed"].append(sequence.id)

    def start(self, sequence, found, head):
        if head:
            self.moves["copies"].append((sequence.id, found))
        sequence.computed = found * self.block_size + head
        if sequence.state == "pending":
            sequence.cached_prompt = sequence.computed
        self.counters["copied_tokens"] += head
        self.counters["recomputed_tokens"] += max(0, sequence.lost - sequence.computed)
        if self.prefix_cache and sequence.reads:
            self.counters["prefix_queries"] += len(sequence.tokens)
            self.counters["prefix_hits"] += sequence.computed
        sequence.lost = 0
        self.transitions["admitted"].append(sequence.id)

    def index(self, sequence):
        if not self.prefix_cache or not sequence.fills:
            return
        while (sequence.indexed + 1) * self.block_size <= sequence.computed:
            if sequence.indexed > 0 and sequence.content is None:
                return
            key = self.key(sequence, sequence.indexed, sequence.content)
            sequence.content = self.pool.remember(key, sequence.blocks[sequence.indexed])
            sequence.indexed += 1

    def advance(self):
        """What is known before the tokens are."""
        assert self.drawing is None
        self.drawing = [id for id, _, _, samples in self.ranges if samples]
        for id, _, count, samples in self.ranges:
            sequence = self.alive(id)
            if sequence is None:
                continue
            sequence.computed += count
            self.index(sequence)
            if samples:
                sequence.tokens.append(None)
        self.start_plan()

    def let_go_of_ending(self):
        for sequence in [self.alive(id) for id in self.drawing]:
            if sequence and sequence.ends_for_sure:
                self.running.remove(sequence)
                self.pool.give_back(sequence.blocks)
                sequence.blocks, sequence.state = [], "finished"
                self.ending.append(sequence)

    def commit(self, tokens):
        """(id, row, token, why it ended) of each sequence that drew a token."""
        if self.drawing is None:
            self.advance()
        told = []
        for row, (id, token) in enumerate(zip(self.drawing, tokens, strict=True)):
            sequence = self.alive(id)
            if sequence is None:
                continue
            sequence.tokens[-1] = token
            reason = None
            if token in (EOS, STOP) and len(sequence.tokens) - len(sequence.prompt) >= sequence.min_tokens:
                reason = "stop"
            elif sequence.ends_for_sure:
                reason = "length"
            told.append((id, row, token, reason))
            if reason:
                self.remove(id)
        self.drawing = None
        return told

    def clear(self):
        for sequence in self.running:
            sequence.content = None
        return self.pool.clear()

    def slots(self):
        """Token slots of held blocks that carry a computed token, and all of them."""
        held = {id(block): block for sequence in self.running for block in sequence.blocks}
        unfilled = sum(len(s.blocks) * self.block_size - s.computed for s in self.running)
        return len(held) * self.block_size - unfilled, len(held) * self.block_size
