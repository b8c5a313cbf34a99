#!/usr/bin/env python3
"""Writes samplers.txt: what torch.utils.data.WeightedRandomSampler and SubsetRandomSampler give for a generator's seed.

A line: weighted replacement num_samples seed : weights : indices
or:     subset seed : indices of the subset : indices
"""
import os
import random

import torch
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler

random.seed(1206)
lines = []


def generator(seed):
    return torch.Generator().manual_seed(seed)


def text(numbers):
    return " ".join(map(repr, numbers))


for n in (1, 2, 5, 40, 300):
    weights = [random.choice([0.5, 1.0, random.random(), 1e-3, 1e3]) for _ in range(n)]
    if n > 2:
        weights[n // 2] = 0.0
    for seed in (0, 1206, 2**40):
        for replacement in (True, False):
            for count in {1, n // 2 or 1, n - 1 if n > 2 else n} | ({n, 3 * n} if replacement else set()):
                sampler = WeightedRandomSampler(weights, count, replacement, generator=generator(seed))
                lines.append(f"weighted {int(replacement)} {count} {seed} : {text(weights)} : {text(sampler)}")
        subset = random.sample(range(2 * n), n)
        lines.append(f"subset {seed} : {text(subset)} : {text(SubsetRandomSampler(subset, generator=generator(seed)))}")
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "samplers.txt")
open(path, "w").write("\n".join(lines) + "\n")
