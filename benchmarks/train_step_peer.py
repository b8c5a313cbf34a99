#!/usr/bin/env python3
"""Python's side of train_step.cc: a training step of the MLP under DistributedDataParallel on Gloo.

  train_step_peer.py RANKS BLOCKS STEPS      prints {"python/gloo": seconds per step}, the median of the blocks' medians
"""
import json
import os
import socket
import statistics
import sys
import time


def worker(rank, world, port, blocks, steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    x, y = torch.randn(32, 784), torch.randint(10, (32,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()

    for _ in range(5):
        step()
    medians = []
    for _ in range(blocks):
        dist.barrier()
        step()
        each = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            each.append(time.perf_counter() - start)
        medians.append(statistics.median(each))
    if rank == 0:
        print(json.dumps({"python/gloo": statistics.median(medians)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    world, blocks, steps = map(int, sys.argv[1:4])
    mp.spawn(worker, args=(world, port, blocks, steps), nprocs=world)
