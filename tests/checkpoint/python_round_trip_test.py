#!/usr/bin/env python3
"""Checkpoints go from Python to C++ and back, with real Python of the same PyTorch version.

Skipped where that isn't installed (benchmarks/install_python_peer.sh installs it); LOCKSTEP_PYTHON_PEER names another one.
"""
import os
import pwd
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = os.path.abspath("tests/checkpoint/round_trip")
GOLDEN = os.path.abspath("tests/checkpoint/make_golden.py")
PEER = os.environ.get("LOCKSTEP_PYTHON_PEER",
                      os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache/lockstep/python-peer-2.11.0/bin/python"))
ENV = {**os.environ, "LD_LIBRARY_PATH": os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")}


def python(code, *arguments):
    return subprocess.run([PEER, "-W", "ignore", "-c", code, *arguments], env=ENV, capture_output=True, text=True, timeout=120)


def missing():
    if not os.path.exists(PEER):
        return f"there is no {PEER}"
    result = python("import torch; print(torch.__version__)")
    if result.returncode != 0:
        return "Python's PyTorch can't be imported: " + (result.stderr.strip().splitlines() or ["?"])[-1]
    return None if result.stdout.startswith("2.11.0") else "Python's PyTorch is " + result.stdout.strip()


# Saves everything that weights_only accepts; and compares what came back.
EVERYTHING = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("golden", sys.argv[1])
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)
values = {k: v for k, v in golden.everything().items() if k not in ("default", "namespace", "numpy", "layout")}
for path in sys.argv[3:]:
    if sys.argv[2] == "save":
        torch.save(values, path, _use_new_zipfile_serialization=not path.endswith("legacy"))
        continue
    loaded = torch.load(path, weights_only=True)
    def compare(a, b, where):
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and a.shape == b.shape, where
            a, b = a.detach().resolve_conj(), b.detach().resolve_conj()
            if a.dtype is torch.complex32:
                a, b = a.to(torch.complex64), b.to(torch.complex64)
            elif not a.dtype.is_complex:
                a, b = a.double(), b.double()
            assert torch.equal(a, b), where
        elif isinstance(a, dict):
            assert type(a) is type(b) and list(a) == list(b), (where, type(b))
            for k in a:
                compare(a[k], b[k], f"{where}.{k}")
        elif isinstance(a, (list, tuple)):
            assert type(a) is type(b) and len(a) == len(b), (where, type(b))
            for i, (x, y) in enumerate(zip(a, b)):
                compare(x, y, f"{where}.{i}")
        else:
            assert a == b, (where, a, b)  # bytes and bytearray are equal
    compare(values, loaded, "")
    assert loaded["state"]._metadata == values["state"]._metadata
"""

# {model, optimizer, input} after some steps from the start, or from a file.
TRAIN = """
import sys, torch
source, target, steps = sys.argv[1:4]
for name, make in {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
                   "adam": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True, weight_decay=1e-3),
                   "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1)}.items():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    optimizer = make(model.parameters())
    input = torch.rand(5, 4)
    if source != "-":
        file = torch.load(source + name, weights_only=True)
        model.load_state_dict(file["model"])
        optimizer.load_state_dict(file["optimizer"])
        input = file["input"]
    for _ in range(int(steps)):
        optimizer.zero_grad()
        model(input).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "input": input}, target + name)
    print(model.weight.sum().item(), model.weight.abs().max().item(), model.bias.sum().item())
"""


# A torchvision network with running statistics that are no zeros and ones; saves its state, a picture, and what it makes of it.
RESNET = """
import sys, torch, torchvision
depth, path = sys.argv[1:3]
torch.manual_seed(3)
net = getattr(torchvision.models, "resnet" + depth)(weights=None)
with torch.no_grad():
    net(torch.rand(4, 3, 64, 64))
net.eval()
input = torch.rand(2, 3, 64, 64)
torch.save(net.state_dict(), path, _use_new_zipfile_serialization=not path.endswith("legacy"))
torch.save(input, path + ".input")
with torch.no_grad():
    torch.save(net(input), path + ".output")
"""

COMPARE = """
import sys, torch
ours, theirs = torch.load(sys.argv[1], weights_only=True)["output"], torch.load(sys.argv[2], weights_only=True)
print((ours - theirs).abs().max().item(), theirs.abs().max().item())
"""

MISSING = missing()
NO_TORCHVISION = MISSING or (python("import torchvision").returncode != 0 and "there is no torchvision")


@unittest.skipIf(MISSING, MISSING)
class PythonRoundTrip(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def python(self, code, *arguments):
        result = python(code, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [float(x) for x in result.stdout.split()]

    def ours(self, *arguments):
        result = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_everything_that_weights_only_accepts(self):
        there = [os.path.join(self.folder, form) for form in ("zip", "legacy")]
        self.python(EVERYTHING, GOLDEN, "save", *there)
        for file in there:
            self.ours("copy", file, file + ".back")
        self.python(EVERYTHING, GOLDEN, "compare", *[file + ".back" for file in there])

    def test_a_training_that_changes_sides(self):
        first, second, third = (os.path.join(self.folder, name) for name in ("first.", "second.", "third."))
        whole = self.python(TRAIN, "-", third, "9")
        self.python(TRAIN, "-", first, "3")
        for name in ("sgd", "adam", "adamw"):
            self.ours("train", name, first + name, second + name)
        mixed = self.python(TRAIN, second, third, "3")
        self.assertEqual(len(whole), 9)
        for a, b in zip(mixed, whole):
            self.assertAlmostEqual(a, b, delta=1e-5)
        result = subprocess.run([PROGRAM, "train", "adam", first + "adamw", third], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("it is of AdamW, not Adam", result.stderr)

    @unittest.skipIf(NO_TORCHVISION, NO_TORCHVISION)
    def test_torchvision_networks(self):
        for depth in ("18", "50"):
            for form in ("zip", "legacy"):
                path = os.path.join(self.folder, depth + form)
                self.python(RESNET, depth, path)
                self.ours("resnet", depth, path, path + ".ours")
                difference, largest = self.python(COMPARE, path + ".ours", path + ".output")
                self.assertLess(difference, 1e-5 * max(1, largest))


if __name__ == "__main__":
    junit.main()
