#!/usr/bin/env python3
"""Writes what Python saves, next to this script: everything.pth, legacy.pth (the older format), deflated.pth (the first with
its members deflated) and one file for each kind of thing that is refused, refused_<what>.pth."""
import argparse
import collections
import io
import os
import zipfile

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def everything():
    base = torch.arange(12.).view(3, 4)
    state = collections.OrderedDict(weight=base, bias=torch.ones(3))
    state._metadata = collections.OrderedDict({"": {"version": 1}, "layer": {"version": 2}})
    values = {
        "none": None, "true": True, "int": 7, "negative": -300, "large": 2**40, "huge": 2**70, "minus huge": -(2**70),
        "float": 0.1, "inf": float("inf"), "text": "ünïcode ☃", "empty text": "", "bytes": bytes(range(256)), "no bytes": bytearray(b""),
        "bytearray": bytearray(b"\x00\xff"), "complex": 1.5 - 2j, "list": [1, [2, []]], "tuple": (1, ("a",)), "set": {3, 5},
        "dict": {"a": {1: "one", (1, 2): "pair"}}, "counter": collections.Counter({"x": 3, "y": 1}),
        "default": collections.defaultdict(list, {"k": [1]}), "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1), "cpu": torch.device("cpu"), "namespace": argparse.Namespace(lr=0.1, names=["a"]),
        "numpy": [numpy.float64(2.5), numpy.float32(1.25), numpy.int64(-4), numpy.bool_(True), numpy.uint8(200)],
        "state": state, "parameter": torch.nn.Parameter(torch.full((2,), 4.)), "frozen": torch.nn.Parameter(torch.ones(1), requires_grad=False),
        "needs gradient": torch.ones(2, requires_grad=True),
        "transposed": base.t(), "part": base[1:, 1:3], "expanded": torch.tensor([5.]).expand(3), "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4), "strided": torch.arange(10)[::3], "shared": [base[0], base[2]],
        "conjugate": torch.tensor([1 + 2j]).conj(), "channels_last": torch.arange(24.).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "layout": torch.strided,
    }
    for dtype in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
                  "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex32"):
        values["of " + dtype] = torch.tensor([0, 1, 2]).to(getattr(torch, dtype))
    return values


def save(value, name, **options):
    torch.save(value, os.path.join(HERE, name), **options)


def refused():
    class Mine:
        def __reduce__(self):
            return os.system, ("false",)

    yield "quantised", torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    yield "sparse", torch.eye(2).to_sparse()
    yield "nested", torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    yield "meta", torch.ones(2, device="meta")
    yield "array", numpy.ones(2)
    yield "function", Mine()
    yield "class", argparse.ArgumentParser


if __name__ == "__main__":
    save(everything(), "everything.pth")
    save(everything(), "legacy.pth", _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(os.path.join(HERE, "everything.pth")) as stored, \
            zipfile.ZipFile(os.path.join(HERE, "deflated.pth"), "w", zipfile.ZIP_DEFLATED) as deflated:
        for member in stored.infolist():
            deflated.writestr(member.filename, stored.read(member))
    for what, value in refused():
        save(value, f"refused_{what}.pth")
    # What weights_only accepts, so that the test knows that it asks for no more: all but what is listed there.
    allowed = {k: v for k, v in everything().items() if k not in ("default", "namespace", "numpy")}
    buffer = io.BytesIO()
    torch.save(allowed, buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True)
    # Needs the package safetensors too.
    from safetensors.torch import save_file
    save_file({"weight": torch.arange(6.).view(2, 3), "half": torch.ones(3, dtype=torch.float16), "flag": torch.tensor([True, False]),
               "bf16": torch.full((2,), 1.5, dtype=torch.bfloat16), "scalar": torch.tensor(7), "empty": torch.empty(0, 2),
               "float8": torch.tensor([1., 2.]).to(torch.float8_e4m3fn), "unsigned": torch.tensor([65535], dtype=torch.uint16)},
              os.path.join(HERE, "python.safetensors"), metadata={"format": "pt", "note": "ünïcode"})
