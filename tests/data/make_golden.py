#!/usr/bin/env python3
"""Writes random_split.txt: what torch.utils.data.random_split gives. A line: n seed : indices of each part, with |."""
import sys

import torch
from torch.utils.data import random_split

lines = []
for n in (3, 10, 11, 13, 19, 101, 1000):
    for seed in (0, 1, 1206):
        try:
            parts = random_split(range(n), [0.8, 0.1, 0.1], generator=torch.Generator().manual_seed(seed))
        except Exception as error:  # noqa: BLE001
            print(n, error, file=sys.stderr)
            continue
        lines.append(f"{n} {seed} : " + " | ".join(" ".join(map(str, p.indices)) for p in parts))
open(sys.argv[1] if len(sys.argv) > 1 else "random_split.txt", "w").write("\n".join(lines) + "\n")
