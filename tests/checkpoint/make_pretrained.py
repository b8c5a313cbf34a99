#!/usr/bin/env python3
"""Writes weights of a small network as they are published, next to this script: pretrained.pth, a checkpoint of a wrapped
model, and pretrained_legacy.pth, a state dict as files had it before `num_batches_tracked`, in the older format. Every tensor
is filled with one number: 1 and so on, in the order of the state dict."""
import collections
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    net = torch.nn.Module()
    net.conv1 = torch.nn.Conv2d(3, 2, 3, bias=False)
    net.bn1 = torch.nn.BatchNorm2d(2)
    net.fc = torch.nn.Linear(2, 5)
    state = net.state_dict()
    for number, tensor in enumerate(state.values(), 1):
        tensor.fill_(number)
    wrapped = collections.OrderedDict(("module." + name, tensor) for name, tensor in state.items())
    torch.save({"epoch": 3, "state_dict": wrapped, "optimizer": None}, os.path.join(HERE, "pretrained.pth"))
    del state["bn1.num_batches_tracked"]
    torch.save(collections.OrderedDict(state), os.path.join(HERE, "pretrained_legacy.pth"), _use_new_zipfile_serialization=False)
