#!/usr/bin/env python3
"""The MNIST job in Python, as the peer of //examples/mnist: DistributedDataParallel on Gloo, batch norm local.

  mnist_peer.py train DATA_DIR EPOCHS BATCH [--tuned]   prints the images/s of each epoch, all ranks together
  mnist_peer.py first DATA.csv BATCH                    prints a line when the first step is done, then ends
  mnist_peer.py csv DATA.csv                            for each line on stdin: the seconds that pandas' C reader takes

--tuned: channels-last, and batches cut from one tensor instead of collated samples.
"""
import gzip
import os
import sys
import time


def build():
    from torch import nn
    block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2, 2))

    class ConvNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer1, self.layer2 = block(1, 32), block(32, 64)
            self.fc = nn.Sequential(nn.Flatten(), nn.Linear(64 * 2 * 2, 128), nn.ReLU(), nn.Linear(128, 10))

        def forward(self, x):
            return self.fc(self.layer2(self.layer1(x)))

    return ConvNet()


def read_idx(folder):
    import numpy as np
    import torch
    images, labels = [], []
    for part in ("train", "t10k"):
        raw = gzip.open(f"{folder}/{part}-images-idx3-ubyte.gz").read()
        images.append(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28))
        labels.append(np.frombuffer(gzip.open(f"{folder}/{part}-labels-idx1-ubyte.gz").read(), np.uint8, offset=8))
    return torch.from_numpy(np.concatenate(images)).float() / 255, torch.from_numpy(np.concatenate(labels)).long()


def read_csv(path):
    import pandas
    import torch
    table = pandas.read_csv(path, header=None, engine="c").values
    return torch.from_numpy(table[:, 1:]).float().view(-1, 1, 28, 28) / 255, torch.from_numpy(table[:, 0].copy()).long()


def worker(rank, world, port, mode, path, epochs, batch, tuned):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    images, labels = read_idx(path) if mode == "train" else read_csv(path)
    part = random_split(range(len(labels)), [0.8, 0.1, 0.1], generator=torch.Generator().manual_seed(1206))[0].indices
    torch.manual_seed(1206)
    model = build()
    if tuned:
        for p in model.parameters():
            if p.dim() == 4:
                p.data = torch.empty_like(p.data, memory_format=torch.channels_last).copy_(p.data)
        part = torch.tensor(part)
        images, labels = images[part], labels[part]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=5e-5)
    sampler = DistributedSampler(range(len(part)), num_replicas=world, rank=rank, seed=1206)

    def tuned_batches():
        order = torch.tensor(list(sampler))
        for begin in range(0, len(order), batch):
            index = order[begin:begin + batch]
            yield images.index_select(0, index), labels.index_select(0, index)

    if not tuned:
        loader = DataLoader(Subset(TensorDataset(images, labels), part), batch_size=batch, sampler=sampler)
    model.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start, seen = time.perf_counter(), 0
        for x, y in tuned_batches() if tuned else loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            seen += len(y)
            if mode == "first":
                if rank == 0:
                    print("first step", loss.item(), flush=True)
                break
        if rank == 0 and mode == "train":
            print(seen * world / (time.perf_counter() - start), flush=True)
    dist.destroy_process_group()


def main():
    mode = sys.argv[1]
    if mode == "csv":
        import pandas
        for _ in sys.stdin:
            start = time.perf_counter()
            pandas.read_csv(sys.argv[2], header=None, engine="c").values
            print(time.perf_counter() - start, flush=True)
        return
    import torch.multiprocessing as mp
    args = [a for a in sys.argv[2:] if a != "--tuned"]
    epochs, batch = (int(args[1]), int(args[2])) if mode == "train" else (1, int(args[1]))
    import socket
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port, mode, args[0], epochs, batch, "--tuned" in sys.argv), nprocs=2)


if __name__ == "__main__":
    main()
