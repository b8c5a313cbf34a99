#!/usr/bin/env python3
"""Python's side of checkpoint.cc: checkpoint_peer.py FOLDER MIB ROUNDS prints one JSON line."""
import json
import os
import statistics
import sys
import time

import torch

folder, mib, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
path = os.path.join(folder, "python.pth")
model = torch.nn.ParameterDict({f"p{i}": torch.nn.Parameter(torch.ones(4 << 20)) for i in range(mib // 16)})


def save():
    with open(path + ".tmp", "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


save()
seconds = {"open": [], "load": [], "save": []}
for _ in range(rounds):
    seconds["open"].append(timed(lambda: torch.load(path, mmap=True, weights_only=True)))
    seconds["load"].append(timed(lambda: model.load_state_dict(torch.load(path, weights_only=True))))
    seconds["save"].append(timed(save))
print(json.dumps({name: statistics.median(each) for name, each in seconds.items()}))
