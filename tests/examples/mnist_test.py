#!/usr/bin/env python3
"""The MNIST program as its users run it: small data, real processes, bad input."""
import gzip
import json
import os
import re
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path[:0] = ["tests", "tests/examples"]
import junit  # noqa: E402
from mnist_program import (CSV, ENV, LAUNCHER, PROGRAM, TIMED, alive, children, command, csv, folder, is_log_line,  # noqa: E402
                           metrics, row, run, untimed)

BY_HAND = os.path.abspath("examples/by_hand")



class Training(unittest.TestCase):
    def test_trains_and_writes_its_run(self):
        run_dir = os.path.join(folder(), "run")
        result = run("--epochs=6", "--run_dir=" + run_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"2 ranks on the CPU, \d+ threads? each")
        self.assertRegex(result.stdout, r"\ntest accuracy: 0\.\d{4}\n|\ntest accuracy: 1\.0000\n")
        self.assertRegex(result.stdout, r"\ntotal time: [\d.]+ s\n")
        self.assertEqual(sorted(os.listdir(run_dir)), ["checkpoints", "cnn.pt", "config.json", "metrics.jsonl", "ranks.jsonl", "report.html",
                                                       "report.png", "report.svg", "steps.jsonl"])
        rows = metrics(run_dir)
        self.assertEqual([m["epoch"] for m in rows], list(range(1, 7)))
        for key in ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate", "stop_counter") + TIMED:
            self.assertIn(key, rows[0])
        self.assertGreater(rows[-1]["val_accuracy"], 0.5)
        self.assertEqual(json.load(open(os.path.join(run_dir, "config.json")))["seed"], 1206)

    def test_two_runs_with_one_seed_are_the_same(self):
        dirs = [os.path.join(folder(), "run") for _ in range(3)]
        for d, seed in zip(dirs, (7, 7, 8)):
            self.assertEqual(run("--run_dir=" + d, f"--seed={seed}").returncode, 0)
        self.assertEqual(untimed(dirs[0]), untimed(dirs[1]))
        self.assertNotEqual(untimed(dirs[0]), untimed(dirs[2]))

    def test_resumes_where_it_was(self):
        whole, part = os.path.join(folder(), "run"), os.path.join(folder(), "run")
        self.assertEqual(run("--run_dir=" + whole, "--epochs=4").returncode, 0)
        self.assertEqual(run("--run_dir=" + part, "--epochs=2").returncode, 0)
        again = run("--run_dir=" + part, "--epochs=4")
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("there is a run in it", again.stderr)
        result = run("--resume=" + part, "--epochs=4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(untimed(part), untimed(whole))

    def test_resumes_into_a_new_folder_from_the_best_and_without_an_improvement(self):
        old, new, worse = (os.path.join(folder(), "run") for _ in range(3))
        self.assertEqual(run("--run_dir=" + old, "--epochs=3").returncode, 0)
        result = run("--resume=" + old, "--run_dir=" + new, "--epochs=4", "--lr=0")  # no better one to come
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("test accuracy", result.stdout)
        self.assertEqual(run("--resume=" + old, "--run_dir=" + worse, "--epochs=1").returncode, 0)  # nothing left to do
        # From an earlier epoch: what comes again is not there twice.
        self.assertEqual(run("--resume=" + old + "/cnn.pt", "--epochs=4").returncode, 0)
        self.assertEqual([m["epoch"] for m in metrics(old)], [1, 2, 3, 4])

    def test_resume_overwrites_no_other_run_and_keeps_its_learning_rate(self):
        old, other = os.path.join(folder(), "run"), os.path.join(folder(), "run")
        for d in (old, other):
            self.assertEqual(run("--run_dir=" + d, "--epochs=1", "--lr=0.03").returncode, 0)
        result = run("--resume=" + old, "--run_dir=" + other)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("there is another run in it", result.stderr)
        self.assertEqual(run("--resume=" + old, "--epochs=2").returncode, 0)
        self.assertEqual(run("--resume=" + old, "--epochs=3", "--lr=0.01").returncode, 0)
        self.assertEqual([m["learning_rate"] for m in metrics(old)], [0.03, 0.03, 0.01])
        self.assertEqual(json.load(open(old + "/config.json"))["lr"], 0.01)
        config = open(old + "/config.json").read()
        checkpoint = old + "/checkpoints/" + open(old + "/checkpoints/latest").read().strip()
        with open(checkpoint, "r+b") as f:
            f.truncate(1000)
        self.assertNotEqual(run("--resume=" + checkpoint, "--epochs=9", "--lr=0.5").returncode, 0)
        self.assertEqual(open(old + "/config.json").read(), config)

    def test_resume_keeps_data_and_seed(self):
        old = os.path.join(folder(), "run")
        self.assertEqual(run("--run_dir=" + old, "--epochs=1").returncode, 0)
        for flags, path, want in ((["--seed=5"], CSV, "seed"), ([], csv(300), "data"), (["--pixel_scale=1"], CSV, "pixel_scale")):
            result = run("--resume=" + old, *flags, csv_path=path)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(want, result.stderr)

    def test_resume_latest_takes_the_newest_run_below_the_users_folder(self):
        where = folder()
        env = {**ENV, "BUILD_WORKING_DIRECTORY": where}
        self.assertEqual(run("--run_dir=runs/a", env=env).returncode, 0)
        self.assertTrue(os.path.exists(os.path.join(where, "runs/a/cnn.pt")))
        result = run("--resume=latest", "--epochs=3", env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(metrics(os.path.join(where, "runs/a"))), 3)

    def test_pt_path_is_a_folder_or_a_name(self):
        d = folder()
        for pt, file in ((d + "/new/", "new/cnn.pt"), (d + "/newer", "newer/cnn.pt"), (d + "/x/best.pt", "x/best.pt")):
            self.assertEqual(run("--pt_path=" + pt, "--epochs=1").returncode, 0)
            self.assertTrue(os.path.exists(os.path.join(d, file)))

    def test_one_rank_needs_no_group(self):
        result = run("--nproc_per_node=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 rank on the CPU", result.stdout)

    def test_four_ranks_and_more_than_samples_in_a_part(self):
        result = run("--nproc_per_node=4", csv_path=csv(30))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_batch_norm_local_and_half_precision(self):
        self.assertEqual(run("--sync_batch_norm=false").returncode, 0)
        self.assertEqual(run("--amp=bf16").returncode, 0)
        d = os.path.join(folder(), "run")
        result = run("--amp=fp16", "--batch_size=8", "--log_every=1", "--run_dir=" + d, csv_path=csv(40))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("65536", open(os.path.join(d, "steps.jsonl")).read())
        self.assertEqual(metrics(d)[0]["loss_scale"], 65536)
        self.assertEqual(metrics(d)[0]["skipped_steps"], 0)

    def test_loss_scalers_resume_and_are_told_of(self):
        small = csv(40)
        for scaler in ((), ("--loss_scale=1024",)):
            flags = ("--amp=fp16", "--batch_size=8", "--max_grad_norm=1", *scaler)
            whole, part = os.path.join(folder(), "run"), os.path.join(folder(), "run")
            result = run("--run_dir=" + whole, "--epochs=2", *flags, csv_path=small)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, "scale 1024, 0 skipped" if scaler else "scale 65536, 0 skipped")
            self.assertEqual(run("--run_dir=" + part, "--epochs=1", *flags, csv_path=small).returncode, 0)
            self.assertEqual(run("--resume=" + part, "--epochs=2", *flags, csv_path=small).returncode, 0)
            self.assertEqual(untimed(part), untimed(whole))
        # From a fixed scale to another, to one that adapts itself, back, and to none.
        for epoch, flags, scale in ((3, ("--amp=fp16", "--loss_scale=64"), 64), (4, ("--amp=fp16",), 65536),
                                    (5, ("--amp=fp16", "--loss_scale=32"), 32), (6, (), None)):
            result = run("--resume=" + part, f"--epochs={epoch}", "--batch_size=8", *flags, csv_path=small)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(metrics(part)[-1].get("loss_scale"), scale)

    def test_numerics_groups_and_rates(self):
        d = os.path.join(folder(), "run")
        flags = ("--scale_lr=sqrt", "--decay_biases_and_norms=false", "--deterministic", "--matmul_precision=high", "--max_grad_value=0.1")
        result = run("--run_dir=" + d, "--epochs=1", "--lr=0.1", "--weight_decay=0.01", "--amp=bf16", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        config = json.load(open(d + "/config.json"))
        self.assertEqual([config[k] for k in ("scale_lr", "deterministic", "matmul_precision", "amp", "lr")],
                         ["sqrt", True, "high", "bf16", 0.1])
        self.assertAlmostEqual(metrics(d)[0]["learning_rate"], 0.1 * 2 ** 0.5)
        self.assertNotIn("loss_scale", metrics(d)[0])
        # The rate of the run is kept, and one that is given is scaled too.
        self.assertEqual(run("--resume=" + d, "--epochs=2", *flags[1:]).returncode, 0)
        self.assertIn("give --lr too", run("--resume=" + d, "--epochs=2", *flags).stderr)
        self.assertEqual(run("--resume=" + d, "--epochs=3", "--lr=0.05", *flags).returncode, 0)
        self.assertAlmostEqual(metrics(d)[1]["learning_rate"], 0.1 * 2 ** 0.5)
        self.assertAlmostEqual(metrics(d)[2]["learning_rate"], 0.05 * 2 ** 0.5)
        config = json.load(open(d + "/config.json"))
        self.assertAlmostEqual(config["lr"], 0.05)
        self.assertAlmostEqual(config["weight_decay"], 0.01)

    def test_lines_instead_of_the_bar(self):
        result = run("--log_every=2")
        self.assertRegex(result.stdout, r"(?m)^epoch: 1, step: 2, loss: \d+\.\d+, rank: 0$")
        self.assertRegex(result.stdout, r"(?m)^epoch: 1, step: 2, loss: \d+\.\d+, rank: 1$")
        self.assertRegex(result.stdout, r"(?m)^epoch: 2, early-stopping counter: \d+, accuracy: \d\.\d+$")

    def test_a_large_batch_is_one_short_batch_and_a_warning(self):
        result = run("--batch_size=100000")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("one short batch", result.stderr)
        self.assertEqual(result.stderr.count("one short batch"), 1)

    def test_under_the_launcher(self):
        args = [LAUNCHER, "--nproc_per_node=2", "--standalone"] + command("--run_dir=" + os.path.join(folder(), "run"))
        result = subprocess.run(args, env=ENV, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2 ranks on the CPU", result.stdout)
        self.assertEqual(result.stdout.count("test accuracy"), 1)

    def test_omp_num_threads_takes_precedence(self):
        self.assertIn("3 threads each", run(env={**ENV, "OMP_NUM_THREADS": "3"}).stdout)
        self.assertIn("4 threads each", run("--threads=4", env={**ENV, "OMP_NUM_THREADS": "3"}).stdout)

    def test_idx_files(self):
        d = folder()
        for part, n in (("train", 200), ("t10k", 50)):
            with gzip.open(f"{d}/{part}-images-idx3-ubyte.gz", "wb") as f:
                f.write(struct.pack(">IIII", 0x803, n, 28, 28) + bytes(random.Random(1).randrange(256) for _ in range(n * 784)))
            with open(f"{d}/{part}-labels-idx1-ubyte", "wb") as f:
                f.write(struct.pack(">II", 0x801, n) + bytes(i % 10 for i in range(n)))
        for flag in ("--data_dir=", "--mnist_file_path="):
            result = run(flag + d, csv_path=None)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_by_hand_gives_a_checkpoint(self):
        d = folder()
        result = subprocess.run([LAUNCHER, "--nproc_per_node=2", "--standalone", BY_HAND, "2", CSV], cwd=d, env=ENV,
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("epoch 2: accuracy", result.stdout)
        self.assertTrue(os.path.exists(d + "/by_hand.pt"))

    def test_help_shows_the_flags_with_their_defaults(self):
        text = " ".join(run("--help").stdout.split())
        for flag in ("gpu", "epochs", "lr", "weight_decay", "batch_size", "mnist_file_path", "seed", "master_addr", "port",
                     "pt_path", "patience", "nproc_per_node", "backend", "amp", "sync_batch_norm", "data_dir", "run_dir",
                     "resume", "log_every"):
            self.assertIn(f"--{flag} (", text)
        self.assertIn("the run's folder", text)


class BadInput(unittest.TestCase):
    def expect(self, want, *flags, csv_path=CSV, timeout=20, **kwargs):
        start = time.time()
        result = run(*flags, csv_path=csv_path, timeout=timeout, **kwargs)
        self.assertNotEqual(result.returncode, 0, result.stdout)
        errors = [line for line in result.stderr.splitlines() if line.strip() and not is_log_line(line)]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertIn(want, errors[0])
        self.assertLess(time.time() - start, timeout)

    def bad_csv(self, want, line):
        self.expect(want, csv_path=csv(20, extra=[line]))

    def test_csv(self):
        good = row(3, random.Random(0))
        self.expect("no such file", csv_path="/nowhere/x.csv")
        empty = os.path.join(folder(), "empty.csv")
        open(empty, "w").close()
        self.expect("no rows", csv_path=empty)
        self.bad_csv("row 21, column 784", good.rsplit(",", 1)[0])
        self.bad_csv("row 21, column 786", good + ",1")
        self.bad_csv("row 21, column 5: 'a'", ",".join(["1", "2", "3", "4", "a"] + ["0"] * 780))
        self.bad_csv("row 21, column 5: '-1'", ",".join(["1", "2", "3", "4", "-1"] + ["0"] * 780))
        self.bad_csv("row 21, column 5: pixel 256", ",".join(["1", "2", "3", "4", "256"] + ["0"] * 780))
        self.bad_csv("label 10", "10" + good[1:])

    def test_idx(self):
        d = folder()
        self.expect("train-images-idx3-ubyte", "--data_dir=" + d, csv_path=None)
        open(d + "/train-images-idx3-ubyte", "wb").write(struct.pack(">IIII", 0x803, 10, 28, 28) + b"x" * 100)
        open(d + "/train-labels-idx1-ubyte", "wb").write(struct.pack(">II", 0x801, 10) + bytes(10))
        self.expect("truncated", "--data_dir=" + d, csv_path=None)
        open(d + "/train-images-idx3-ubyte", "wb").write(struct.pack(">IIII", 0x999, 10, 28, 28) + bytes(7840))
        self.expect("wrong magic number", "--data_dir=" + d, csv_path=None)

    def test_flags(self):
        for flag, want in (("--batch_size=0", "--batch_size=0"), ("--batch_size=-4", "--batch_size=-4"),
                           ("--epochs=0", "--epochs=0"), ("--lr=-1", "--lr=-1"), ("--lr=nan", "--lr=nan"),
                           ("--patience=0", "--patience=0"), ("--port=99999", "--port=99999"),
                           ("--gpu=x", "'x' is no device number"), ("--amp=fp8", "--amp=fp8"),
                           ("--lr=1e308", "--lr=1e+308"), ("--threads=100000", "--threads=100000"),
                           ("--nproc_per_node=5000", "--nproc_per_node=5000"), ("--master_addr=", "--master_addr"),
                           ("--master_addr=no.such.host", "no.such.host can't be resolved"),
                           ("--pixel_scale=0", "--pixel_scale=0"), ("--backend=carrier-pigeon", "known: auto, shm, gloo"),
                           ("--flight_recorder=/nowhere/at/all", "--flight_recorder=/nowhere/at/all: no folder"),
                           ("--backend=mpi", "mpirun"), ("--backend=nccl", "nccl"), ("--nproc_per_node=-1", "--nproc_per_node=-1"),
                           ("--scale_lr=cubic", "known: none, linear, sqrt"), ("--matmul_precision=low", "known: highest, high"),
                           ("--max_grad_norm=-1", "--max_grad_norm=-1"), ("--max_grad_value=nan", "--max_grad_value=nan"),
                           ("--loss_scale=-2", "--loss_scale=-2"), ("--loss_scale=8", "no loss scaling with --amp=auto on the CPU"),
                           ("--frobnicate", "frobnicate"), ("stray", "unexpected argument 'stray'"),
                           ("--data_dir=/tmp", "give one of them")):
            self.expect(want, flag)

    def test_a_gpu_that_is_not_there(self):
        self.expect("there is no GPU here", "--gpu=0")

    def test_ranks_that_disagree(self):
        env = {**ENV, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        self.expect("the launcher started 2 ranks", "--nproc_per_node=3", env=env)
        self.expect("WORLD_SIZE is not set", env={**ENV, "RANK": "0"})

    def test_a_rank_that_never_comes_is_named(self):
        env = {**ENV, "RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost"}
        with socket.create_server(("", 0)) as server:
            env["MASTER_PORT"] = str(server.getsockname()[1])
        self.expect("these did not come: 1, 2", "--timeout=3", env=env)
        self.expect("no store at localhost", "--timeout=3", env={**env, "RANK": "1"})

    def test_a_run_folder_in_use(self):
        d = os.path.join(folder(), "run")
        first = subprocess.Popen(command("--epochs=1000", "--patience=1000", "--run_dir=" + d), env=ENV, stdout=subprocess.PIPE, text=True)
        while "run folder" not in first.stdout.readline():
            self.assertIsNone(first.poll())
        self.expect("run in it" if os.path.exists(d + "/metrics.jsonl") else "", "--run_dir=" + d)
        while not os.path.exists(d + "/checkpoints/latest"):
            self.assertIsNone(first.poll())
        self.expect("another run is using it", "--resume=" + d)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=20)

    def test_standard_output_that_is_full(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run(command("--epochs=1", "--run_dir=" + folder() + "/run"), env=ENV, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("standard output could not be written", result.stderr)

    def test_a_port_in_use(self):
        with socket.create_server(("", 0)) as server:
            self.expect("is in use", f"--port={server.getsockname()[1]}")

    def test_a_split_with_an_empty_part(self):
        self.expect("leaves part", csv_path=csv(5))

    def test_pt_path_that_cannot_be_written(self):
        self.expect("/proc/nowhere", "--pt_path=/proc/nowhere/")

    def test_a_full_disk_leaves_the_last_good_checkpoint(self):
        # A small file system of its own, in a mount namespace of its own.
        d = folder()
        script = (f"mount -t tmpfs -o size=400k none {d} && {' '.join(command('--pt_path=' + d + '/', '--run_dir=' + folder() + '/run', '--epochs=3'))}; "
                  f"code=$?; ls -la {d} >&2; head -c 4 {d}/cnn.pt | od -c | head -1 >&2; exit $code")
        for unshare in (["unshare", "-Urm"], ["unshare", "-m"]):
            if subprocess.run(unshare + ["true"], capture_output=True).returncode == 0:
                break
        else:
            self.skipTest("no mount namespace can be made here")
        result = subprocess.run(unshare + ["sh", "-c", script], env=ENV, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertIn("No space left on device", result.stderr)
        self.assertIn("cnn.pt", result.stderr)
        after_error = [line for line in result.stderr.splitlines() if not is_log_line(line)][1:]
        self.assertNotIn("cnn.pt.tmp", "\n".join(after_error))

    def test_a_checkpoint_of_another_model_or_a_damaged_one(self):
        self.expect("no such file or folder", "--resume=/nowhere/x.pt", "--run_dir=" + folder() + "/run")
        bad = os.path.join(folder(), "bad.pt")
        open(bad, "wb").write(b"no checkpoint at all")
        self.expect("bad.pt: damaged", "--resume=" + bad, "--run_dir=" + folder() + "/run")
        d = folder()
        subprocess.run([LAUNCHER, "--standalone", BY_HAND, "1", CSV], cwd=d, env=ENV, check=True, capture_output=True, timeout=60)
        self.expect("it has no 'model'", "--resume=" + d + "/by_hand.pt", "--run_dir=" + folder() + "/run")

    def test_a_loss_that_is_no_number(self):
        self.expect("not a finite number", "--lr=1e30", "--epochs=5")


class Failures(unittest.TestCase):
    def start(self, *flags):
        args = command("--epochs=10000", "--patience=10000", "--run_dir=" + os.path.join(folder(), "run"), *flags)
        process = subprocess.Popen(args, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "1/10000" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        return process

    def test_a_killed_rank_stops_the_others_and_is_named(self):
        for victim in (0, 1, 2):
            process = self.start("--nproc_per_node=3")
            ranks = children(process.pid)
            self.assertEqual(len(ranks), 3)
            start = time.time()
            os.kill(ranks[victim], signal.SIGKILL)
            out, err = process.communicate(timeout=30)
            self.assertLess(time.time() - start, 10)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(f"rank {victim} (process {ranks[victim]}) was killed by signal 9", err)
            named = f"rank {victim} is gone" if victim else "rank 0) is gone"
            self.assertIn(named, err)
            self.assertFalse(any(alive(p) for p in ranks))

    def test_a_stopped_rank_is_noticed_by_the_timeout(self):
        for victim in (0, 1):
            process = self.start("--timeout=3")
            ranks = children(process.pid)
            os.kill(ranks[victim], signal.SIGSTOP)
            start = time.time()
            out, err = process.communicate(timeout=40)
            self.assertLess(time.time() - start, 25)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("(rank 0) is gone" if victim == 0 else "rank 1 is gone", err)
            self.assertFalse(any(alive(p) for p in ranks))

    def test_ctrl_c_stops_all_and_leaves_none(self):
        process = self.start()
        ranks = children(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
        self.assertEqual(process.returncode, 75, err)
        self.assertRegex(err, "stopped by a signal (in|after) epoch ")
        self.assertFalse(any(alive(p) for p in ranks))


if __name__ == "__main__":
    junit.main()
