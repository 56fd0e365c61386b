"""A scheduler's steps, with a model that draws the same token each time."""


def tokens_of(plan, token=7):
    return [token for *_, samples in plan["ranges"] if samples]


def step(scheduler, token=7):
    plan = scheduler.plan()
    scheduler.commit(tokens_of(plan, token))
    return plan


def run_to_the_end(scheduler, steps_max=10_000):
    """All plans until nothing is left to do."""
    plans = []
    while not scheduler.idle:
        assert len(plans) < steps_max, "livelock"
        plans.append(step(scheduler))
    return plans
