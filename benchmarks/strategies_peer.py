#!/usr/bin/env python3
"""One way to train MNIST's ConvNet in Python; rank 0 prints images/s of all together as JSON:
  strategies_peer.py WAY WORKERS BATCH STEPS
WAY: ddp, on Gloo, or data_parallel, which without GPUs is the module itself, on BATCH × WORKERS in WORKERS threads."""
import json
import os
import socket
import sys
import time


def net():
    from torch import nn
    block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(block(1, 32), block(32, 64),
                         nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)))


def train(model, batch, steps, barrier):
    import torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.rand(batch * steps, 1, 28, 28), torch.randint(10, (batch * steps,)))
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)
    for epoch in range(2):
        barrier()
        start = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        barrier()
        seconds = time.perf_counter() - start
    return batch * steps / seconds


def worker(rank, port, workers, batch, steps):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    model = torch.nn.parallel.DistributedDataParallel(net(), broadcast_buffers=False)
    rate = train(model, batch, steps, dist.barrier) * workers
    if rank == 0:
        print(json.dumps({"images_per_second": rate}), flush=True)
    dist.destroy_process_group()


def main():
    import torch
    way, workers, batch, steps = sys.argv[1], *map(int, sys.argv[2:])
    if way == "data_parallel":
        torch.set_num_threads(workers)  # as many as our replicas have
        print(json.dumps({"images_per_second": train(torch.nn.DataParallel(net()), batch * workers, steps, lambda: None)}))
        return
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(worker, (port, workers, batch, steps), nprocs=workers)


if __name__ == "__main__":
    main()
