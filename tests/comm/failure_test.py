#!/usr/bin/env python3
"""What the ranks say, and how soon, when one of them dies, stops, sleeps or does something else."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, "tests")
import junit

PROGRAM, REPORT = "tests/comm/failure_program", "comm/flight_report"


class Run:
    def __init__(self, backend, mode, ranks=3, timeout_ms=60000, wait=40):
        self.folder = tempfile.mkdtemp()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes = []
        for rank in range(ranks):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                       LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
            self.processes.append(subprocess.Popen([PROGRAM, backend, mode, str(timeout_ms), self.folder], env=env,
                                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        self.wait = wait

    def finish(self):
        """By rank: exit code, milliseconds of its line, the line."""
        self.lines = {}
        deadline = time.monotonic() + self.wait
        others = [r for r in range(len(self.processes)) if r != 1]
        try:
            for rank in others:
                out, err = self.processes[rank].communicate(timeout=max(1, deadline - time.monotonic()))
                last = out.strip().splitlines()[-1] if out.strip() else ""
                self.lines[rank] = (self.processes[rank].returncode, last, err)
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
        out, err = self.processes[1].communicate()
        end = [line for line in out.splitlines() if " end " in line]
        self.end_ms = int(end[0].split()[0]) if end else None
        self.victim = out
        return self

    def error(self, rank):
        code, line, err = self.lines[rank]
        assert code == 3 and " error " in line, (code, line, err)
        return int(line.split()[0]), line.split(" error ", 1)[1]


class Failures(unittest.TestCase):
    def check_named(self, run, limit_s, *wanted):
        for rank in (0, 2):
            at_ms, text = run.error(rank)
            if run.end_ms is not None:
                self.assertLess(at_ms - run.end_ms, limit_s * 1000, text)
            self.assertTrue(any(w in text for w in wanted), text)

    def test_a_dead_rank_on_shared_memory_is_named_within_2_seconds(self):
        for mode in ("kill", "exit", "large", "throw"):
            with self.subTest(mode):
                self.check_named(Run("shm", mode).finish(), 2, "rank 1 is gone (its process has ended)")

    def test_a_dead_rank_on_gloo_is_named_within_10_seconds(self):
        for mode in ("kill", "exit", "large"):
            with self.subTest(mode):
                run = Run("gloo", mode).finish()
                self.check_named(run, 10, "rank 1 is gone")
                self.assertIn("ALLREDUCE #101 (sum of Float [", run.error(0)[1])

    def test_a_rank_that_is_there_twice_and_another_world_size_are_named(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        started = []

        def start(rank, world_size):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
            started.append(subprocess.Popen([PROGRAM, "gloo", "none", "60000", ""], env=env, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True))
            return started[-1]

        try:
            start(0, 3)
            other = start(1, 4).communicate(timeout=30)[1]
            self.assertIn("the world size is 4 here, and 3 on rank 0", other)
            twins = [start(1, 3), start(1, 3)]
            while all(twin.poll() is None for twin in twins):
                time.sleep(0.02)
            loser = next(twin for twin in twins if twin.poll() is not None)
            self.assertRegex(loser.communicate()[1], r"rank 1 is there twice: .* \(process \d+\), and .* \(process \d+\)")
        finally:
            for process in started:
                process.kill()
                process.communicate()

    def test_a_dead_sender_is_named(self):
        run = Run("shm", "receive").finish()
        for rank in (0, 2):
            self.assertIn("RECV from rank 1 (tag 0, Float, 1000 elements): rank 1 is gone", run.error(rank)[1])
        run = Run("gloo", "receive").finish()
        for rank in (0, 2):
            self.assertIn("rank 1 is gone", run.error(rank)[1])

    def test_a_stopped_or_late_rank_is_named_at_the_timeout(self):
        for backend in ("shm", "gloo"):
            for mode in ("stop", "sleep"):
                with self.subTest(backend + " " + mode):
                    run = Run(backend, mode, timeout_ms=3000).finish()
                    texts = [run.error(rank)[1] for rank in (0, 2)]
                    self.assertTrue(any("ALLREDUCE #101 (sum of Float [1000]) timed out after 3000 ms: these ranks did "
                                        "not come: 1" in text for text in texts), texts)
                    for rank in (0, 2):
                        self.assertGreater(run.error(rank)[0] - run.end_ms, 2500)

    def test_a_stopped_rank_is_not_taken_for_dead(self):
        # Longer than any heartbeat; then it goes on, and so do the others.
        for backend in ("shm", "gloo"):
            run = Run(backend, "stop", timeout_ms=60000)
            time.sleep(10)
            self.assertEqual([p.poll() for p in run.processes], [None] * 3, backend)
            run.processes[1].send_signal(signal.SIGCONT)
            run.finish()
            self.assertEqual([run.lines[rank][0] for rank in (0, 2)], [0, 0], run.lines)

    def test_different_calls_are_named_when_they_are_checked(self):
        run = Run("gloo", "different").finish()
        for rank in (0, 2):
            self.assertIn("7", run.error(rank)[1])
            self.assertIn("ALLREDUCE", run.error(rank)[1])
        run = Run("shm", "different").finish()
        text = " ".join(run.error(rank)[1] for rank in (0, 2))
        self.assertIn("rank 1 calls ALLREDUCE #101 (sum of Float [7])", text)

    def test_flight_recorders_say_where_the_ranks_part(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                run = Run(backend, "sleep", timeout_ms=4000)
                time.sleep(2.5)
                run.processes[1].send_signal(signal.SIGUSR2)  # it hangs, and still writes
                run.finish()
                names = sorted(os.listdir(run.folder))
                self.assertEqual(names, [f"flight_rank_{rank}.json" for rank in range(3)])
                flight = json.load(open(os.path.join(run.folder, names[0])))
                self.assertEqual(flight["entries"][-1]["sequence"], 101)
                self.assertEqual(flight["entries"][-1]["state"], "failed")
                report = subprocess.run([REPORT, run.folder], stdout=subprocess.PIPE, text=True, check=True).stdout
                self.assertIn("3 of 3 ranks\n", report)
                self.assertIn(f"group world over {backend}: alike from #1 to #100; they part at #101:\n", report)
                self.assertIn("  rank 0: ALLREDUCE (sum of Float [1000]), failed", report)
                self.assertIn("  rank 1: never called it; its last is #100 ALLREDUCE", report)

    def test_the_report_refuses_what_is_no_record(self):
        folder = tempfile.mkdtemp()
        for content, wanted in ((None, "no file flight_rank_"), ("", "no file of a flight recorder"),
                                ('{"rank": 0}', "no file of a flight recorder"), ("[1]", "no file of a flight")):
            if content is not None:
                open(os.path.join(folder, "flight_rank_0.json"), "w").write(content)
            run = subprocess.run([REPORT, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn(wanted, run.stderr)
            self.assertEqual(len(run.stderr.splitlines()), 1)


if __name__ == "__main__":
    junit.main()
