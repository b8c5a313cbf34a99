#!/usr/bin/env python3
"""The MNIST program on two hosts with two ranks each, under lockstep_run."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path[:0] = ["tests", "tests/examples", "tests/launch"]
import junit  # noqa: E402
from hosts import Hosts  # noqa: E402
from mnist_program import CSV, ENV, LAUNCHER, alive, children, command, folder, untimed  # noqa: E402

FLAGS = ("--epochs=4", "--patience=100", "--batch_size=8", "--log_every=1", "--save_every_steps=5")


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(2)
        self.launchers = []

    def tearDown(self):
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            launcher.communicate()
        self.hosts.close()

    def start(self, run_dir, *options):
        """Both hosts see the same folder, as on a cluster's file system."""
        self.launchers = [
            self.hosts.start(host, [LAUNCHER, "--nnodes=2", f"--node_rank={host}", "--master_addr=10.77.0.1", "--nproc_per_node=2",
                                    "--rdzv_conf=keep_alive_interval=0.5", *options, *command("--run_dir=" + run_dir, *FLAGS)],
                             env={**ENV, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for host in range(2)]

    def wait_for_steps(self, run_dir, count):
        deadline = time.time() + 60
        while time.time() < deadline:
            try:
                if len(open(run_dir + "/steps.jsonl").readlines()) >= count:
                    return
            except OSError:
                pass
            for launcher in self.launchers:
                self.assertIsNone(launcher.poll(), launcher.stderr.read() if launcher.poll() is not None else "")
            time.sleep(0.01)
        self.fail("no steps")

    def finish(self):
        ends = [launcher.communicate(timeout=120) for launcher in self.launchers]
        return [launcher.returncode for launcher in self.launchers], [err for _, err in ends]

    def expect_same_run(self, a, b):
        self.assertEqual(untimed(a), untimed(b))
        self.assertEqual(open(a + "/cnn.pt", "rb").read(), open(b + "/cnn.pt", "rb").read())

    def test_a_killed_rank_starts_both_hosts_again_and_the_run_ends_the_same(self):
        whole, part = (os.path.join(folder(), "run") for _ in range(2))
        self.start(whole)
        codes, errors = self.finish()
        self.assertEqual(codes, [0, 0], errors)
        self.assertEqual(json.load(open(whole + "/config.json"))["world_size"], 4)
        self.start(part, "--max_restarts=1")
        self.wait_for_steps(part, 8)
        os.kill(children(self.launchers[1].pid)[1], signal.SIGKILL)
        codes, errors = self.finish()
        self.assertEqual(codes, [0, 0], errors)
        self.assertIn("first failure: rank 3", errors[0])
        self.assertIn("all hosts start again (1 of 1 restarts)", errors[0])
        self.expect_same_run(whole, part)

    def test_without_restarts_a_killed_rank_ends_both_hosts(self):
        run_dir = os.path.join(folder(), "run")
        self.start(run_dir)
        self.wait_for_steps(run_dir, 3)
        ranks = [rank for launcher in self.launchers for rank in children(launcher.pid)]
        os.kill(ranks[2], signal.SIGKILL)
        codes, errors = self.finish()
        self.assertEqual(codes, [137, 137], errors)
        for error in errors:
            self.assertIn("first failure: rank 2", error)
        self.assertFalse(any(alive(rank) for rank in ranks))


if __name__ == "__main__":
    junit.main()
