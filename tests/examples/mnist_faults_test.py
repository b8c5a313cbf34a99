#!/usr/bin/env python3
"""The MNIST program on disks that fill up, become read-only, or lose their folders while it runs."""
import os
import subprocess
import sys
import unittest

sys.path[:0] = ["tests", "tests/examples"]
import junit  # noqa: E402
from mnist_program import ENV, command, folder  # noqa: E402

INSPECT = os.path.abspath("checkpoint/inspect")


def namespace():
    for unshare in (["unshare", "-m"], ["unshare", "-Urm"]):
        if subprocess.run(unshare + ["sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0:
            return unshare
    return None


class Faults(unittest.TestCase):
    FLAGS = ("--epochs=8", "--patience=100", "--save_every_steps=1", "--keep_last=0")

    GONE = "(Not a directory|[Nn]o such file)"  # whichever part of a save meets it first

    def setUp(self):
        self.namespace = namespace()
        self.run_dir = os.path.join(folder(), "run")
        os.makedirs(self.run_dir + "/checkpoints")

    def run_with(self, before, *flags, mount=None, beside=""):
        """Runs a shell command, then the program with another command beside it; then looks whether `latest` is whole."""
        program = " ".join(command("--run_dir=" + self.run_dir, *self.FLAGS, *flags))
        setup = f"mount -t tmpfs -o {mount} none {self.run_dir}/checkpoints; " if mount else ""
        checkpoints = self.run_dir + "/checkpoints"
        script = (f"{setup}{before}\n{beside} {'&' if beside else ''}\n{program}; code=$?; {'wait;' if beside else ''}\n"
                  f"test -f {checkpoints}/latest && {INSPECT} {checkpoints}/$(cat {checkpoints}/latest) >/dev/null && echo whole\n"
                  f"ls -a {checkpoints} | grep -c '.tmp.' | sed 's/^/temporaries: /'\nexit $code")
        if mount and self.namespace is None:
            self.skipTest("no mount namespace can be made here")
        return subprocess.run((self.namespace if mount else []) + ["bash", "-c", script], env=ENV, capture_output=True, text=True,
                              timeout=100)

    def test_a_full_disk_ends_training_with_an_error_and_a_whole_checkpoint(self):
        result = self.run_with("", mount="size=600k")
        self.assertEqual(result.returncode, 1, result.stderr)
        errors = [line for line in result.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertIn("No space left on device", errors[0])
        self.assertIn("whole\n", result.stdout)
        self.assertIn("temporaries: 0", result.stdout)

    def test_or_goes_on_with_warnings(self):
        result = self.run_with("", "--save_failure=warning", mount="size=600k")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, "a checkpoint was not saved: .*No space left on device")
        self.assertIn("test accuracy", result.stdout)
        self.assertIn("whole\n", result.stdout)

    def test_a_full_disk_for_everything_goes_on_too(self):
        os.rmdir(self.run_dir + "/checkpoints")
        program = " ".join(command("--run_dir=" + self.run_dir, "--save_failure=warning", "--log_every=1", *self.FLAGS))
        script = f"mount -t tmpfs -o size=300k none {self.run_dir} && {program}"
        if self.namespace is None:
            self.skipTest("no mount namespace can be made here")
        result = subprocess.run(self.namespace + ["bash", "-c", script], env=ENV, capture_output=True, text=True, timeout=100)
        # No best checkpoint could be written, and that is what is missing at the end.
        self.assertEqual(result.returncode, 1)
        self.assertIn("No space left on device", result.stderr)
        self.assertIn("cnn.pt", result.stderr)
        self.assertRegex(result.stdout, "epoch: 8, step: ")

    def test_a_disk_that_becomes_read_only(self):
        for failure, code in (("error", 1), ("warning", 0)):
            self.setUp()
            checkpoints = self.run_dir + "/checkpoints"
            result = self.run_with("", "--save_failure=" + failure, "--epochs=100", mount="size=600m",
                                   beside=f"(until test -f {checkpoints}/latest; do sleep 0.02; done; "
                                          f"until mount -o remount,ro {checkpoints} 2>/dev/null; do sleep 0.003; done)")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn("Read-only file system", result.stderr)
            self.assertIn("whole\n", result.stdout)

    def test_a_limit_on_the_size_of_files(self):
        result = self.run_with("ulimit -f 150")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertIn("temporaries: 0", result.stdout)

    def test_a_folder_that_is_removed_is_made_again(self):
        result = self.run_with("", beside=f"(until test -f {self.run_dir}/checkpoints/latest; do sleep 0.02; done; "
                                          f"rm -rf {self.run_dir}/checkpoints)")
        self.assertIn(result.returncode, (0, 1), result.stderr)  # 1: in the middle of a save
        if result.returncode == 0:
            self.assertIn("whole\n", result.stdout)
        else:
            self.assertRegex(result.stderr, "checkpoints.*" + self.GONE)

    def test_a_folder_that_becomes_a_file(self):
        checkpoints = self.run_dir + "/checkpoints"
        result = self.run_with("", "--epochs=200", beside=f"(until test -f {checkpoints}/latest; do sleep 0.02; done; "
                                                          f"until test -f {checkpoints}; do rm -rf {checkpoints}; touch {checkpoints}; done)")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, "checkpoints.*" + self.GONE)


if __name__ == "__main__":
    junit.main()
