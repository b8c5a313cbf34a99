#!/usr/bin/env python3
"""The toy runs of DataParallel and of a model on two devices."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

DATA_PARALLEL, MODEL_PARALLEL = "examples/data_parallel", "examples/model_parallel"
LAUNCHER, WITH_TRAINER = "launch/lockstep_run", "examples/with_trainer"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


class DataParallel(unittest.TestCase):
    def lines(self, *flags):
        result = run(DATA_PARALLEL, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines()

    def losses(self, *flags):
        return [line.split("loss ")[1] for line in self.lines(*flags) if line.startswith("epoch ")]

    def test_says_what_replicas_saw(self):
        lines = self.lines("--replicas=3")
        self.assertIn("devices: 3 (cpu, cpu, cpu)", lines)
        seen = sorted(line.strip() for line in lines if line.startswith("  replica"))
        self.assertEqual(seen, ["replica 0 on cpu: input [34, 20], output [34, 3]",
                                "replica 1 on cpu: input [34, 20], output [34, 3]",
                                "replica 2 on cpu: input [32, 20], output [32, 3]"])
        self.assertIn("  outside: input [100, 20], output [100, 3]", lines)
        self.assertTrue(any(re.match(r"time: \d", line) for line in lines))
        self.assertTrue(any(re.match(r"memory of the process: \d", line) for line in lines))

    def test_mistakes_are_one_line(self):
        for flag in ("--replicas=100000", "--replicas=-1", "--lr=nan", "--lr=-1", "--epochs=0", "--batch_size=0"):
            result = run(DATA_PARALLEL, flag)
            self.assertEqual((result.returncode, result.stderr[:len("error: " + flag.split("=")[0])]),
                             (1, "error: " + flag.split("=")[0]), result.stderr)

    def test_the_number_of_replicas_does_not_matter(self):
        one, two = self.losses("--replicas=1"), self.losses("--replicas=2")
        self.assertEqual(len(one), 10)
        self.assertLess(float(one[-1]), float(one[0]))
        for a, b in zip(one, two):
            self.assertAlmostEqual(float(a), float(b), delta=2e-4)

    def test_one_device_wraps_nothing(self):
        self.assertIn("devices: 1 (cpu); nothing is wrapped", self.lines("--replicas=1", "--epochs=1"))

    def test_wrong_flags_are_named(self):
        for flag, text in (("--replicas=-1", "--replicas=-1"), ("--gpu=a", "--gpu"), ("--gpu=99", "no device 99"),
                           ("--epochs=0", "--epochs=0"), ("--batch_size=0", "--batch_size=0"), ("more", "'more'")):
            result = run(DATA_PARALLEL, flag)
            self.assertEqual(result.returncode, 1, flag)
            self.assertIn(text, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


class ModelParallel(unittest.TestCase):
    def check(self, *command):
        result = run(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", result.stdout)]
        self.assertEqual(len(losses), 4, result.stdout)
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertIn("rank 0: net1 on", result.stdout)

    def test_alone(self):
        self.check(MODEL_PARALLEL)

    def test_inside_ddp(self):
        self.check(LAUNCHER, "--standalone", "--nproc_per_node=2", MODEL_PARALLEL)


class WithTrainer(unittest.TestCase):
    def test_learns_on_two_ranks_and_leaves_the_best(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/best.pt"
            result = run(LAUNCHER, "--standalone", "--nproc_per_node=2", WITH_TRAINER, path)
            self.assertEqual(result.returncode, 0, result.stderr)
            accuracies = [float(x) for x in re.findall(r"val accuracy: ([\d.]+)", result.stdout)]
            self.assertEqual(len(accuracies), 5, result.stdout)
            self.assertGreater(accuracies[-1], 0.9)
            self.assertTrue(os.path.exists(path))
            self.assertIn("a step takes 20 samples of a rank, 40 together", result.stderr)


if __name__ == "__main__":
    junit.main()
