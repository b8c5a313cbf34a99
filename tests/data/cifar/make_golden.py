#!/usr/bin/env python3
"""Writes small archives in the four published formats, next to this script: cifar-10-binary.tar.gz, cifar-10-python.tar.gz,
cifar-100-binary.tar.gz and cifar-100-python.tar.gz, and pickles of arrays, arrays_<protocol>.pkl, and refused ones.

The published pickles are Python 2's (protocol 2, str for bytes); Python 3 can't write those, so the machine's instructions are
put together here. That they are right is checked with torchvision's own classes."""
import io
import os
import pickle
import struct
import tarfile
import tempfile

import numpy
import torchvision

HERE = os.path.dirname(os.path.abspath(__file__))
TEN = "airplane automobile bird cat deer dog frog horse ship truck".split()
PER_FILE = 2


def pixels(index):
    """Those of the index-th picture: a different number for each channel, row and column."""
    c, y, x = numpy.indices((3, 32, 32))
    return ((index * 40 + c * 80 + y * 2 + x) % 256).astype(numpy.uint8).reshape(-1)


def text(s):
    s = s.encode()
    return b"U" + bytes([len(s)]) + s


def number(n):
    return b"K" + bytes([n])


def listed(items):
    return b"](" + b"".join(items) + b"e"


def array(a):
    """As Python 2's numpy pickles it."""
    data = a.tobytes()
    return (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + number(a.shape[0]) + b"M"
            + struct.pack("<H", a.shape[1]) + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
            + b"K\x00tb\x89T" + struct.pack("<i", len(data)) + data + b"tb")


def dictionary(**entries):
    return b"\x80\x02}(" + b"".join(text(k) + v for k, v in entries.items()) + b"u."


def archive(name, folder, files):
    with tarfile.open(os.path.join(HERE, name), "w:gz", compresslevel=9) as tar:
        for file, data in files.items():
            info = tarfile.TarInfo(f"{folder}/{file}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def main():
    binary, python = {}, {}
    files = [(f"data_batch_{i}", f"data_batch_{i}") for i in range(1, 6)] + [("test_batch", "test_batch")]
    for f, (file, _) in enumerate(files):
        indices = [f * PER_FILE + i for i in range(PER_FILE)]
        labels = [i % 10 for i in indices]
        binary[file + ".bin"] = b"".join(bytes([label]) + pixels(i).tobytes() for label, i in zip(labels, indices))
        python[file] = dictionary(batch_label=text("a batch"), labels=listed(map(number, labels)),
                                  data=array(numpy.stack([pixels(i) for i in indices])))
    binary["batches.meta.txt"] = ("\n".join(TEN) + "\n\n").encode()
    python["batches.meta"] = dictionary(num_cases_per_batch=number(PER_FILE), label_names=listed(map(text, TEN)))
    archive("cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary)
    archive("cifar-10-python.tar.gz", "cifar-10-batches-py", python)

    fine, coarse = [f"fine_{i}" for i in range(100)], [f"coarse_{i}" for i in range(20)]
    binary, python = {}, {}
    for f, file in enumerate(("train", "test")):
        indices = [f * 3 + i for i in range(3)]
        f_labels, c_labels = [99 - i for i in indices], [19 - i for i in indices]
        binary[file + ".bin"] = b"".join(bytes([c, l]) + pixels(i).tobytes() for c, l, i in zip(c_labels, f_labels, indices))
        python[file] = dictionary(fine_labels=listed(map(number, f_labels)), coarse_labels=listed(map(number, c_labels)),
                                  data=array(numpy.stack([pixels(i) for i in indices])))
    binary["fine_label_names.txt"], binary["coarse_label_names.txt"] = "\n".join(fine).encode(), "\n".join(coarse).encode()
    python["meta"] = dictionary(fine_label_names=listed(map(text, fine)), coarse_label_names=listed(map(text, coarse)))
    archive("cifar-100-binary.tar.gz", "cifar-100-binary", binary)
    archive("cifar-100-python.tar.gz", "cifar-100-python", python)

    # torchvision reads them.
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in (("cifar-10-python", torchvision.datasets.CIFAR10), ("cifar-100-python", torchvision.datasets.CIFAR100)):
            with tarfile.open(os.path.join(HERE, name + ".tar.gz")) as tar:
                tar.extractall(folder, filter="data")
            kind._check_integrity = lambda self: True
            torchvision.datasets.cifar.check_integrity = lambda *_: True
            data = kind(folder, train=False)
            first = 10 if kind is torchvision.datasets.CIFAR10 else 3
            assert (data.data[0].transpose(2, 0, 1).reshape(-1) == pixels(first)).all()
            assert data.targets[0] == (0 if first == 10 else 96), data.targets
            assert len(data.classes) == (10 if first == 10 else 100)

    arrays = {d: numpy.arange(6).astype(d).reshape(2, 3) for d in
              "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64".split()}
    arrays["fortran"] = numpy.asfortranarray(numpy.arange(24, dtype="int32").reshape(2, 3, 4))
    arrays["strided"] = numpy.arange(10)[::3]
    arrays["scalar"] = numpy.array(7)
    arrays["empty"] = numpy.zeros((0, 3), "float32")
    for protocol in (2, 4, 5):
        with open(os.path.join(HERE, f"arrays_{protocol}.pkl"), "wb") as file:
            pickle.dump(arrays, file, protocol)
    refused = {"big_endian": numpy.arange(3, dtype=">i4"), "objects": numpy.array([None, {}]), "wide": numpy.ones(2, "complex128"),
               "masked": numpy.ma.array([1, 2], mask=[0, 1]), "fields": numpy.zeros(2, [("a", "i4")]), "text": numpy.array(["ab"]),
               "function": os.system, "matrix": numpy.matrix([[1]])}
    for name, value in refused.items():
        with open(os.path.join(HERE, f"refused_{name}.pkl"), "wb") as file:
            pickle.dump(value, file, 2)


if __name__ == "__main__":
    main()
