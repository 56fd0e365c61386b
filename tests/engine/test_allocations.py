"""A step of the model allocates nothing once it is warm."""

from harness import GEMMA3, prompt, tiny_weights

from llmsrv import _testing


def test_forward_logits_and_sampling_allocate_nothing_after_warm_up():
    for weights in (tiny_weights(), tiny_weights(**GEMMA3)):
        assert _testing.step_allocations(weights, prompt(1, 40), steps=20) == 0
