"""Who goes first, in plain lists: the naive twins of the policies."""

from dataclasses import dataclass

LEAD_STEPS = 4  # how many full steps a tenant may be ahead


class TwinLevels:
    """fcfs and priority: by level, then by arrival."""

    def __init__(self, level):
        self.level = level

    def order(self, sequence):
        return self.level(sequence), sequence.id

    def next(self, waiting):
        return min(waiting, key=self.order, default=None)

    def outranks(self, waiting, running):
        return self.level(waiting) < self.level(running)

    def has_turn(self, sequence):
        return True

    def enter(self, sequence):
        pass

    def leave(self, sequence):
        pass

    def begin_step(self, running, waiting):
        pass

    def charge(self, sequence, tokens):
        pass


@dataclass
class TwinTenant:
    weight: float
    used: float = 0.0
    charged: int = 0
    sequences: int = 0
    ran: bool = False  # in the last step that began


class TwinFair:
    """Tenants by what was computed for them over their weight; nobody is further ahead than a lead."""

    def __init__(self, weights, lead):
        self.weights = weights
        self.lead = lead
        self.tenants = {}
        self.level = 0.0

    def tenant(self, sequence):
        return self.tenants[sequence.tenant]

    def order(self, sequence):
        return self.tenant(sequence).used, sequence.id

    def next(self, waiting):
        first = min(waiting, key=self.order, default=None)
        return first if first and self.has_turn(first) else None

    def has_turn(self, sequence):
        tenant = self.tenant(sequence)
        return (tenant.used - self.level) * tenant.weight <= self.lead

    def outranks(self, waiting, running):
        ahead = self.tenant(running)
        lead = (ahead.used - self.tenant(waiting).used) * ahead.weight
        return running.gained > 0 and lead > self.lead + len(running.tokens)

    def enter(self, sequence):
        name = sequence.tenant
        tenant = self.tenants.setdefault(name, TwinTenant(self.weights.get(name, 1.0)))
        if tenant.sequences == 0:
            tenant.used = max(tenant.used, self.level)
        tenant.sequences += 1

    def leave(self, sequence):
        self.tenant(sequence).sequences -= 1

    def charge(self, sequence, tokens):
        self.tenant(sequence).charged += tokens

    def begin_step(self, running, waiting):
        for tenant in self.tenants.values():
            tenant.used += tenant.charged / tenant.weight
            tenant.charged = 0
        run_now = {sequence.tenant for sequence in running}
        for name, tenant in self.tenants.items():
            if name in run_now and not tenant.ran:  # it has its first place after a wait
                tenant.used = max(tenant.used, self.level - self.lead / tenant.weight)
            tenant.ran = name in run_now
        in_order = sorted(self.order(sequence) for sequence in running or waiting)
        if in_order:
            self.level = in_order[0][0]
        self.tenants = {name: t for name, t in self.tenants.items() if t.sequences or t.used > self.level}


def make_policy(name, weights, max_step_tokens):
    if name == "fair":
        return TwinFair(weights, LEAD_STEPS * max_step_tokens)
    return TwinLevels(lambda sequence: sequence.priority if name == "priority" else 0)
