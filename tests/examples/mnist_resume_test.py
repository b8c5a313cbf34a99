#!/usr/bin/env python3
"""Runs of the MNIST program that are stopped, killed, damaged and started again."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path[:0] = ["tests", "tests/examples"]
import junit  # noqa: E402
from mnist_program import CSV, ENV, LAUNCHER, alive, children, command, csv, folder, metrics, run, untimed  # noqa: E402

INSPECT = os.path.abspath("checkpoint/inspect")
EXHAUSTIVE = os.environ.get("LOCKSTEP_EXHAUSTIVE") == "1"


def steps(run_dir):
    return [json.loads(line) for line in open(os.path.join(run_dir, "steps.jsonl"))]


def latest(run_dir):
    folder = os.path.join(run_dir, "checkpoints")
    return os.path.join(folder, open(os.path.join(folder, "latest")).read().strip())


def contents(path):
    """What is in a checkpoint, by key."""
    result = subprocess.run([INSPECT, path, "--json", "--stats"], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return {entry["key"]: entry for entry in map(json.loads, result.stdout.splitlines())}


class Runs(unittest.TestCase):
    def new_run(self):
        return os.path.join(folder(), "run")

    def start(self, *flags, wait_for_steps=0):
        """A run that has reported some steps."""
        run_dir = next(f for f in flags if f.startswith("--run_dir=")).split("=", 1)[1]
        process = subprocess.Popen(command(*flags), env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while True:
            try:
                if len(steps(run_dir)) >= wait_for_steps:
                    return process
            except (OSError, json.JSONDecodeError):
                pass
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else "")
            time.sleep(0.01)

    def expect_same_run(self, a, b):
        self.assertEqual(untimed(a), untimed(b))
        self.assertEqual(steps(a), steps(b))
        self.assertEqual(open(a + "/cnn.pt", "rb").read(), open(b + "/cnn.pt", "rb").read())


class Stopping(Runs):
    FLAGS = ("--epochs=6", "--patience=100", "--batch_size=8", "--log_every=1", "--amp=bf16", "--accumulate=2")

    def test_a_run_stopped_by_signals_equals_one_that_was_not(self):
        whole, part = self.new_run(), self.new_run()
        self.assertEqual(run("--run_dir=" + whole, *self.FLAGS).returncode, 0)
        flags, stops = ["--run_dir=" + part, *self.FLAGS], 0
        for sig in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            before = len(steps(part)) if os.path.exists(part + "/steps.jsonl") else 0
            process = self.start(*flags, wait_for_steps=before + 7)
            # To the launcher, or to one rank alone.
            (process.send_signal if sig != signal.SIGUSR1 else lambda s: os.kill(children(process.pid)[1], s))(sig)
            out, err = process.communicate(timeout=60)
            if process.returncode == 0:
                break  # it was quicker
            self.assertEqual(process.returncode, 75, err)
            self.assertRegex(err, r"stopped by a signal (in epoch \d+ after step \d+|after epoch \d+); to be resumed")
            flags, stops = ["--run_dir=" + part, "--resume=latest", *self.FLAGS], stops + 1
        self.assertGreater(stops, 0)
        self.assertEqual(run(*flags).returncode, 0)
        self.expect_same_run(whole, part)

    def test_the_code_is_a_flag_and_a_second_signal_ends_at_once(self):
        d = self.new_run()
        process = self.start("--run_dir=" + d, "--epochs=1000", "--patience=1000", "--log_every=1", "--stop_exit_code=99", wait_for_steps=2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 99)
        # A rank that hangs can't save; the second signal doesn't wait for it.
        lines = len(steps(d))
        process = self.start("--run_dir=" + d, "--resume=latest", "--epochs=1000", "--patience=1000", "--log_every=1",
                             wait_for_steps=lines + 4)
        ranks = children(process.pid)
        os.kill(ranks[1], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        until = time.time() + 0.3
        while time.time() < until:
            os.kill(ranks[1], signal.SIGSTOP)  # again, since the launcher lets it go on to hear the wish
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)
        self.assertFalse(any(alive(p) for p in ranks))


class Restarting(Runs):
    FLAGS = ("--epochs=5", "--patience=100", "--batch_size=8", "--log_every=1", "--save_every_steps=5")

    def whole(self):
        d = self.new_run()
        self.assertEqual(run("--run_dir=" + d, *self.FLAGS).returncode, 0)
        return d

    def test_all_ranks_are_started_again_and_go_on(self):
        part = self.new_run()
        process = self.start("--run_dir=" + part, "--max_restarts=2", *self.FLAGS, wait_for_steps=12)
        os.kill(children(process.pid)[1], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("starting all ranks again (restart 1 of 2)", err)
        self.expect_same_run(self.whole(), part)

    def launched(self, launcher, kill, where=None, run_dir=None):
        where = where or folder()
        args = [*launcher, *command(*self.FLAGS)] + (["--run_dir=" + run_dir] if run_dir else [])
        env = {**ENV, "BUILD_WORKING_DIRECTORY": where}
        process = subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=where)
        runs = os.path.join(where, "runs")
        deadline = time.time() + 60
        while time.time() < deadline:
            found = [run_dir] if run_dir else [os.path.join(runs, d) for d in (os.listdir(runs) if os.path.exists(runs) else [])]
            if found and os.path.exists(found[0] + "/steps.jsonl") and len(open(found[0] + "/steps.jsonl").readlines()) > 11:
                break
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        kill(process)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        found = [run_dir] if run_dir else [os.path.join(runs, d) for d in os.listdir(runs)]
        self.assertEqual(len(found), 1, "it goes on in its own folder")
        self.expect_same_run(self.whole(), found[0])
        return err

    def test_with_the_launcher_and_a_folder_of_its_own_choice(self):
        err = self.launched([LAUNCHER, "--nproc_per_node=2", "--standalone", "--max_restarts=1"],
                            lambda process: os.kill(children(process.pid)[0], signal.SIGKILL))
        self.assertIn("starting all ranks again (restart 1 of 1)", err)

    def test_with_torchrun(self):
        python = os.environ.get("LOCKSTEP_PYTHON_PEER") or os.path.expanduser("~/.cache/lockstep/python-peer-2.11.0/bin/python")
        if not os.path.exists(python):
            self.skipTest("there is no Python with PyTorch here; benchmarks/install_python_peer.sh installs one")

        def kill_a_rank(process):
            ranks = [p for p in children(process.pid) if "mnist" in open(f"/proc/{p}/cmdline").read()]
            os.kill(ranks[0], signal.SIGKILL)

        self.launched([python, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc_per_node=2",
                       "--max_restarts=1"], kill_a_rank, run_dir=self.new_run())

    def test_a_restart_without_a_checkpoint_begins_anew(self):
        part = self.new_run()
        process = self.start("--run_dir=" + part, "--max_restarts=2", *self.FLAGS[:-1], "--save_every_epochs=3", wait_for_steps=3)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("restart 1 of 2", err)
        self.assertEqual(untimed(part), untimed(self.whole()))

    def test_a_restart_never_takes_up_what_another_launch_began(self):
        other = self.whole()
        before = untimed(other)
        result = run("--run_dir=" + other, "--max_restarts=2", "--epochs=6", "--patience=100")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("there is a run in it"), 3)
        self.assertEqual(untimed(other), before)

    def test_a_restart_of_a_run_that_was_resumed_into_a_new_folder(self):
        old, new = self.whole(), self.new_run()
        process = self.start("--resume=" + old, "--run_dir=" + new, "--max_restarts=1", "--epochs=300", "--patience=1000",
                             "--batch_size=8", "--log_every=1", "--save_every_epochs=0", wait_for_steps=3)
        os.kill(children(process.pid)[0], signal.SIGKILL)  # before it has saved anything
        lines = len(steps(new))
        while len(steps(new)) < lines + 30 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, err)
        self.assertEqual(steps(new)[0]["epoch"], 6)


class Resuming(Runs):
    def test_latest_and_best(self):
        d = self.new_run()
        self.assertEqual(run("--run_dir=" + d, "--epochs=4", "--lr=0.01", "--patience=50").returncode, 0)
        rows = metrics(d)
        best = max(rows, key=lambda m: m["val_accuracy"])["epoch"]
        names = sorted(f for f in os.listdir(d + "/checkpoints") if f.endswith(".pth"))
        self.assertIn(len(names), (3, 4))  # the last three, and the best where it is none of them
        result = run("--run_dir=" + d, "--resume=best", "--epochs=5", "--patience=50")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([m["epoch"] for m in metrics(d)], [1, 2, 3, 4, 5])
        # From the best on it was measured anew, and what had come after it is not listed any more.
        again = [m["epoch"] for m, before in zip(metrics(d), rows) if m["seconds"] != before["seconds"]]
        self.assertEqual(again, list(range(best + 1, 5)))
        listed = json.load(open(d + "/checkpoints/checkpoints.json"))["checkpoints"]
        self.assertEqual([one["epoch"] for one in listed], sorted(one["epoch"] for one in listed))
        self.assertIn("there is no whole checkpoint",
                      run("--resume=best", "--run_dir=" + self.empty_run(d), "--epochs=5").stderr)

    def empty_run(self, like):
        d = self.new_run()
        os.makedirs(d + "/checkpoints")
        shutil.copy(like + "/metrics.jsonl", d)
        return d

    def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(self):
        whole = self.new_run()
        flags = ("--epochs=3", "--patience=50", "--log_every=1")
        self.assertEqual(run("--run_dir=" + whole, *flags).returncode, 0)
        rng = random.Random(5)

        def truncate(path):
            os.truncate(path, os.path.getsize(path) // 2)

        def flip(path):
            with open(path, "r+b") as file:
                file.seek(rng.randrange(os.path.getsize(path)))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))

        for damage in (truncate, flip, lambda path: open(path, "wb").close(), os.remove):
            part = self.new_run()
            shutil.copytree(whole, part)
            damaged = latest(part)
            damage(damaged)
            result = run("--run_dir=" + part, "--resume=latest", *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(os.path.basename(damaged), result.stderr)
            self.assertIn("taking an older one", result.stderr)
            self.expect_same_run(whole, part)

    def test_other_numbers_of_ranks_keep_the_batch(self):
        d = self.new_run()
        flags = ("--patience=50", "--log_every=1")
        process = self.start("--run_dir=" + d, "--nproc_per_node=2", "--epochs=1000", "--batch_size=8", *flags, wait_for_steps=30)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75)
        for ranks, batch in ((4, 4), (1, 16), (3, 16)):
            epochs = len(metrics(d)) + 2
            result = subprocess.run([a for a in command("--run_dir=" + d, "--resume=latest", f"--nproc_per_node={ranks}", *flags)
                                     if not a.startswith(("--batch_size", "--epochs"))] + [f"--epochs={epochs}"],
                                    env=ENV, capture_output=True, text=True, timeout=90)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"going on with {ranks} rank", result.stderr)
            config = json.load(open(d + "/config.json"))
            self.assertEqual((config["batch_size"], config["world_size"]), (batch, ranks))
            self.assertEqual("doesn't divide by 3 ranks" in result.stderr, ranks == 3)
        self.assertEqual([m["epoch"] for m in metrics(d)], list(range(1, len(metrics(d)) + 1)))

    def test_flags_are_kept_from_the_run_unless_they_are_given_and_others_are_said(self):
        d = self.new_run()
        self.assertEqual(run("--run_dir=" + d, "--epochs=1", "--batch_size=16", "--accumulate=3", "--amp=bf16").returncode, 0)
        args = [a for a in command("--resume=" + d, "--epochs=2") if not a.startswith("--batch_size")]
        result = subprocess.run(args, env=ENV, timeout=60, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        config = json.load(open(d + "/config.json"))
        self.assertEqual((config["batch_size"], config["accumulate"]), (16, 3))
        self.assertIn('the run had --amp="bf16", now it is "auto"', result.stderr)
        self.assertEqual(run("--resume=" + d, "--epochs=3", "--batch_size=8", "--accumulate=1").returncode, 0)
        config = json.load(open(d + "/config.json"))
        self.assertEqual((config["batch_size"], config["accumulate"]), (8, 1))

    def test_the_best_weights_stay_where_the_run_has_put_them(self):
        d, best = self.new_run(), os.path.join(folder(), "best.pt")
        self.assertEqual(run("--run_dir=" + d, "--pt_path=" + best, "--epochs=2").returncode, 0)
        self.assertEqual(run("--resume=" + d, "--epochs=3").returncode, 0)
        self.assertFalse(os.path.exists(d + "/cnn.pt"))
        new = self.new_run()
        self.assertEqual(run("--resume=" + d, "--run_dir=" + new, "--epochs=3").returncode, 0)  # nothing left to train
        self.assertEqual(open(new + "/cnn.pt", "rb").read(), open(best, "rb").read())

    def test_a_finished_run_that_had_stopped_early_stays_so(self):
        d = self.new_run()
        flags = ("--run_dir=" + d, "--epochs=30", "--patience=1", "--lr=0")
        self.assertEqual(run(*flags).returncode, 0)
        rows = metrics(d)
        self.assertLess(len(rows), 5)
        self.assertEqual(run("--resume=latest", *flags).returncode, 0)
        self.assertEqual(metrics(d), rows)

    def test_lines_of_others_in_a_metrics_file(self):
        d = self.new_run()
        self.assertEqual(run("--run_dir=" + d, "--epochs=1").returncode, 0)
        with open(d + "/metrics.jsonl", "a") as file:
            file.write('{"epoch": "x"}\n[1]\nnonsense\n')
        result = run("--resume=" + d, "--epochs=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([m["epoch"] for m in metrics(d)], [1, 2])
        self.assertIn("say what to go on from", run("--resume=").stderr)
        for bad in ("folder", "fifo"):
            listed = d + "/checkpoints/checkpoints.json"
            os.path.isdir(listed) and os.rmdir(listed) or os.path.exists(listed) and os.remove(listed)
            os.mkdir(listed) if bad == "folder" else os.mkfifo(listed)
            result = run("--resume=best", "--run_dir=" + d, "--epochs=3", timeout=30)
            self.assertEqual(result.returncode, 1)
            self.assertIn("checkpoints.json: no regular file", result.stderr)


class Killed(Runs):
    def saved(self, run_dir):
        """Differs once another checkpoint has been written."""
        latest = run_dir + "/checkpoints/latest"
        return os.lstat(latest).st_mtime_ns if os.path.lexists(latest) else 0

    def test_kills_at_any_moment_leave_a_run_that_ends_like_one_that_was_not_disturbed(self):
        kills = 200 if EXHAUSTIVE else 20
        flags = (f"--epochs={4 * kills}", "--patience=100000", "--batch_size=16", "--save_every_steps=1", "--nproc_per_node=2",
                 "--log_every=10", "--threads=1")
        csv_path = csv(200)
        whole, part = self.new_run(), self.new_run()
        begun = time.time()
        self.assertEqual(run("--run_dir=" + whole, *flags, csv_path=csv_path, timeout=3000).returncode, 0)
        spent = time.time() - begun
        rng = random.Random(99)
        done, resumed = 0, 0
        while done < kills:
            go_on = ["--resume=latest"] if os.path.exists(part + "/checkpoints/latest") else []
            if not go_on:
                shutil.rmtree(part, ignore_errors=True)
            process = subprocess.Popen(command("--run_dir=" + part, *flags, *go_on, csv_path=csv_path), env=ENV,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            # At any moment, the start's too; every other time once it has saved, however slow the machine is.
            before = self.saved(part)
            while done % 2 and self.saved(part) == before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.random() * min(1.6, spent / kills * 1.5))
            if process.poll() is not None:
                out, err = process.communicate()
                self.assertEqual(process.returncode, 0, err)
                break  # it came to its end
            if rng.random() < 0.5 and children(process.pid):
                os.kill(rng.choice(children(process.pid)), signal.SIGKILL)  # one rank before the rest
                time.sleep(rng.random() * 0.05)
            ranks = children(process.pid)
            process.kill()
            process.communicate()
            while any(alive(p) for p in ranks):
                time.sleep(0.005)
            done += 1
            if os.path.exists(part + "/checkpoints/latest"):
                resumed += 1
                contents(latest(part))
        self.assertGreaterEqual(resumed, done // 2)
        print(f"{done} kills, {resumed} with a checkpoint; undisturbed {spent:.1f} s", file=sys.stderr)
        result = run("--run_dir=" + part, "--resume=latest", *flags, csv_path=csv_path, timeout=3000)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.expect_same_run(whole, part)
        leftovers = [f for f in os.listdir(part + "/checkpoints") if ".tmp." in f]
        self.assertEqual(leftovers, [])
        a, b = ({k: v for k, v in contents(latest(d)).items() if k.startswith(("model", "optimizer"))} for d in (whole, part))
        self.assertGreater(len(a), 10)
        self.assertEqual(a, b)


if __name__ == "__main__":
    junit.main()
