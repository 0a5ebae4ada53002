"""The method written as plainly as possible, to hold the fast code against: one sample at a time, differentiated by
brute force through every iteration of the attack. Nothing here is shared with `ammlib`."""

import math

import torch
from torch import nn


def perturbation(model, x, label=None, steps=6, overshoot=0.02, num_rivals=10, high_order=True):
    """DeepFool on one sample x (...): Δ_x with its graph to the weights, and whether it fooled the model."""
    clean = model(x[None])[0].tolist()
    prediction = clean.index(max(clean))
    targeted = label is not None and label != prediction
    ranking = sorted(range(len(clean)), key=lambda k: -clean[k])
    rivals = [label] if targeted else [k for k in ranking[:num_rivals] if k != prediction]

    delta = torch.zeros_like(x)
    for _ in range(steps):
        f = model((x + delta)[None])[0]
        reference = f.argmax().item()
        if (reference == label) if targeted else (reference != prediction):
            break
        point = (x + delta).detach().requires_grad_()
        f_at_point = model(point[None])[0]
        boundaries = []
        for k in rivals:
            (g,) = torch.autograd.grad(f_at_point[k] - f_at_point[reference], point, create_graph=True)
            g = g if high_order else g.detach()
            gap = (f[k] - f[reference]).abs()
            boundaries.append(((gap / g.norm()).item(), gap, g))
        _, gap, g = min(boundaries, key=lambda boundary: boundary[0])
        delta = delta + (1 + overshoot) * gap / g.norm() ** 2 * g

    final = model((x + delta)[None])[0].argmax().item()
    return delta, final == label if targeted else final != prediction


def attack(model, x, y=None, **options):
    """Norms with graphs (a list of B scalars) and successes (a list of B bools) of a batch."""
    labels = [None] * len(x) if y is None else y.tolist()
    deltas, success = zip(*(perturbation(model, x[i], labels[i], **options) for i in range(len(x))), strict=True)
    return [delta.norm() for delta in deltas], list(success)


def select_min(m, success, labels, correct):
    """MIN: of each class the smallest margin (misclassified: the largest) if it is in the batch's top fifth."""
    limit = max(1, int(0.2 * len(labels)))
    kept = []
    for is_correct, sign in ((True, 1), (False, -1)):
        fooled = [i for i in range(len(labels)) if success[i] and correct[i] == is_correct]
        top = sorted(fooled, key=lambda i: sign * m[i])[:limit]
        for label in set(labels):
            of_class = [i for i in fooled if labels[i] == label]
            if of_class:
                best = min(of_class, key=lambda i: sign * m[i])
                if best in top:
                    kept.append(best)
    return kept


def select_avg(m, success, labels, correct):
    return [i for i in range(len(labels)) if success[i]]


SELECT = {"min": select_min, "avg": select_avg}


def penalty(shrinkage, m, correct, lam, c, d, clip=50.0):
    """λR of one margin m (a scalar tensor), as REFERENCE's formulas have it."""
    if shrinkage == "lin":
        return -lam * c * m if correct else lam * d * m
    if shrinkage == "exp":
        if correct:
            return (lam * torch.exp(-c * m)).clamp(max=clip)
        return (lam * torch.exp(d * m.clamp(max=math.log(clip / lam + 1) / d))).clamp(max=clip)
    if correct:
        return (lam / (1 + c * m)).clamp(max=clip)
    return lam / (1 - d * m.clamp(max=(1 - lam / clip) / d))


def regulariser(model, x, y, aggregation, shrinkage, lam, c, d, relative=False, **options):
    """The whole term of a batch, and the samples it is made of."""
    correct = (model(x).argmax(1) == y).tolist()
    m, success = attack(model, x, y, **options)
    if relative:
        m = [m_i / x_i.norm() for m_i, x_i in zip(m, x, strict=True)]
    kept = SELECT[aggregation]([m_i.item() for m_i in m], success, y.tolist(), correct)
    terms = [penalty(shrinkage, m[i], correct[i], lam, c, d) for i in kept]
    return sum(terms) / len(x), set(kept)


def tanh_mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 10))


def conv_max_pool():
    convolutions = nn.Conv2d(1, 6, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 8, 2), nn.ReLU()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32, 10))


def group_norm():
    convolution = nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(72, 10))


NETS = {net.__name__: net for net in (tanh_mlp, conv_max_pool, group_norm)}
