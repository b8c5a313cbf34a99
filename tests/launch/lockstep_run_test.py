#!/usr/bin/env python3
"""The launcher with shell programs as ranks."""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = "launch/lockstep_run"
# Output as the ranks write it; its prefixes have a test of their own.
CLEAN = {**{k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}, "PET_PREFIX": "off"}


def run(*args, **env):
    return subprocess.run([PROGRAM, *args], env={**CLEAN, **env}, capture_output=True, text=True, timeout=50)


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class LockstepRun(unittest.TestCase):
    def test_sets_the_environment_of_each_rank(self):
        show = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR ${MASTER_PORT:+port} $1"'
        result = run("--nproc_per_node=3", "--standalone", "sh", "-c", show, "x", "--flag=of the program")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"{r} 3 {r} 3 localhost port --flag=of the program" for r in range(3)])

    def test_takes_address_and_port_in_every_spelling(self):
        for args in (["--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", "0"],
                     ["--nproc-per-node=1", "--master-addr=127.0.0.1", "--master-port=0", "--"]):
            result = run(*args, "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT")
            address, port = result.stdout.split()
            self.assertEqual(address, "127.0.0.1")
            self.assertGreater(int(port), 0)

    def test_threads_are_cores_by_ranks_unless_set(self):
        cores = len(os.sched_getaffinity(0))
        self.assertEqual(run("--nproc_per_node=1", "--standalone", "sh", "-c", "echo $OMP_NUM_THREADS").stdout.strip(), str(cores))
        self.assertEqual(run("--nproc_per_node=64", "--standalone", "sh", "-c", "echo $OMP_NUM_THREADS").stdout.split(),
                         [str(max(1, cores // 64))] * 64)
        self.assertEqual(run("--standalone", "sh", "-c", "echo $OMP_NUM_THREADS", OMP_NUM_THREADS="7").stdout.strip(), "7")
        self.assertEqual(run("--standalone", "sh", "-c", "echo $OMP_NUM_THREADS", OMP_NUM_THREADS="").stdout.strip(), str(cores))

    def test_ranks_are_bound_to_their_cores(self):
        cores = sorted(os.sched_getaffinity(0))
        show = [sys.executable, "-c", "import os; print(os.environ['RANK'], sorted(os.sched_getaffinity(0)))"]
        for bind, ranks in (("cores", 2), ("cores", len(cores) + 1), ("numa", 2)):
            result = run(f"--nproc_per_node={ranks}", "--standalone", f"--bind={bind}", *show)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"\Alockstep: local ranks are bound to [^\n]*\n\Z")
            seen = [eval(line.split(" ", 1)[1]) for line in result.stdout.splitlines()]
            self.assertEqual(len(seen), ranks)
            self.assertEqual(sorted({core for share in seen for core in share}), cores)
            if bind == "cores" and ranks <= len(cores):
                self.assertEqual(sum(map(len, seen)), len(cores), "no core is shared")
        result = run("--standalone", *show)
        self.assertEqual((result.stdout, result.stderr), (f"0 {cores}\n", ""))

    def test_without_gpus_there_are_no_ranks_for_them(self):
        result = run("--standalone", "--nproc_per_node=gpu", "true", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--nproc_per_node=gpu: there is no GPU here", result.stderr)
        result = run("--standalone", "--nproc_per_node=auto", "sh", "-c", "echo $WORLD_SIZE", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(set(result.stdout.split()), {str(len(os.sched_getaffinity(0)))})

    def test_expendable_ranks_may_fail(self):
        body = "test $RANK = 2 && kill -9 $$; test $RANK = $FAILS && exit 5; echo done"
        result = run("--nproc_per_node=3", "--standalone", "--expendable_from=1", "sh", "-c", body, FAILS="1")
        self.assertEqual((result.returncode, result.stdout), (0, "done\n"), result.stderr)
        self.assertRegex(result.stderr, r"rank 2 \(process \d+\) was killed by signal 9 \(Killed\); the others go on")
        result = run("--nproc_per_node=3", "--standalone", "--expendable_from=1", "sh", "-c", body, FAILS="0")
        self.assertEqual(result.returncode, 5, result.stderr)

    def test_a_rank_that_hangs_is_ended_whatever_the_interval_of_looks(self):
        result = run("--nproc_per_node=2", "--standalone", "--monitor_interval=1e7", "sh", "-c",
                     "test $RANK = 1 && exit 7; trap '' TERM; while true; do sleep 1; done")
        self.assertEqual(result.returncode, 7, result.stderr)

    def test_returns_the_code_of_the_rank_that_failed_and_ends_the_rest(self):
        start = time.time()
        result = run("--nproc_per_node=2", "--standalone", "sh", "-c", 'test $RANK = 0 && sleep 100; exit 7')
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.stderr, r"rank 1 \(process \d+\) ended with code 7")
        self.assertLess(time.time() - start, 20)

    def test_an_ignored_sigchld_is_no_hang(self):
        result = subprocess.run([PROGRAM, "--standalone", "sh", "-c", "exit 5"], capture_output=True, text=True, timeout=20,
                                preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 5)

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        result = run("--nproc_per_node=2", "--standalone", "sh", "-c", 'test $RANK = 1 && exit 3; trap "" TERM; while true; do sleep 1; done')
        self.assertEqual(result.returncode, 3)

    def test_names_a_killed_rank(self):
        result = run("--nproc_per_node=2", "--standalone", "sh", "-c", "test $RANK = 1 && kill -9 $$; sleep 100")
        self.assertEqual(result.returncode, 137)
        self.assertIn("killed by signal 9", result.stderr)

    def start_sleepers(self):
        process = subprocess.Popen([PROGRAM, "--nproc_per_node=2", "--standalone", "sh", "-c", "sleep 100 & echo $$ $!; wait"],
                                   stdout=subprocess.PIPE, text=True, env=CLEAN)
        pids = [int(p) for _ in range(2) for p in process.stdout.readline().split()]
        return process, pids

    def expect_gone(self, pids):
        deadline = time.time() + 10
        while any(alive(p) for p in pids) and time.time() < deadline:
            time.sleep(0.05)
        self.assertEqual([p for p in pids if alive(p)], [])

    def test_passes_signals_on_and_leaves_nothing(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process, pids = self.start_sleepers()
            process.send_signal(sig)
            self.assertEqual(process.wait(20), 128 + sig)
            self.expect_gone(pids)

    def test_its_own_death_ends_the_ranks(self):
        process, pids = self.start_sleepers()
        process.kill()
        process.wait()
        self.expect_gone(pids)  # the ranks, and what a shell started

    def test_starts_all_ranks_again_after_a_failure(self):
        body = ('echo "$RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID"; '
                'test $RANK = 1 && test $TORCHELASTIC_RESTART_COUNT -lt 2 && kill -9 $$; '
                'test $TORCHELASTIC_RESTART_COUNT -lt 2 && exec sleep 1; exit 0')
        result = run("--nproc_per_node=2", "--standalone", "--max_restarts=3", "sh", "-c", body)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("starting all ranks again (restart 2 of 3)", result.stderr)
        self.assertNotIn("restart 3 of 3", result.stderr)
        lines = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual(sorted(line[:3] for line in lines), sorted([str(r), str(c), "3"] for r in range(2) for c in range(3)))
        self.assertEqual(len({line[3] for line in lines}), 1, "one run")

    def test_gives_up_when_the_restarts_are_used_up(self):
        result = run("--nproc_per_node=1", "--standalone", "--max_restarts=2", "sh", "-c", "echo x; exit 9")
        self.assertEqual(result.returncode, 9)
        self.assertEqual(result.stdout, "x\n" * 3)
        result = run("--nproc_per_node=1", "--standalone", "--max_restarts=2", "/nowhere/program")
        self.assertEqual(result.returncode, 127)
        self.assertNotIn("again", result.stderr)

    def test_ranks_that_stop_to_be_started_later_are_no_failure(self):
        result = run("--nproc_per_node=2", "--standalone", "--max_restarts=2", "sh", "-c", "sleep 0.$RANK; echo x; exit 75")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (75, "x\n" * 2, ""))
        result = run("--nproc_per_node=2", "--standalone", "sh", "-c", "test $RANK = 0 && exit 75; sleep 0.3; exit 3")
        self.assertEqual(result.returncode, 3)
        # One that stops while another goes on for ever.
        start = time.time()
        result = run("--nproc_per_node=2", "--standalone", "--stop_grace=1", "sh", "-c",
                     "test $RANK = 0 && exit 75; exec sleep 100")
        self.assertEqual(result.returncode, 143)
        self.assertLess(time.time() - start, 20)

    def start_savers(self, *flags):
        """Ranks that take a second to save when they are told to stop."""
        body = (f"import os, signal, sys, time\n"
                f"def stop(*_):\n    os.write(1, b'saving\\n'); os.system('sleep 1'); os.write(1, b'saved\\n'); os._exit(75)\n"
                f"for s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT): signal.signal(s, stop)\n"
                f"os.write(1, b'ready\\n')\nwhile True: time.sleep(0.05)")
        process = subprocess.Popen([PROGRAM, "--nproc_per_node=2", "--standalone", *flags, sys.executable, "-c", body],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN)
        for _ in range(2):
            self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_waits_for_ranks_that_save_after_a_signal(self):
        for sig in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            process = self.start_savers("--max_restarts=3")
            process.send_signal(sig)
            out, err = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 75, err)
            self.assertEqual(out.count("saved"), 2)
        process = self.start_savers("--stop_grace=0.2")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
        self.assertEqual((process.returncode, out.count("saved")), (128 + signal.SIGTERM, 0))

    def test_one_wish_that_comes_twice_is_one(self):
        process = self.start_savers()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        self.assertEqual((process.returncode, out.count("saved")), (75, 2), err)

    def test_a_signal_that_was_ignored_from_the_start_stays_so(self):
        process = subprocess.Popen([PROGRAM, "--standalone", "sh", "-c", "echo ready; sleep 1"], stdout=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(20), 0)

    def test_ranks_that_end_well_after_a_signal_end_the_launcher_well(self):
        process = subprocess.Popen([PROGRAM, "--standalone", "sh", "-c", "trap 'echo heard' TERM; echo ready; sleep 1; sleep 1"],
                                   stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 0)

    def test_the_code_of_ranks_that_stop_is_an_option(self):
        result = run("--standalone", "--max_restarts=2", "--stop_exit_code=99", "sh", "-c", "exit 99")
        self.assertEqual((result.returncode, result.stderr), (99, ""))
        # A rank that dies of the wish to stop is not started again.
        process = subprocess.Popen([PROGRAM, "--standalone", "--max_restarts=2", "sh", "-c", "echo ready; exec sleep 100"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 128 + signal.SIGUSR1)
        self.assertNotIn("starting all ranks again", err)

    def test_a_second_signal_ends_at_once(self):
        process = self.start_savers()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "saving\n")
        time.sleep(0.2)  # what comes at once is the same wish
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertNotIn("saved", out)

    def test_a_rank_that_stands_still_hears_the_wish_to_end(self):
        process = subprocess.Popen([PROGRAM, "--standalone", "sh", "-c", "trap 'exit 0' TERM; echo $$; kill -STOP $$; sleep 0.1; exit 3"],
                                   stdout=subprocess.PIPE, text=True, env=CLEAN)
        rank = int(process.stdout.readline())
        while " T " not in open(f"/proc/{rank}/stat").read():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 0)

    def test_closed_streams_are_no_others(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        closed = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', PROGRAM, "--standalone", "--nproc_per_node=2", "--tee=3", "--log_dir=" + folder]
        body = "echo out $RANK; echo err $RANK >&2; test $RANK = 0 || exit 3"
        self.assertEqual(subprocess.run([*closed, "sh", "-c", body], env=CLEAN).returncode, 3)
        found = {}
        for root, _, names in os.walk(folder):
            for name in names:
                found[root[-1] + name] = open(os.path.join(root, name)).read()
        self.assertEqual(found, {f"{rank}std{stream}.log": f"{stream} {rank}\n" for rank in (0, 1) for stream in ("out", "err")})
        alone = [PROGRAM, "--standalone", "--prefix=on", "--nproc_per_node=2", "sh", "-c", body]
        result = subprocess.run(["sh", "-c", 'exec "$0" "$@" 2>&-', *alone], env=CLEAN, capture_output=True, text=True)
        self.assertEqual((result.returncode, sorted(result.stdout.split("\n"))), (3, ["", "[rank0]: out 0", "[rank1]: out 1"]))

    def test_an_error_output_that_nobody_reads_does_not_stop_it(self):
        read, write = os.pipe()
        os.set_blocking(write, False)
        try:
            while os.write(write, b"x" * 4096):
                pass
        except BlockingIOError:
            os.set_blocking(write, True)
        process = subprocess.Popen([PROGRAM, "--nproc_per_node=2", "--standalone", "sh", "-c", "echo $RANK $$; test $RANK = 1 && exit 3; exec sleep 100"],
                                   stdout=subprocess.PIPE, stderr=write, text=True, env=CLEAN)
        os.close(write)
        pids = dict(process.stdout.readline().split() for _ in range(2))
        self.expect_gone([int(pids["1"])])  # about which there is something to say
        process.send_signal(signal.SIGTERM)
        self.expect_gone([int(pids["0"])])
        os.close(read)
        self.assertEqual(process.wait(20), 128 + signal.SIGTERM)

    def test_an_error_output_that_has_gone_does_not_end_it(self):
        read, write = os.pipe()
        os.close(read)
        body = "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3; echo good"
        result = subprocess.run([PROGRAM, "--standalone", "--max_restarts=1", "sh", "-c", body], stdout=subprocess.PIPE, stderr=write, text=True, env=CLEAN)
        os.close(write)
        self.assertEqual((result.returncode, result.stdout), (0, "good\n"))

    def test_each_start_has_a_port_of_its_own(self):
        result = run("--standalone", "--max_restarts=2", "sh", "-c", "echo $MASTER_PORT; exit 3")
        self.assertEqual(len(set(result.stdout.split())), 3)

    def test_as_the_first_process_of_a_container_it_takes_notice_of_orphans(self):
        alone = next((way for way in (["unshare", "-pf"], ["unshare", "-Urpf"]) if subprocess.run([*way, "true"], capture_output=True).returncode == 0), None)
        if alone is None:
            self.skipTest("no process namespace can be had here")
        body = ("orphan=$(sh -c 'sleep 0.05 >&2 & echo $!'); for i in $(seq 500); do kill -0 $orphan 2>&- || break; sleep 0.02; done; "
                "kill -0 $orphan 2>&- || echo gone")
        result = subprocess.run([*alone, PROGRAM, "--standalone", "sh", "-c", body], env=CLEAN, capture_output=True, text=True, timeout=50)
        self.assertEqual((result.returncode, result.stdout), (0, "gone\n"), result.stderr)

    def test_a_thread_that_can_not_be_had_is_said(self):
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        if most != resource.RLIM_INFINITY:
            self.skipTest("stacks can't be made too large here")
        result = subprocess.run([PROGRAM, "--standalone", "true"], env=CLEAN, capture_output=True, text=True,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 46, most)))
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "error: no thread can be had: Resource temporarily unavailable; there is a limit of processes "
                                        "(ulimit -u, or the container's)\n")

    def test_a_rank_too_many_is_said(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        result = subprocess.run([PROGRAM, "--standalone", "--nproc_per_node=20", "--prefix=on", "sh", "-c", "exec sleep 100"], env=CLEAN, capture_output=True,
                                text=True, preexec_fn=limit)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Alockstep: cannot start rank \d+: Too many open files; there is a limit of open files \(ulimit -n\)\n\Z")

    def test_what_is_wrong_is_named(self):
        for args, want in ((["--nproc_per_node=0", "true"], "--nproc_per_node=0"),
                           (["--nproc_per_node=x", "true"], "--nproc_per_node=x"),
                           (["--master_port=70000", "true"], "--master_port=70000"),
                           (["--max_restarts=-1", "true"], "--max_restarts=-1"),
                           (["--master_addr= ", "true"], "--master_addr= : want the name or an address"),
                           (["--stop_grace=x", "true"], "--stop_grace=x"),
                           (["--frobnicate", "true"], "unknown option --frobnicate"),
                           (["--nproc_per_node"], "needs a value"),
                           ([], "no program")):
            result = run(*args)
            self.assertEqual(result.returncode, 2)
            self.assertIn(want, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
        self.assertEqual(run("--standalone", "/nowhere/program").returncode, 127)

    def test_a_program_that_can_not_be_run_so_is_said_how(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        for name in ("train.py", "train-it"):
            open(os.path.join(folder, name), "w").close()
        with open(os.path.join(folder, "from-windows"), "w") as script:
            script.write("#!/bin/sh\r\necho x\r\n")
            os.chmod(script.name, 0o755)
        for program, code, want in (("train.py", 127, "cannot run train.py: No such file or directory; programs are run as they are: "
                                                      "python3 train.py"),
                                    ("./train.py", 126, "cannot run ./train.py: Permission denied; programs are run as they are: "
                                                        "python3 ./train.py"),
                                    ("train-it", 127, "cannot run train-it: No such file or directory; is it ./train-it?"),
                                    ("./from-windows", 127, "cannot run ./from-windows: No such file or directory; it is there, but not the interpreter "
                                                            "that it names (its first line may end with a carriage return)"),
                                    ("nowhere", 127, "cannot run nowhere: No such file or directory")):
            result = subprocess.run([os.path.abspath(PROGRAM), "--standalone", program], cwd=folder, env={**CLEAN, "PATH": "/usr/bin:/bin"},
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, code)
            self.assertEqual(result.stderr.splitlines()[0], f"lockstep: {want}")


if __name__ == "__main__":
    junit.main()
