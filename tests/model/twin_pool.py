"""Blocks and what they hold, in plain lists: the naive twin of the block pool and the prefix index."""

from dataclasses import dataclass

CANDIDATES = 16  # blocks that one search for a common head compares


@dataclass(eq=False)
class TwinBlock:
    holders: int = 0
    key: tuple | None = None  # (id of the content before it, its tokens, salt of a first block), while it can be found
    content: int | None = None  # the id of what it ends; ids never come back
    found_again: bool = False


class TwinPool:
    """Free blocks are all alike. Cached ones go in order of release; under once_first those never found again first,
    and of the others only a quarter of the pool: beyond that their oldest counts as just released and never found."""

    def __init__(self, total, once_first):
        self.once_first = once_first
        self.found_again_max = total // 4
        self.free = [TwinBlock() for _ in range(total)]
        self.queues = ([], [])
        self.known = {}  # key -> block, the one indexed last at the end
        self.contents = 0

    @property
    def cached(self):
        return len(self.queues[0]) + len(self.queues[1])

    @property
    def available(self):
        return len(self.free) + self.cached

    def take(self, count):
        taken = []
        for _ in range(count):
            if self.free:
                block = self.free.pop()
            else:
                block = (self.queues[0] or self.queues[1]).pop(0)
                self.forget(block)
            block.holders, block.found_again = 1, False
            taken.append(block)
        return taken

    def adopt(self, block):
        if block.holders == 0:
            next(queue for queue in self.queues if block in queue).remove(block)
        block.holders += 1
        block.found_again = True

    def give_back(self, blocks):
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0 and block.key:
                self.queues[self.once_first and block.found_again].append(block)
                if len(self.queues[1]) > self.found_again_max:
                    oldest = self.queues[1].pop(0)
                    oldest.found_again = False
                    self.queues[0].append(oldest)
            elif block.holders == 0:
                self.free.append(block)

    def remember(self, key, block):
        """The content's id. A block whose content another one holds already is left out."""
        if key not in self.known:
            self.contents += 1
            block.key, block.content = key, self.contents
            self.known[key] = block
        return self.known[key].content

    def forget(self, block):
        del self.known[block.key]
        block.key = block.content = None

    def clear(self):
        cached = self.queues[0] + self.queues[1]
        for block in list(self.known.values()):
            self.forget(block)
        self.queues = ([], [])
        self.free += cached
        return len(cached)

    def common_head(self, parent, tokens, salt):
        """How many of `tokens` some block after `parent` begins with."""
        heads = [
            held
            for held_parent, held, held_salt in self.known
            if held_parent == parent and held_salt == salt and held[0] == tokens[0]
        ]
        return max((common_count(tokens, head) for head in heads[-CANDIDATES:]), default=0)


def common_count(tokens, others):
    """How many leading `tokens` lead `others` too, which are as many or more."""
    return next((i for i in range(len(tokens)) if tokens[i] != others[i]), len(tokens))
