"""The methods once more, agent by agent and in the order of their papers, with loops and nothing shared.

Each function yields the estimates x^0, x^1, ... as a list with one vector per agent. ``m`` holds the hyper-parameters,
``at(i, x)`` is the gradient of agent i at x.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Vector = Any
At = Callable[[int, Vector], Vector]
Stack = list[Vector]


def mix(M: np.ndarray, i: int, values: Stack) -> Vector:
    """Return what agent i makes of the values of its in-neighbours, itself included."""
    return sum(M[i, j] * values[j] for j in range(len(values)) if M[i, j] > 0)


def mix_all(M: np.ndarray, values: Stack) -> Stack:
    return [mix(M, i, values) for i in range(len(values))]


def length(v: Vector) -> float:
    return float(np.sqrt(sum(float(entry) ** 2 for entry in v)))


def unit(v: Vector) -> Vector:
    return v / length(v) if length(v) > 0 else v


def clipped(v: Vector, threshold: float) -> Vector:
    return v if length(v) <= threshold else v * (threshold / length(v))


def gradients(at: At, x: Stack) -> Stack:
    return [at(i, x[i]) for i in range(len(x))]


def mean(values: Stack) -> Vector:
    return sum(values) / len(values)


def one(m: Any, R: np.ndarray, W: np.ndarray) -> np.ndarray:
    return R if m.mixing == "row" else W


def _ab(
    m: Any, R: np.ndarray, C: np.ndarray, at: At, x: Stack, shape: Callable[..., Vector]
) -> Iterator[Stack]:
    y = gradients(at, x)
    while True:
        yield x
        new = [mix(R, i, x) - m.step_size * shape(i, y[i]) for i in range(len(x))]
        y = [mix(C, i, y) + at(i, new[i]) - at(i, x[i]) for i in range(len(x))]
        x = new


def cgt(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    c = np.broadcast_to(m.threshold, (len(x), 1))[:, 0]
    return _ab(m, R, C, at, x, lambda i, y: clipped(y, c[i]))


def soft_cgt(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    return _ab(m, R, C, at, x, lambda i, y: y * m.threshold / (m.threshold + length(y)))


def ab(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    return _ab(m, R, C, at, x, lambda i, y: y)


def normalized_ab(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    return _ab(m, R, C, at, x, lambda i, y: unit(y))


def push_pull(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    y = gradients(at, x)
    while True:
        yield x
        new = mix_all(R, [x[j] - m.step_size * y[j] for j in range(len(x))])
        y = [mix(C, i, y) + at(i, new[i]) - at(i, x[i]) for i in range(len(x))]
        x = new


def dsgt(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    return push_pull(m, one(m, R, W), one(m, R, W), W, at, x)


def aug_push_pull(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    y = mix_all(C, gradients(at, x))  # the stated deviation: the paper starts from the gradients
    while True:
        yield x
        new = mix_all(R, [x[j] - m.step_size * y[j] for j in range(len(x))])
        y = mix_all(C, [y[j] + at(j, new[j]) - at(j, x[j]) for j in range(len(x))])
        x = new


def frost(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    n = len(x)
    z = [np.array([float(i == j) for j in range(n)]) for i in range(n)]
    y = gradients(at, x)
    while True:
        yield x
        new_x = [mix(R, i, x) - m.step_size * y[i] for i in range(n)]
        new_z = mix_all(R, z)
        y = [mix(R, i, y) + at(i, new_x[i]) / new_z[i][i] - at(i, x[i]) / z[i][i] for i in range(n)]
        x, z = new_x, new_z


def push_diging(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    u, w, y = x, [1.0] * len(x), gradients(at, x)
    while True:
        yield x
        u = mix_all(C, [u[j] - m.step_size * y[j] for j in range(len(x))])
        w = mix_all(C, w)
        new = [u[i] / w[i] for i in range(len(x))]
        y = [mix(C, i, y) + at(i, new[i]) - at(i, x[i]) for i in range(len(x))]
        x = new


def push_saga(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    u, w, y = x, [1.0] * len(x), mix_all(C, gradients(at, x))  # the stated deviation
    while True:
        yield x
        u = mix_all(C, [u[j] - m.step_size * y[j] for j in range(len(x))])
        w = mix_all(C, w)
        new = [u[i] / w[i] for i in range(len(x))]
        y = mix_all(C, [y[j] + at(j, new[j]) - at(j, x[j]) for j in range(len(x))])
        x = new


def addopt(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    z, w, y = x, [1.0] * len(x), gradients(at, x)
    while True:
        yield z
        x = [mix(C, i, x) - m.step_size * y[i] for i in range(len(x))]
        w = mix_all(C, w)
        new = [x[i] / w[i] for i in range(len(x))]
        y = [mix(C, i, y) + at(i, new[i]) - at(i, z[i]) for i in range(len(x))]
        z = new


def sonata(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    n = len(x)
    phi, y = [1.0] * n, gradients(at, x)
    while True:
        yield x
        half = [phi[j] * (x[j] - m.step_size * y[j]) for j in range(n)]
        new_phi = mix_all(C, phi)
        new_x = [mix(C, i, half) / new_phi[i] for i in range(n)]
        sent = [phi[j] * y[j] for j in range(n)]
        y = [(mix(C, i, sent) + at(i, new_x[i]) - at(i, x[i])) / new_phi[i] for i in range(n)]
        x, phi = new_x, new_phi


def sgp(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    z, w = x, [1.0] * len(x)
    while True:
        yield z
        x = mix_all(C, [x[j] - m.step_size * at(j, z[j]) for j in range(len(x))])
        w = mix_all(C, w)
        z = [x[i] / w[i] for i in range(len(x))]


def subgradient_push(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    w = [1.0] * len(x)
    while True:
        mixed, w = mix_all(C, x), mix_all(C, w)
        z = [mixed[i] / w[i] for i in range(len(x))]
        yield z
        x = [mixed[i] - m.step_size * at(i, z[i]) for i in range(len(x))]


def dgd(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P = one(m, R, W)
    while True:
        yield x
        x = [mix(P, i, x) - m.step_size * at(i, x[i]) for i in range(len(x))]


def dgd_atc(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P = one(m, R, W)
    while True:
        yield x
        x = mix_all(P, [x[j] - m.step_size * at(j, x[j]) for j in range(len(x))])


def dgd_clip(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P = one(m, R, W)
    while True:
        yield x
        x = [mix(P, i, x) - m.step_size * clipped(at(i, x[i]), m.threshold) for i in range(len(x))]


def jiang_clip(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P = one(m, R, W)
    while True:
        yield x
        factor = min(1.0, m.threshold / length(mean(gradients(at, x))))
        x = [mix(P, i, x) - m.step_size * factor * at(i, x[i]) for i in range(len(x))]


def cdsgd_polyak(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, v = one(m, R, W), [0 * row for row in x]
    while True:
        yield x
        v = [m.momentum * v[i] - m.step_size * at(i, x[i]) for i in range(len(x))]
        x = [mix(P, i, x) + v[i] for i in range(len(x))]


def cdsgd_nesterov(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, v = one(m, R, W), [0 * row for row in x]
    while True:
        yield x
        v = [m.momentum * v[i] - m.step_size * at(i, x[i] + m.momentum * v[i]) for i in range(len(x))]
        x = [mix(P, i, x) + v[i] for i in range(len(x))]


def _adaptive(m: Any, P: Any, at: At, x: Stack, second: Callable[..., Stack]) -> Iterator[Stack]:
    agents, t = range(len(x)), 0
    moment = [0 * row for row in x]
    vhat = [0 * row + m.epsilon for row in x]
    u = [0 * row + m.epsilon for row in x]
    while True:
        yield x
        t += 1
        g = gradients(at, x)
        moment = [m.momentum * moment[i] + (1 - m.momentum) * g[i] for i in agents]
        new = second(t, g, vhat)
        if not m.delayed:  # line 12 of the paper's algorithm moved ahead of line 9
            u = [u[i] - vhat[i] + new[i] for i in agents]
        u = mix_all(P, u)
        scale = [np.sqrt(np.maximum(u[i], m.epsilon)) for i in agents]
        x = [mix(P, i, x) - m.step_size * moment[i] / scale[i] for i in agents]
        if m.delayed:
            u = [u[i] - vhat[i] + new[i] for i in agents]
        vhat = new


def damsgrad(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    v = [0 * row for row in x]

    def second(t: int, g: Stack, vhat: Stack) -> Stack:
        for i in range(len(v)):
            v[i] = m.second_momentum * v[i] + (1 - m.second_momentum) * g[i] ** 2
        return [np.maximum(vhat[i], v[i]) for i in range(len(v))]

    return _adaptive(m, one(m, R, W), at, x, second)


def dadagrad(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    past: list[Stack] = []

    def second(t: int, g: Stack, vhat: Stack) -> Stack:
        past.append(g)
        return [sum(old[i] ** 2 for old in past) / t for i in range(len(g))]

    return _adaptive(m, one(m, R, W), at, x, second)


def dnsgd(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, e, agents = one(m, R, W), m.chebyshev, range(len(x))

    def gossip(z: Stack) -> Stack:
        before, now = z, z
        for _ in range(m.gossip_rounds):
            before, now = now, [(1 + e) * mix(P, i, now) - e * before[i] for i in agents]
        return now

    g = gradients(at, x)
    v = gossip(g)
    while True:
        yield x
        x = gossip([x[i] - m.step_size * unit(v[i]) for i in agents])
        old, g = g, gradients(at, x)
        v = gossip([v[i] + g[i] - old[i] for i in agents])


def gt_nsgdm(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, agents = one(m, R, W), range(len(x))
    v, y = [0 * row for row in x], [0 * row for row in x]
    while True:
        yield x
        new = [m.momentum * v[i] + (1 - m.momentum) * at(i, x[i]) for i in agents]
        y = mix_all(P, [y[i] + new[i] - v[i] for i in agents])
        x = mix_all(P, [x[i] - m.step_size * unit(y[i]) for i in agents])
        v = new


def gd(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    return _central(at, x, lambda t, g: m.step_size * g)


def clipped_gd(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    return _central(at, x, lambda t, g: m.step_size * clipped(g, m.threshold))


def nsgdm(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    memory = [0 * x[0]]

    def move(t: int, g: Vector) -> Vector:
        memory[0] = m.momentum * memory[0] + (1 - m.momentum) * g
        return m.step_size * unit(memory[0])

    return _central(at, x, move)


def adam(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    past: list[Vector] = []

    def moment(beta: float, powers: list[Vector]) -> Vector:
        t = len(powers)
        total = sum((1 - beta) * beta ** (t - 1 - s) * value for s, value in enumerate(powers))
        return total / (1 - beta**t)

    def move(t: int, g: Vector) -> Vector:
        past.append(g)
        first, second = moment(m.momentum, past), moment(m.second_momentum, [g**2 for g in past])
        return m.step_size * first / (np.sqrt(second) + m.epsilon)

    return _central(at, x, move)


def _central(at: At, starts: Stack, move: Callable[[int, Vector], Vector]) -> Iterator[Stack]:
    x, t = mean(starts), 0
    while True:
        yield [x] * len(starts)
        t += 1
        x = x - move(t, mean([at(i, x) for i in range(len(starts))]))


def momentum_tracking(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, agents = one(m, R, W), range(len(x))
    u, y = [0 * row for row in x], [0 * row for row in x]
    while True:
        yield x
        new = [m.momentum * u[i] + at(i, x[i]) for i in agents]
        y = [mix(P, i, y) + new[i] - u[i] for i in agents]
        x, u = [mix(P, i, x) - m.step_size * y[i] for i in agents], new


def demuon(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    """The parameters of the test problems are one vector, a matrix with one row: U V' is its unit vector."""
    P, agents = one(m, R, W), range(len(x))
    moment, y = [0 * row for row in x], [0 * row for row in x]
    while True:
        yield x
        new = [m.momentum * moment[i] + (1 - m.momentum) * at(i, x[i]) for i in agents]
        y = mix_all(P, [y[i] + new[i] - moment[i] for i in agents])
        left, _, right = zip(*(np.linalg.svd(y[i][None], full_matrices=False) for i in agents), strict=True)
        x = mix_all(P, [x[i] - m.step_size * (left[i] @ right[i])[0] for i in agents])
        moment = new


def qg_dsgdm(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, agents = one(m, R, W), range(len(x))
    moment = [0 * row for row in x]
    while True:
        yield x
        half = [x[i] - m.step_size * (m.momentum * moment[i] + at(i, x[i])) for i in agents]
        new = mix_all(P, half)
        moved = [(x[i] - new[i]) / m.step_size for i in agents]
        moment = [m.momentum * moment[i] + (1 - m.momentum) * moved[i] for i in agents]
        x = new


def _rounds(m: Any, at: At, x: Stack) -> Iterator[tuple[Stack, Callable[[Stack], None]]]:
    """Yield, after each local step, the fast estimates, and how to replace them at the end of a round."""
    fast = list(x)
    while True:
        fast[:] = [fast[i] - m.step_size * at(i, fast[i]) for i in range(len(fast))]
        yield fast, lambda slow: fast.__setitem__(slice(None), slow)


def diloco(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    P, agents = one(m, R, W), range(len(x))
    slow, before = x, x
    for k, (fast, restart) in enumerate(_rounds(m, at, x)):
        yield slow
        if k % m.local_steps == 0:
            h = [slow[i] + m.outer_step * (fast[i] - slow[i]) for i in agents]
            slow = mix_all(P, [h[i] + m.momentum * (h[i] - before[i]) for i in agents])
            before = h
            restart(slow)


def noloco(m: Any, R: Any, C: Any, W: Any, at: At, x: Stack) -> Iterator[Stack]:
    """The reference's form: the local steps and the distance to the neighbours, averaged apart."""
    P, agents = one(m, R, W), range(len(x))
    slow, moment = x, [0 * row for row in x]
    for k, (fast, restart) in enumerate(_rounds(m, at, x)):
        yield slow
        if k % m.local_steps == 0:
            way = mix_all(P, [fast[i] - slow[i] for i in agents])
            apart = [mix(P, i, slow) - slow[i] for i in agents]
            moment = [m.momentum * moment[i] + m.outer_step * (way[i] + apart[i]) for i in agents]
            slow = [slow[i] + moment[i] for i in agents]
            restart(slow)


TRANSCRIPTIONS: dict[str, Callable[..., Iterator[Stack]]] = {
    "CGT": cgt,
    "SoftCGT": soft_cgt,
    "AB": ab,
    "PushPull": push_pull,
    "AugPushPull": aug_push_pull,
    "NormalizedAB": normalized_ab,
    "FROST": frost,
    "PushDIGing": push_diging,
    "PushSAGA": push_saga,
    "ADDOPT": addopt,
    "SONATA": sonata,
    "SGP": sgp,
    "SubgradientPush": subgradient_push,
    "DSGT": dsgt,
    "MomentumTracking": momentum_tracking,
    "QGDSGDm": qg_dsgdm,
    "DGD": dgd,
    "DGDATC": dgd_atc,
    "DGDClip": dgd_clip,
    "CDSGDPolyak": cdsgd_polyak,
    "CDSGDNesterov": cdsgd_nesterov,
    "DAMSGrad": damsgrad,
    "DAdaGrad": dadagrad,
    "DNSGD": dnsgd,
    "GTNSGDm": gt_nsgdm,
    "DeMuon": demuon,
    "DiLoCo": diloco,
    "NoLoCo": noloco,
    "JiangClip": jiang_clip,
    "GD": gd,
    "ClippedGD": clipped_gd,
    "NSGDm": nsgdm,
    "Adam": adam,
}
