"""The prefix index against a dict, and what happens when hashes collide."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmsrv import _testing

BLOCKS = 8
SIZE = 2


class IndexMachine(RuleBasedStateMachine):
    """A find is right or a miss: never another content's block, however short the hash."""

    @initialize(hash_bits=st.sampled_from([1, 2, 128]))
    def start(self, hash_bits):
        self.exact = hash_bits == 128
        self.index = _testing.PrefixIndex(BLOCKS, SIZE, hash_bits)
        self.held = {}  # block -> (parent content, tokens, salt)
        self.contents = [None]  # parents to draw from; those of erased blocks stay

    def draw_key(self, data):
        parent = data.draw(st.sampled_from(self.contents))
        tokens = tuple(data.draw(st.lists(st.sampled_from([3, 4]), min_size=SIZE, max_size=SIZE)))
        salt = data.draw(st.sampled_from(["", "a", "b"]))
        return parent, tokens, salt if parent is None else ""

    def twin_of(self, key):
        return next((block for block, held in self.held.items() if held == key), None)

    @rule(data=st.data())
    def find(self, data):
        key = self.draw_key(data)
        found = self.index.find(*key)
        expected = self.twin_of(key)
        assert found in ({expected} if self.exact else {expected, None})

    @precondition(lambda self: len(self.held) < BLOCKS)
    @rule(data=st.data())
    def insert(self, data):
        key = self.draw_key(data)
        block = next(b for b in range(BLOCKS) if b not in self.held)
        before = self.twin_of(key)
        content = self.index.insert(*key, block)
        if self.index.holds(block):
            assert before is None
            assert content == self.index.content(block)
            assert content not in self.contents, "a content's id is never used twice"
            self.held[block] = key
            self.contents.append(content)
        elif self.exact:
            assert content == self.index.content(before)
        else:
            assert content in (None, self.index.content(before) if before is not None else None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def erase(self, data):
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.index.erase(block)
        del self.held[block]

    @invariant()
    def sizes_agree(self):
        if hasattr(self, "index"):
            assert self.index.size == len(self.held)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_colliding_hashes_never_share_a_block():
    """Many random prompts over an 8-bit hash: a block is shared only by equal prefixes."""
    import random

    choose = random.Random(5)
    scheduler = _testing.Scheduler(
        block_size=4, blocks=400, max_sequences=8, max_step_tokens=128, prefix_hash_bits=8, once_first=True
    )
    holds = {}  # block -> the tokens from the start that it ends, by our own books
    shared = 0
    for _ in range(4000):
        prompt = [choose.randint(3, 6) for _ in range(choose.randint(5, 24))]
        id = scheduler.add(prompt, max_tokens=1)
        ((_, first, _, _),) = scheduler.plan()["ranges"]
        blocks = scheduler.blocks(id)
        for i in range(first // 4):
            assert holds[blocks[i]] == tuple(prompt[: 4 * (i + 1)])
            shared += 1
        for i in range(first // 4, len(blocks)):
            holds[blocks[i]] = tuple(prompt[: 4 * (i + 1)])
        scheduler.commit([7])
    assert shared > 1000
