"""A network that misbehaves, transcribed from the equations: one edge after the other, with lifetime sums."""

import numpy as np


class PlainNet:
    """Running sums for what is pushed, the own value for what is not received; tables given from outside.

    Args:
        edges: ``[A, 2]``.
        R, C: ``[steps, n, n]``, or one matrix each.
        age: ``[steps, A]``.
        awake: ``[steps, n]``.
    """

    def __init__(self, edges, R, C, age, awake):
        self.edges, self.age, self.awake = edges, age.astype(int), awake
        self.R, self.C = (np.broadcast_to(M, (len(age), *M.shape[-2:])) for M in (R, C))
        self.k, self.call, self.n = 0, 0, R.shape[-1]
        self.sent, self.received, self.arrived, self.said, self.waiting = {}, {}, {}, {}, {}

    def begin(self, k):
        self.k, self.call = k, 0

    @property
    def one_hot(self):
        return np.eye(self.n)

    def push(self, x):
        if isinstance(x, tuple):
            return tuple(self.push(part) for part in x)
        c, k = self._next(), self.k
        out = x.astype(float).copy()
        for a, (j, i) in enumerate(self.edges):
            sums = self.sent.setdefault((c, a), [])
            before = sums[-1] if sums else np.zeros_like(x[j])
            share = self.C[k][i, j] * x[j] if self.awake[k, j] else np.zeros_like(x[j])
            sums.append(before + share)
            out[j] = out[j] - share
            if self.age[k, a] >= 0:
                self.arrived[c, a] = sums[k - self.age[k, a]]
            if self.awake[k, i] and (c, a) in self.arrived:
                out[i] = out[i] + self.arrived[c, a] - self.received.get((c, a), 0.0)
                self.received[c, a] = self.arrived[c, a]
        return out

    def undelivered(self, c):
        return sum(sums[-1] - self.received.get((d, a), 0.0) for (d, a), sums in self.sent.items() if d == c)

    def pull(self, x):
        if isinstance(x, tuple):
            return tuple(self.pull(part) for part in x)
        c, k = self._next(), self.k
        self.said.setdefault(c, []).append(x)
        out = np.diag(self.R[k])[:, None] * x
        for a, (j, i) in enumerate(self.edges):
            if self.age[k, a] >= 0:
                self.waiting[c, a] = self.said[c][k - self.age[k, a]][j]
            received = self.waiting.get((c, a), x[i])
            out[i] = out[i] + self.R[k][i, j] * received
            if self.awake[k, i]:
                self.waiting.pop((c, a), None)
        return out

    def _next(self):
        self.call += 1
        return self.call - 1


def run(method, gradients, x0, net, steps):
    """Return the states after 0, ..., ``steps`` steps; agents that sleep keep theirs."""
    states = [method.init(x0, net)]
    for k in range(steps):
        net.begin(k)
        before = states[-1]
        after = method.step(before, gradients(method.query(before)), net)
        awake = net.awake[k][:, None]
        states.append(
            type(before)(*(np.where(awake, new, old) for new, old in zip(after, before, strict=True)))
        )
    return states
