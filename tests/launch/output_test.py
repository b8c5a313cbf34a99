#!/usr/bin/env python3
"""What lockstep_run does with its ranks' output."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = "launch/lockstep_run"
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_"))}


def run(*args, **env):
    return subprocess.run([PROGRAM, "--standalone", *args], env={**ENV, **env}, capture_output=True, timeout=50)


def python(body):
    return [sys.executable, "-c", "import os, sys, time\nrank = int(os.environ['RANK'])\n" + body]


class Prefix(unittest.TestCase):
    def test_lines_begin_with_the_rank_where_there_are_several(self):
        show = "echo out $RANK; echo err $RANK >&2"
        result = run("--nproc_per_node=2", "sh", "-c", show)
        self.assertEqual(sorted(result.stdout.splitlines()), [b"[rank0]: out 0", b"[rank1]: out 1"])
        self.assertEqual(sorted(result.stderr.splitlines()), [b"[rank0]: err 0", b"[rank1]: err 1"])
        self.assertEqual(run("sh", "-c", show).stdout, b"out 0\n")
        self.assertEqual(sorted(run("--nproc_per_node=2", "--prefix=off", "sh", "-c", show).stdout.splitlines()), [b"out 0", b"out 1"])
        self.assertEqual(run("--prefix=on", "sh", "-c", show).stdout, b"[rank0]: out 0\n")

    def test_a_template_of_torchruns_is_taken(self):
        result = run("--role=trainer", "--prefix=on", "sh", "-c", "echo x",
                     TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name} ${rank} ${local_rank}> ")
        self.assertEqual(result.stdout, b"<trainer 0 0> x\n")

    def test_lines_stay_whole(self):
        body = "for i in range(200):\n  for part in range(10): os.write(1, bytes([97 + rank]) * 1000)\n  os.write(1, b'\\n')"
        lines = run("--nproc_per_node=3", *python(body)).stdout.splitlines()
        self.assertEqual(len(lines), 600)
        for line in lines:
            self.assertRegex(line, rb"\A\[rank(0\]: a{10000}|1\]: b{10000}|2\]: c{10000})\Z")

    def test_every_byte_comes_through(self):
        body = "data = bytes(b for b in range(256) if b != 10) * 3\nos.write(1, data + b'\\n'); os.write(1, b'no end of line')"
        data = bytes(b for b in range(256) if b != 10) * 3
        shown = data.replace(b"\r", b"\r[rank0]: ")  # it begins a line anew
        self.assertEqual(run("--prefix=on", *python(body)).stdout, b"[rank0]: " + shown + b"\n[rank0]: no end of line\n")

    def test_a_rank_never_waits_for_a_console_that_nobody_reads(self):
        done = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "done")
        body = f"for i in range(3000): os.write(1, b'x' * 999 + b'\\n')\nopen({done!r} + str(rank), 'w')"
        process = subprocess.Popen([PROGRAM, "--standalone", "--nproc_per_node=2", *python(body)], env=ENV, stdout=subprocess.PIPE)
        deadline = time.time() + 30
        while not all(os.path.exists(done + r) for r in "01") and time.time() < deadline:
            time.sleep(0.02)
        self.assertTrue(os.path.exists(done + "0") and os.path.exists(done + "1"))
        out, _ = process.communicate(timeout=30)  # and nothing is lost
        self.assertEqual(len(out.splitlines()), 6000)

    def test_a_console_that_goes_away_ends_what_writes_to_it(self):
        process = subprocess.Popen([PROGRAM, "--standalone", "--nproc_per_node=2", "sh", "-c", "while echo x; do :; done"],
                                   env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.read(1000)
        process.stdout.close()
        self.assertEqual(process.wait(30), 128 + 13)

    def test_what_got_away_from_a_rank_is_not_waited_for(self):
        start = time.time()
        result = run("--nproc_per_node=2", "sh", "-c", "setsid sleep 20 & echo x")
        self.assertEqual((result.returncode, result.stdout.count(b"x")), (0, 2))
        self.assertLess(time.time() - start, 19)

    def test_nor_is_what_writes_without_end(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        begun = os.path.join(folder, "begun")
        writer = python(f"os.fork(); os.fork()\nwhile os.write(1, b'\\n' * 60000): open({begun!r}, 'w')")
        # Lines are sooner written than looked through for so many texts: there is always more to read.
        filters = "--duplicate_stdout_filters=" + ",".join("abcdefghijklmnopqrstuvwxyz" * 3)
        result = run("--prefix=on", "--tee=1", "--log_dir=" + folder, filters, "sh", "-c",
                     'echo first; setsid "$@" & until test -e $BEGUN; do :; done; exit 3', "sh", *writer, BEGUN=begun)
        self.assertEqual((result.returncode, result.stdout.splitlines()[0]), (3, b"[default0]:first"))


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def files(self):
        found = {}
        for root, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(root, name)
                found["/".join(os.path.relpath(path, self.folder).split("/")[1:])] = open(path, "rb").read()
        return found

    SHOW = "echo out $RANK; echo err $RANK >&2"

    def test_redirects_go_to_files_alone(self):
        result = run("--nproc_per_node=2", "--log_dir=" + self.folder, "--redirects=0:3,1:1", "sh", "-c", self.SHOW)
        self.assertEqual(result.stdout, b"")
        self.assertIn(b"[rank1]: err 1\n", result.stderr)
        self.assertNotIn(b"err 0", result.stderr)
        self.assertEqual(self.files(), {"attempt_0/0/stdout.log": b"out 0\n", "attempt_0/0/stderr.log": b"err 0\n",
                                        "attempt_0/1/stdout.log": b"out 1\n"})

    def test_tee_goes_to_both_with_torchruns_prefix(self):
        result = run("--nproc_per_node=2", "--log_dir", self.folder, "-t3", "--rdzv_id=ignored", "sh", "-c", self.SHOW)
        self.assertEqual(sorted(result.stdout.splitlines()), [b"[default0]:out 0", b"[default1]:out 1"])
        self.assertEqual(len(self.files()), 4)

    def test_each_start_has_its_own_files(self):
        run("--max_restarts=1", "--log_dir=" + self.folder, "--redirects=1", "sh", "-c", "echo $TORCHELASTIC_RESTART_COUNT; exit 1")
        self.assertEqual(self.files(), {"attempt_0/0/stdout.log": b"0\n", "attempt_1/0/stdout.log": b"1\n"})

    def test_only_chosen_ranks_come_to_the_console(self):
        result = run("--nproc_per_node=3", "--local_ranks_filter=0,2", "--log_dir=" + self.folder, "--tee=1:1", "sh", "-c", self.SHOW)
        self.assertEqual(sorted(result.stdout.splitlines()), [b"[rank0]: out 0", b"[rank2]: out 2"])
        self.assertEqual(self.files(), {"attempt_0/1/stdout.log": b"out 1\n"})

    def test_lines_with_a_text_go_to_a_file_too(self):
        run("--nproc_per_node=2", "--log_dir=" + self.folder, "--tee=3", "--duplicate_stdout_filters=apple,a,,b",
            "--duplicate_stderr_filters=err", "sh", "-c", "echo apple $RANK; echo pear; echo a,b; echo err >&2")
        files = self.files()
        self.assertEqual(sorted(files["attempt_0/filtered_stdout.log"].splitlines()),
                         [b"[default0]:a,b", b"[default0]:apple 0", b"[default1]:a,b", b"[default1]:apple 1"])
        self.assertEqual(len(files["attempt_0/filtered_stderr.log"].splitlines()), 2)

    def test_no_files_are_left_that_nobody_asked_for(self):
        result = run("sh", "-c", "echo $TORCHELASTIC_ERROR_FILE; ls $(dirname $TORCHELASTIC_ERROR_FILE)", TMPDIR=self.folder)
        self.assertTrue(result.stdout.startswith(self.folder.encode()), result.stdout)
        self.assertEqual(os.listdir(self.folder), [])
        result = run("--log_dir=/dev/null", "sh", "-c", "echo ${TORCHELASTIC_ERROR_FILE:-none}", TMPDIR=self.folder)
        self.assertEqual(result.stdout, b"none\n")

    def test_a_rank_may_go_to_another_folder(self):
        result = subprocess.run([os.path.abspath(PROGRAM), "--standalone", "--log_dir=logs", "sh", "-c", "cd / && echo why >$TORCHELASTIC_ERROR_FILE; exit 3"],
                                cwd=self.folder, env=ENV, capture_output=True)
        self.assertIn(b"its error file says:\n    why\n", result.stderr)

    def test_a_folder_that_can_not_be_made_is_named(self):
        result = run("--log_dir=/proc/x", "true")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"error: --log_dir=/proc/x: the folder can't be made", result.stderr)
        result = run("--tee=3", "true", TMPDIR="/nowhere")
        self.assertEqual((result.returncode, result.stderr),
                         (2, b"error: TMPDIR=/nowhere: no folder can be made in it: No such file or directory\n"))

    def test_without_a_folder_that_nobody_asked_for_there_are_no_error_files(self):
        result = run("--nproc_per_node=2", "sh", "-c", "echo ${TORCHELASTIC_ERROR_FILE:-none}", TMPDIR="/nowhere")
        self.assertEqual((result.returncode, b"".join(sorted(result.stdout.splitlines(True)))), (0, b"[rank0]: none\n[rank1]: none\n"))
        self.assertEqual(result.stderr, b"lockstep: ranks have no error files: TMPDIR=/nowhere: no folder can be made in it: "
                                        b"No such file or directory\n")


class FirstFailure(unittest.TestCase):
    def test_is_the_one_that_came_first_with_its_last_words(self):
        body = ("test $RANK = 1 && for i in $(seq 30); do echo line $i >&2; done && exit 3; "
                "trap 'echo consequence >&2; exit 9' TERM; while true; do sleep 0.05; done")
        result = run("--nproc_per_node=3", "sh", "-c", body)
        self.assertEqual(result.returncode, 3)
        report = result.stderr.decode().split("lockstep: first failure: ")[1]
        self.assertRegex(report, r"\Arank 1 \(process \d+\) ended with code 3 on \S+, local rank 1, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n")
        words = re.findall(r"    line (\d+)", report)
        self.assertEqual(words, [str(i) for i in range(11, 31)])
        self.assertNotIn("consequence", report)

    def test_an_error_file_says_more(self):
        for content, want in ((json.dumps({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback 1", "timestamp": "1"}}}),
                               ["ValueError: bad", "Traceback 1"]),
                              (json.dumps({"message": "plain"}), ["plain"]), ("no json", ["no json"]),
                              ("a" * 70000, ["a" * (64 << 10), "… and 4464 bytes more"])):
            result = run("--nproc_per_node=2", *python(f"rank and open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({content!r})\n"
                                                       f"rank and sys.exit(4)\ntime.sleep(50)"))
            self.assertEqual(result.returncode, 4)
            for text in want:
                self.assertIn(f"    {text}\n".encode(), result.stderr.split(b"its error file says:\n")[1])


    def test_an_error_file_may_be_anything(self):
        for make, want in (("mkdir $TORCHELASTIC_ERROR_FILE", b""), ("mkfifo $TORCHELASTIC_ERROR_FILE", b""),
                           ("truncate -s 10G $TORCHELASTIC_ERROR_FILE", b" bytes more\n")):
            result = run("sh", "-c", make + "; exit 4")
            self.assertEqual(result.returncode, 4, result.stderr)
            self.assertRegex(result.stderr, rb"\Alockstep: rank 0 [^\n]* ended with code 4; stopping the others\n")
            self.assertTrue(result.stderr.endswith(want), result.stderr[-100:])


if __name__ == "__main__":
    junit.main()
