"""The prefix index against a dict, what happens when hashes collide, and the memory it takes."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmsrv import _core, _testing

BLOCKS = 8
SIZE = 3


def common_count(tokens, others):
    """How many leading `tokens` lead `others` too, which are as many or more."""
    return next((i for i in range(len(tokens)) if tokens[i] != others[i]), len(tokens))


class IndexMachine(RuleBasedStateMachine):
    """A find is right or a miss: never another content's block, however short the hash."""

    @initialize(hash_bits=st.sampled_from([1, 2, 128]))
    def start(self, hash_bits):
        self.exact = hash_bits == 128
        self.index = _testing.PrefixIndex(BLOCKS, SIZE, hash_bits)
        self.held = {}  # block -> (parent content, tokens, salt)
        self.contents = [None]  # parents to draw from; those of erased blocks stay

    def draw_key(self, data, token_count_min=SIZE):
        parent = data.draw(st.sampled_from(self.contents))
        tokens = tuple(data.draw(st.lists(st.sampled_from([3, 4]), min_size=token_count_min, max_size=SIZE)))
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

    @rule(data=st.data())
    def find_partial(self, data):
        parent, tokens, salt = self.draw_key(data, token_count_min=1)
        runs = [
            (block, common_count(tokens, held_tokens))
            for block, (held_parent, held_tokens, held_salt) in reversed(self.held.items())
            if (held_parent, held_salt) == (parent, salt)
        ]
        # With so few blocks a chain hides none, however short the hash. The first of the longest: the one indexed last.
        expected = max(runs, key=lambda run: run[1], default=(None, 0))
        assert self.index.find_partial(parent, tokens, salt) == (expected if expected[1] > 0 else None)

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
    choose = random.Random(5)
    scheduler = _core.Scheduler(
        block_size=4, blocks=400, max_sequences=8, max_step_tokens=128, prefix_hash_bits=8, once_first=True
    )
    holds = {}  # block -> the tokens from the start that it ends, by our own books
    shared = copied = 0
    for id in range(4000):
        prompt = [choose.randint(3, 6) for _ in range(choose.randint(5, 24))]
        scheduler.add(id, prompt, max_tokens=1)
        plan = scheduler.plan()
        ((_, first, _, _),) = plan["ranges"]
        blocks = scheduler.blocks(id)
        for i in range(first // 4):
            assert holds[blocks[i]] == tuple(prompt[: 4 * (i + 1)])
            shared += 1
        for source, _ in plan["copies"]:
            assert holds[source][:first] == tuple(prompt[:first])
            copied += 1
        for i in range(first // 4, len(blocks)):
            holds[blocks[i]] = tuple(prompt[: 4 * (i + 1)])
        scheduler.commit([7])
    assert shared > 1000
    assert copied > 1000


def test_a_partial_match_compares_the_16_blocks_indexed_last():
    index = _testing.PrefixIndex(blocks=32, block_size=4)
    index.insert(None, [3, 4, 5, 6], "", 0)
    for block in range(1, 16):
        index.insert(None, [3, 100 + block, 0, 0], "", block)
    for block in range(16, 31):  # these begin alike, but are no candidates
        index.insert(index.content(0), [3, 4, 5, block], "", block)
    assert index.find_partial(None, [3, 4, 5, 7]) == (0, 3)
    index.insert(None, [3, 4, 0, 0], "", 31)
    assert index.find_partial(None, [3, 4, 5, 7]) == (31, 2), "the 17th is not looked at"
    index.erase(9)
    assert index.find_partial(None, [3, 4, 5, 7]) == (0, 3)


def test_crowded_chains_hide_a_few_blocks_and_confuse_none():
    """Blocks that share a chain with 100 newer ones that begin otherwise are beyond what one search passes."""
    loners, crowds, crowd_size = 800, 8, 100
    index = _testing.PrefixIndex(blocks=loners + crowds * crowd_size, block_size=2)
    for token in range(loners):
        index.insert(None, [token, 0], "", token)
    for i in range(crowds * crowd_size):
        index.insert(None, [loners + i % crowds, i], "", loners + i)
    found = [index.find_partial(None, [token, 1]) for token in range(loners)]
    assert all(match in (None, (token, 1)) for token, match in enumerate(found))
    assert 0 < found.count(None) < 40


@pytest.mark.parametrize("blocks", [4096, 4097])  # one more doubles the chains
def test_pool_and_index_take_at_most_256_bytes_per_block(blocks):
    index = _testing.PrefixIndex(blocks, block_size=16)
    pool = _testing.BlockPool(blocks, index)
    held = pool.take(blocks)
    parent = None
    for block in held.ids:
        parent = index.insert(parent, [block] * 16, "", block)
    held.clear()
    assert (index.size, pool.cached_count) == (blocks, blocks)
    token_bytes = 16 * 4
    assert token_bytes * blocks < index.bytes()
    assert pool.bytes() + index.bytes() <= 256 * blocks
