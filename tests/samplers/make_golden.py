#!/usr/bin/env python3
"""Writes distributed_sampler.txt: what torch.utils.data.DistributedSampler gives, hundreds of combinations.

A line: size replicas rank shuffle seed drop_last epoch : indices
"""
import itertools
import sys

from torch.utils.data import DistributedSampler

lines = []
sizes = [0, 1, 2, 3, 5, 7, 10, 16, 33]
combos = itertools.product(sizes, [1, 2, 3, 4, 8], [True, False], [0, 1206], [False, True], [0, 1, 1000003])
for n, replicas, shuffle, seed, drop_last, epoch in combos:
    if not shuffle and (seed != 0 or epoch > 1):
        continue
    if n == 0 and not drop_last:
        continue  # Python divides by zero here
    ranks = range(replicas) if n in (5, 10) else {0, replicas - 1}
    for rank in sorted(ranks):
        s = DistributedSampler(range(n), num_replicas=replicas, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        s.set_epoch(epoch)
        lines.append(f"{n} {replicas} {rank} {int(shuffle)} {seed} {int(drop_last)} {epoch} : " + " ".join(map(str, s)))
open(sys.argv[1] if len(sys.argv) > 1 else "distributed_sampler.txt", "w").write("\n".join(lines) + "\n")
