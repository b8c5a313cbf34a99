#!/usr/bin/env python3
"""The MNIST program on two hosts with two ranks each, one of which is lost and started again."""
import json
import os
import signal
import sys
import time
import unittest

sys.path[:0] = ["tests", "tests/examples"]
import junit  # noqa: E402
import network  # noqa: E402

WHY_NOT = network.enter()
from mnist_program import LAUNCHER, PROGRAM, alive, children, command, csv, folder, metrics, untimed  # noqa: E402

LAYOUT = [[0, 1], [2, 3]]
FLAGS = ("--epochs=4", "--patience=100", "--batch_size=8", "--log_every=1", "--save_every_steps=5")


def start(hosts, port, data, *flags):
    """The processes by rank."""
    return {rank: hosts[host].start([PROGRAM, "--mnist_file_path=" + data, "--batch_size=16", *flags], RANK=str(rank),
                                    WORLD_SIZE="4", LOCAL_RANK=str(local), LOCAL_WORLD_SIZE="2",
                                    MASTER_ADDR=hosts[0].address, MASTER_PORT=str(port))
            for host, ranks in enumerate(LAYOUT) for local, rank in enumerate(ranks)}


def finish(processes):
    said = {rank: process.communicate(timeout=120) for rank, process in processes.items()}
    return said, {rank: process.returncode for rank, process in processes.items()}


@unittest.skipIf(WHY_NOT, WHY_NOT)
class ByHand(unittest.TestCase):
    def test_a_run_goes_on_from_its_checkpoint_after_a_host_was_lost(self):
        data, run_dir = csv(), os.path.join(folder(), "run")
        with network.Hosts(2) as hosts:
            processes = start(hosts, 29500, data, "--run_dir=" + run_dir, "--epochs=1000", "--patience=1000")
            while not os.path.exists(run_dir + "/metrics.jsonl") or len(metrics(run_dir)) < 2:
                self.assertEqual({p.poll() for p in processes.values()}, {None})
                time.sleep(0.02)
            for rank in (2, 3):
                processes[rank].kill()
            said, codes = finish(processes)
            for rank in (0, 1):
                self.assertEqual(codes[rank], 1, said)
                self.assertRegex(said[rank][1], f"rank {rank}: error: .*rank [23](, 3)? is gone", said)

            done = len(metrics(run_dir))
            processes = start(hosts, 29501, data, "--resume=" + run_dir, f"--epochs={done + 2}", "--patience=1000")
            said, codes = finish(processes)
            self.assertEqual(set(codes.values()), {0}, said)
            self.assertIn("CPU tensors over hierarchical; 2 hosts, ranks 0, 1 | 2, 3", said[0][1])
            self.assertIn("test accuracy", said[0][0])
            self.assertEqual([said[rank][0] for rank in (1, 2, 3)], [""] * 3, "rank 0 alone prints, not each host's first")
            self.assertEqual([m["epoch"] for m in metrics(run_dir)], list(range(1, done + 3)))


@unittest.skipIf(WHY_NOT, WHY_NOT)
class UnderTheLauncher(unittest.TestCase):
    def setUp(self):
        self.hosts = network.Hosts(2)
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
            self.hosts[host].start([LAUNCHER, "--nnodes=2", f"--node_rank={host}", "--master_addr=10.77.0.1", "--nproc_per_node=2",
                                    "--rdzv_conf=keep_alive_interval=0.5", *options, *command("--run_dir=" + run_dir, *FLAGS)])
            for host in range(2)]

    def start_elastic(self, host, run_dir, *options):
        self.launchers.append(self.hosts[host].start(
            [LAUNCHER, "--nnodes=1:2", "--rdzv_backend=c10d", "--rdzv_endpoint=10.77.0.1:29400", "--nproc_per_node=1",
             "--rdzv_conf=keep_alive_interval=0.5,last_call_timeout=0.2", *options, *command("--run_dir=" + run_dir, *FLAGS, "--epochs=1000")]))

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

    def test_a_late_host_is_taken_in_and_the_run_goes_on(self):
        run_dir = os.path.join(folder(), "run")
        self.start_elastic(0, run_dir)
        self.wait_for_steps(run_dir, 8)
        self.start_elastic(1, run_dir)
        while not children(self.launchers[1].pid):  # the ranks of the first start have ended
            self.assertEqual([launcher.poll() for launcher in self.launchers], [None, None])
            time.sleep(0.01)
        done = len(open(run_dir + "/steps.jsonl").readlines())
        self.wait_for_steps(run_dir, done + 8)
        self.launchers[1].send_signal(signal.SIGTERM)
        codes, errors = self.finish()
        self.assertEqual(codes, [75, 75], errors)
        self.assertIn("host host1 has come", errors[0])
        self.assertEqual(json.load(open(run_dir + "/config.json"))["world_size"], 2)
        self.expect_each_step_once(run_dir)

    def test_a_cut_link_leaves_the_run_to_the_host_of_the_meeting_and_the_other_may_come_back(self):
        run_dir = os.path.join(folder(), "run")
        self.start_elastic(0, run_dir, "--max_restarts=1")
        self.start_elastic(1, run_dir, "--max_restarts=1")
        self.wait_for_steps(run_dir, 8)
        self.assertEqual(json.load(open(run_dir + "/config.json"))["world_size"], 2)
        self.hosts[1].link(up=False)
        _, error = self.launchers.pop(1).communicate(timeout=60)  # it can't go on alone
        self.assertIn("the launcher at 10.77.0.1:29400, where the hosts meet, has gone", error)
        self.wait_for_steps(run_dir, self.steps_after_the_last_start(run_dir, world_size=1) + 8)
        self.hosts[1].link(up=True)
        self.start_elastic(1, run_dir, "--max_restarts=1")
        self.wait_for_steps(run_dir, self.steps_after_the_last_start(run_dir, world_size=2) + 8)
        self.launchers[0].send_signal(signal.SIGTERM)
        codes, errors = self.finish()
        self.assertEqual(codes, [75, 75], errors)
        self.assertRegex(errors[0], r"host host1 \(node 1\) has gone: nothing was heard of it")
        self.expect_each_step_once(run_dir)

    def expect_each_step_once(self, run_dir):
        steps = [(line["epoch"], line["step"]) for line in map(json.loads, open(run_dir + "/steps.jsonl"))]
        self.assertEqual([pair for pair in zip(steps, steps[1:])
                          if pair[1] not in ((pair[0][0], pair[0][1] + 1), (pair[0][0] + 1, 1))], [])

    def steps_after_the_last_start(self, run_dir, world_size):
        """Once ranks have been started in that number: how many steps were done before."""
        deadline = time.time() + 60
        while json.load(open(run_dir + "/config.json"))["world_size"] != world_size:
            self.assertLess(time.time(), deadline)
            self.assertEqual({launcher.poll() for launcher in self.launchers}, {None})
            time.sleep(0.02)
        return len(open(run_dir + "/steps.jsonl").readlines())

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
