#!/usr/bin/env python3
"""Files of events, read by a reader of our own and by TensorBoard itself.

TensorBoard is taken from Python's environment of the benchmarks, and its test skipped where it isn't there
(benchmarks/install_python_peer.sh installs it); LOCKSTEP_PYTHON_PEER names another one.
"""
import json
import math
import os
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = os.path.abspath("tests/metrics/event_program")
PEER = os.environ.get("LOCKSTEP_PYTHON_PEER",
                      os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache/lockstep/python-peer-2.11.0/bin/python"))
LAST = 1 << 40

READ_BY_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
run = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
run.Reload()
tags = run.Tags()
text = run.Tensors("config")[-1].tensor_proto.string_val[0].decode()
print(json.dumps({"scalars": sorted(tags["scalars"]), "tensors": tags["tensors"], "text": text,
                  "plugin": run.SummaryMetadata("config").plugin_data.plugin_name,
                  "loss": [[event.step, event.value] for event in run.Scalars("step/loss")]}))
"""


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, check = struct.unpack_from("<QI", data, at)
        assert check == masked(data[at:at + 8]), "the length's sum"
        event = data[at + 12:at + 12 + length]
        check, = struct.unpack_from("<I", data, at + 12 + length)
        assert check == masked(event), "the event's sum"
        yield event
        at += length + 16


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def fields(data):
    """Of a message, in order: number and value (an int, a float, or bytes)."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif key & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert key & 7 == 2, key
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        found.append((key >> 3, value))
    return found


class EventWriter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([PROGRAM, cls.folder + "/new/run"], check=True, timeout=60)
        cls.files = sorted(os.listdir(cls.folder + "/new/run"))

    def test_the_reader_knows_the_published_sums(self):
        self.assertEqual(crc32c(bytes(32)), 0x8A9136AA)  # RFC 3720, B.4
        self.assertEqual(crc32c(bytes(range(32))), 0x46DD794E)

    def test_frames_events_and_sums_are_right(self):
        self.assertEqual(len(self.files), 3)
        events = [fields(event) for event in records(open(f"{self.folder}/new/run/{self.files[0]}", "rb").read())]
        self.assertEqual(len(events), 203)
        for event in events:
            self.assertEqual([number for number, _ in event[:2]], [1, 2])
            self.assertGreater(event[0][1], 1.6e9)
        self.assertEqual(events[0][2:], [(3, b"brain.Event:2")])
        self.assertEqual(events[1][1:], [(2, 1), (7, b"\x08\x01")])  # a session starts with step 1
        summary = fields(dict(events[3 + 129])[5])
        self.assertEqual(events[3 + 129][1], (2, 130))
        loss, rate = (dict(fields(value)) for _, value in summary)
        self.assertEqual(loss, {1: b"step/loss", 2: struct.unpack("f", struct.pack("f", 1 / 130))[0]})
        self.assertEqual(rate, {1: b"step/rate", 2: 0.25})
        text = dict(fields(fields(dict(events[2])[5])[0][1]))
        self.assertEqual(text[1], b"config")
        self.assertEqual(fields(text[8]), [(1, 7), (2, b"\x12\x02\x08\x01"), (8, '    {"lr": 0.5, "name": "ü\ufffd"}'.encode())])

    def test_errors_name_the_file(self):
        for folder, want in (("/proc/none", "folder /proc/none: cannot be made"), ("/proc", "file /proc/events.out.tfevents.")):
            result = subprocess.run([PROGRAM, folder], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 1)
            self.assertIn(want, result.stderr)
            self.assertNotIn("Success", result.stderr)

    def test_tensorboard_reads_them_and_drops_what_was_done_again(self):
        if not os.path.exists(PEER):
            self.skipTest(f"there is no {PEER}")
        imported = subprocess.run([PEER, "-c", "import tensorboard"], capture_output=True, text=True, timeout=60)
        if imported.returncode != 0:
            self.skipTest("TensorBoard can't be imported: " + (imported.stderr.strip().splitlines() or ["?"])[-1])
        result = subprocess.run([PEER, "-W", "ignore", "-c", READ_BY_TENSORBOARD, self.folder + "/new/run"], capture_output=True,
                                text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        read = json.loads(result.stdout)
        self.assertEqual(read["scalars"], ["step/loss", "step/rate"])
        self.assertEqual(read["tensors"], ["config"])
        self.assertEqual(read["plugin"], "text")
        self.assertEqual(read["text"], '    {"lr": 0.5, "name": "ü\ufffd"}')
        self.assertEqual([step for step, _ in read["loss"]], [*range(1, 301), LAST])
        for step, value in read["loss"][:-1]:
            self.assertAlmostEqual(value, (1 if step <= 150 else 3) / step, places=6)
        self.assertTrue(math.isnan(read["loss"][-1][1]))


if __name__ == "__main__":
    junit.main()
