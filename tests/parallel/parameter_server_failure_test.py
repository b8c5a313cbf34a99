#!/usr/bin/env python3
"""What is left of a run with a parameter server when a worker or a server is killed; what Python makes of its file."""
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = "tests/parallel/parameter_server_program"
PEER = os.environ.get("LOCKSTEP_PYTHON_PEER",
                      os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache/lockstep/python-peer-2.11.0/bin/python"))
PEER_ENV = {**os.environ, "LD_LIBRARY_PATH": os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")}
BACKENDS = ("shm", "gloo")


def run(mode, backend, servers, workers, steps, victim=-1, folder="-"):
    """By rank: exit code, standard output, standard error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = servers + workers
    processes = []
    for rank in range(world):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOG_logtostderr="1")
        arguments = [PROGRAM, mode, backend, str(servers), str(steps), str(victim), folder]
        processes.append(subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=60)
            results.append((process.returncode, out, err))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return results


def errors(err):
    return [line for line in err.splitlines() if "error: " in line]


class ParameterServerFailures(unittest.TestCase):
    def expect_error(self, result, text):
        code, out, err = result
        self.assertEqual(code, 1, (out, err))
        self.assertEqual(len(errors(err)), 1, err)
        self.assertIn(text, errors(err)[0])

    def test_asynchronous_workers_go_on_without_one_that_is_killed(self):
        # Also where they may not be far ahead of it: it no longer counts as the slowest.
        for backend in BACKENDS:
            for mode in ("async", "bounded"):
                for servers in (1, 2):
                    with self.subTest(f"{backend} {mode} {servers}"):
                        victim = servers + 1
                        results = run(mode, backend, servers, 3, 20, victim)
                        self.assertEqual(results[victim][0], -9)
                        for rank, (code, out, err) in enumerate(results):
                            if rank == victim:
                                continue
                            self.assertEqual((code, errors(err)), (0, []), (rank, out, err))
                            if rank >= servers:
                                self.assertEqual(out, "done\n")
                                continue
                            self.assertEqual(out.splitlines()[0], "served 43")  # 20 of each, 3 of the one that is gone
                            self.assertIn(f"server {rank} (rank {rank}): worker 1 (rank {victim}) is gone; the other "
                                          "workers go on", err)

    def test_synchronous_ranks_all_name_the_worker_that_is_killed(self):
        for backend in BACKENDS:
            for servers in (1, 2):
                with self.subTest(f"{backend} {servers}"):
                    victim = servers + 1
                    results = run("sync", backend, servers, 3, 20, victim)
                    self.assertEqual(results[victim][0], -9)
                    for rank, result in enumerate(results):
                        if rank != victim:
                            self.expect_error(result, f"worker 1 (rank {victim}) is gone")

    def test_all_ranks_name_the_server_that_is_killed(self):
        for backend in BACKENDS:
            for mode in ("sync", "async", "bounded"):
                for victim in (0, 1):
                    with self.subTest(f"{backend} {mode} {victim}"):
                        results = run(mode, backend, 2, 2, 200, victim)
                        self.assertEqual(results[victim][0], -9)
                        for rank in (2, 3):
                            self.expect_error(results[rank], f"server {victim} (rank {victim}) is gone")
                        # The other server hears of it from a worker, or sees all of them go.
                        self.expect_error(results[1 - victim], f"server {victim} (rank {victim}) is gone" if
                                          mode == "sync" or victim == 0 else "all workers are gone")

    def test_a_run_without_any_worker_left_is_an_error(self):
        code, out, err = run("async", "shm", 1, 1, 20, victim=1)[0]
        self.assertEqual(code, 1, (out, err))
        self.assertIn("parameter server: all workers are gone", errors(err)[0])

    def check_python(self, servers):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        results = run("sync", "shm", servers, 1, 5, folder=folder)
        self.assertEqual([code for code, _, _ in results], [0] * (servers + 1), results)
        code = ("import sys, torch\n"
                "file = torch.load(sys.argv[1], weights_only=True)\n"
                "net = torch.nn.ModuleDict({'a': torch.nn.Linear(6, 16), 'norm': torch.nn.BatchNorm1d(16),"
                " 'b': torch.nn.Linear(16, 3)})\n"
                "net.load_state_dict(file['model'])\n"
                "torch.optim.SGD(net.parameters(), 1, momentum=0.9).load_state_dict(file['optimizer'])\n"
                "assert len(file['optimizer']['state']) == 6 and file['steps'] == 5\n"
                "for name, value in file['model'].items(): print(name, '%.6f' % value.sum().item())\n")
        loaded = subprocess.run([PEER, "-W", "ignore", "-c", code, os.path.join(folder, "step-5.pth")], env=PEER_ENV,
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(loaded.returncode, 0, loaded.stderr)
        theirs = dict(line.split() for line in loaded.stdout.splitlines())
        ours = dict(line.split() for line in results[0][1].splitlines()[1:])
        self.assertEqual(list(theirs), list(ours))
        for name, value in ours.items():
            self.assertAlmostEqual(float(value), float(theirs[name]), delta=1e-4)

    @unittest.skipIf(not os.path.exists(PEER), f"there is no {PEER}")
    def test_python_loads_what_servers_have_saved_as_one_state_dict(self):
        for servers in (1, 3):
            self.check_python(servers)


if __name__ == "__main__":
    junit.main()
