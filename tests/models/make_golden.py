#!/usr/bin/env python3
"""Writes conv_net.pth with Python's ConvNet, after three SGD steps: {before, after: state_dict, input, target, losses}."""
import sys

import torch
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2, 2))
        self.layer1 = block(1, 32)
        self.layer2 = block(32, 64)
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(64 * 2 * 2, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(x)))


if __name__ == "__main__":
    torch.manual_seed(1206)
    model = ConvNet()
    clone = lambda: type(model.state_dict())((k, v.clone()) for k, v in model.state_dict().items())
    before = clone()
    x, y = torch.rand(16, 1, 28, 28), torch.randint(0, 10, (16,))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=5e-5)
    losses = []
    for _ in range(3):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.eval()
    torch.save({"before": before, "after": clone(), "input": x, "target": y, "losses": losses, "logits": model(x).detach()},
               sys.argv[1] if len(sys.argv) > 1 else "conv_net.pth")
