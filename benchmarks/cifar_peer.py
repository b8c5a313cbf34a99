#!/usr/bin/env python3
"""The CIFAR-10 job in Python, as the peer of //examples/cifar10: DistributedDataParallel on Gloo, torchvision's transforms.

  cifar_peer.py train DATA_DIR BATCH STEPS [--channels_last]   prints the images/s of a second epoch, all ranks together
  cifar_peer.py transforms                                     for each line on stdin: the seconds a picture takes

ResNet-18 with the first layer for 32 × 32, random crops with padding, 2 ranks with 2 loader workers each.
"""
import os
import sys
import time


def read_batches(folder):
    import numpy as np
    parts = [np.fromfile(f"{folder}/cifar-10-batches-bin/data_batch_{i}.bin", np.uint8).reshape(-1, 3073) for i in range(1, 6)]
    records = np.concatenate(parts)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0].astype(int)


def worker(rank, port, folder, batch, steps, channels_last):
    import torch
    import torch.distributed as dist
    import torchvision
    from PIL import Image
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset, DistributedSampler
    from torchvision import transforms
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    images, labels = read_batches(folder)
    transform = transforms.Compose([transforms.RandomCrop(32, padding=4), transforms.ToTensor(),
                                    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])

    class Cifar(Dataset):  # as torchvision's
        def __len__(self):
            return len(labels)

        def __getitem__(self, i):
            return transform(Image.fromarray(images[i])), int(labels[i])

    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = torch.nn.Identity()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    model = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    sampler = DistributedSampler(range(len(labels)), num_replicas=2, rank=rank)
    loader = DataLoader(Cifar(), batch_size=batch, sampler=sampler, num_workers=2, drop_last=True,
                        persistent_workers=True, multiprocessing_context="fork")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        dist.barrier()
        start = time.perf_counter()
        for step, (x, y) in enumerate(loader):
            if step == steps:
                break
            if channels_last:
                x = x.to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
    if rank == 0:
        print(2 * batch * steps / seconds, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def train(folder, batch, steps, channels_last):
    import socket

    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (port, folder, batch, steps, channels_last), nprocs=2)


def transforms_alone():
    import numpy as np
    import torch
    from PIL import Image
    from torchvision import transforms
    torch.set_num_threads(1)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Resize((256, 256), antialias=True), transforms.RandomCrop(224),
                                    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    pictures = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 32, 3), np.uint8)) for i in range(64)]
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(8):
            torch.stack([transform(p) for p in pictures])
        print((time.perf_counter() - start) / (8 * 64), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "--channels_last" in sys.argv[5:])
    else:
        transforms_alone()
