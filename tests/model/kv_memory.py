"""A model of the memory that plans move: what each slot of each block holds.

The keys and values of a token depend on all tokens up to it. So a slot holds the name of that whole run, and a sequence
may compute its next token only when every slot before it holds the sequence's own run.

A run that ends with a token that is not known yet has a name of its own until it is. When its sequence ends before, the
slot keeps that name, which nobody wants to read.
"""


class KvMemory:
    def __init__(self, block_size):
        self.block_size = block_size
        self.cache = {}  # block -> what its slots hold; a block that was never written is not there
        self.swap = {}
        self.names = {}  # (name of the run before, token) -> name

    def extend(self, runs, tokens):
        """`runs[i]` names the run that ends at position i. Returns `runs`, longer by `tokens`."""
        for token in tokens:
            key = (runs[-1] if runs else None, token)
            runs.append(self.names.setdefault(key, len(self.names)))
        return runs

    def extend_unknown(self, runs):
        return self.extend(runs, [object()])

    def learn(self, runs, token, blocks):
        """The last of the runs ends with `token`; `blocks`: of the sequence, when that was computed meanwhile."""
        unknown = runs.pop()
        self.extend(runs, [token])
        if blocks is not None:
            block, offset = divmod(len(runs) - 1, self.block_size)
            assert self.cache[blocks[block]][offset] == unknown
            self.cache[blocks[block]][offset] = runs[-1]

    def move(self, plan):
        """Applies the moves of a plan, in the order that step_plan.h gives."""
        for source, target in plan["swap_outs"]:
            self.swap[target] = list(self.cache[source])
        for source, target in plan["copies"]:
            self.cache[target] = list(self.cache[source])
        for source, target in plan["swap_ins"]:
            self.cache[target] = list(self.swap[source])

    def compute(self, runs, blocks, first, count):
        """One range: `count` tokens from position `first` on, of the sequence with these runs in these blocks."""
        size = self.block_size
        for i in range(-(-first // size)):
            expected = runs[i * size : min(first, (i + 1) * size)]
            held = self.cache.get(blocks[i], [])[: len(expected)]
            assert held == expected, f"block {blocks[i]} holds {held} where {expected} is wanted"
        for position in range(first, first + count):
            slots = self.cache.setdefault(blocks[position // size], [None] * size)
            slots[position % size] = runs[position]
