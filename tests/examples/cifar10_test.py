#!/usr/bin/env python3
"""The CIFAR-10 program, on the stand-in that comes with it: launchers, report, best model, resuming, mistakes."""
import glob
import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["tests", "tests/examples"]
import junit  # noqa: E402

PROGRAM = os.path.abspath("examples/cifar10/cifar10")
LAUNCHER = os.path.abspath("launch/lockstep_run")
CONFIG = os.path.abspath("examples/cifar10/config/small_cifar10.yaml")
DEFAULT = os.path.abspath("examples/cifar10/config/classifier_cifar10.yaml")
PEER = os.environ.get("LOCKSTEP_PYTHON_PEER") or os.path.join(
    pwd.getpwuid(os.getuid()).pw_dir, ".cache/lockstep/python-peer-2.11.0/bin/python")
MEASURED = {"images_per_second", "seconds"}
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
TINY = ("--synthetic=200", "--set", "batch_size=20", "--set", "epoch=2", "--set", "log_every=2")


def folder():
    return tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))


def command(where, *flags):
    return [PROGRAM, "--cfg=" + CONFIG, f"--set=save_dir={where}/runs", f"--set=data={where}/data", *flags]


def run(argv, **kwargs):
    return subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=250, **kwargs)


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def metrics(where):
    """The epochs' ends; not what was validated where max_steps ended a run inside an epoch."""
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines(where + "/runs/cifar10/metrics.jsonl")
            if "step" not in line]


class Cifar10(unittest.TestCase):
    def setUp(self):
        self.where = folder()

    def run_ok(self, *flags, launcher=()):
        result = run([*launcher, *command(self.where, *flags)])
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return result

    def run_fails(self, *flags, expected, argv=None):
        result = run(argv or command(self.where, *flags))
        self.assertEqual(result.returncode, 1, result.stderr + result.stdout)
        self.assertIn(expected, result.stderr)
        self.assertEqual(sum(line.startswith("error:") for line in result.stderr.splitlines()), 1, result.stderr)

    def test_learns_the_stand_in_alike_under_torchrun_and_our_launcher(self):
        learns = ("--synthetic=4000", "--set=crop_padding=0", "--set=epoch=3")
        launchers = {"ours": [LAUNCHER, "--standalone", "--nproc_per_node=2", "--prefix=off"]}
        torchrun = os.path.join(os.path.dirname(PEER), "torchrun")
        if os.path.exists(torchrun):
            launchers["torchrun"] = [PEER, torchrun, "--no-python", "--standalone", "--nproc_per_node=2"]
        seen = {}
        for name, launcher in launchers.items():
            self.where = folder()
            self.run_ok(*learns, launcher=launcher)
            seen[name] = metrics(self.where)
            self.assertGreaterEqual(max(epoch["val_accuracy"] for epoch in seen[name]), 0.85)
            self.assertLess(seen[name][0]["val_loss"], 10)
        if len(seen) < 2:
            self.skipTest("there is no torchrun; our launcher was tried")
        self.assertEqual(seen["ours"], seen["torchrun"])

    def test_leaves_report_best_model_logs_and_configuration(self):
        result = self.run_ok(*TINY, "--set=tensorboard=true")
        runs = self.where + "/runs"
        for path in ("cifar10/report", "cifar10"):
            for kind in (".html", ".svg", ".png"):
                self.assertGreater(os.path.getsize(f"{runs}/{path}{kind}"), 1000)
        page = open(runs + "/cifar10.html").read()
        for word in ("accuracy", "learning rate", "GB", "weight_decay"):
            self.assertIn(word, page)
        best = glob.glob(runs + "/cifar10/cifar10-*.pth")
        self.assertEqual(len(best), 1)
        epoch, accuracy = re.fullmatch(r"cifar10-(\d+)-(\d\.\d{4})\.pth", os.path.basename(best[0])).groups()
        self.assertAlmostEqual(metrics(self.where)[int(epoch) - 1]["val_accuracy"], float(accuracy), places=4)
        self.assertEqual(len(lines(runs + "/cifar10/ranks.jsonl")), 4)  # 2 epochs, 2 ranks
        self.assertEqual([line["step"] for line in lines(runs + "/cifar10/steps.jsonl")], [2, 4, 6, 8, 10] * 2)
        self.assertEqual(len(glob.glob(runs + "/cifar10/events.out.tfevents.*")), 1)
        self.assertRegex(result.stdout, r"epoch: 1, step: 2/10, loss: \d+\.\d+, accuracy: 0\.\d+")
        self.assertRegex(result.stdout, r"peak memory: \d\.\d\d GB")
        self.assertIn("2 ranks, 10 pictures each and 20 together in a step", result.stdout)
        # The configuration that is saved gives the same run again.
        other = folder()
        again = run([PROGRAM, f"--cfg={runs}/cifar10/config.yaml", "--synthetic=200", f"--set=save_dir={other}/runs"])
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(metrics(self.where), metrics(other))

    def test_the_best_model_is_torchvisions(self):
        if not os.path.exists(PEER):
            self.skipTest("Python's PyTorch is not installed")
        self.run_ok(*TINY)
        best, = glob.glob(self.where + "/runs/cifar10/cifar10-*.pth")
        code = ("import sys, torch, torchvision; net = torchvision.models.resnet18(num_classes=10); "
                "print(net.load_state_dict(torch.load(sys.argv[1], weights_only=True)))")
        env = {**os.environ, "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}
        loaded = subprocess.run([PEER, "-c", code, best], env=env, capture_output=True, text=True, timeout=100)
        self.assertIn("All keys matched", loaded.stdout, loaded.stderr)

    def test_workers_and_ranks_draw_the_same_and_a_resumed_run_ends_the_same(self):
        options = (*TINY, "--set=flip=0.5", "--set=random_erasing=0.5", "--set=mixup=0.4", "--set=ema=0.9",
                   "--set=trainer.gradients.accumulate=2", "--set=trainer.checkpoints.steps=1", "--set=keep_last=0",
                   "--set=label_smoothing=0.1", "--set=trainer.gradients.max_grad_norm=1",
                   "--set=schedule.total_steps=10")  # also where max_steps ends the run
        self.run_ok(*options, "--set=num_workers=0")
        whole, first = metrics(self.where), self.where
        self.where = folder()
        self.run_ok(*options, "--set=num_workers=3")
        self.assertEqual(metrics(self.where), whole)
        self.where = folder()
        self.run_ok(*options, "--set=trainer.limits.max_steps=7")
        self.run_ok(*options, "--resume=latest")
        self.assertEqual(metrics(self.where), whole)
        self.where = first
        self.run_ok(*options, f"--resume={first}/runs/cifar10/checkpoints/step-3.pth")
        self.assertEqual(metrics(self.where), whole)

    def test_a_resumed_run_takes_its_own_configuration_and_what_is_changed(self):
        self.run_ok(*TINY, "--set=trainer.limits.max_steps=13", "--set=momentum=0.5")
        resume = [PROGRAM, "--synthetic=200", f"--set=save_dir={self.where}/runs", "--resume=latest"]
        for changed in ("model=resnet34", "seed=7", "schedule={kind: constant}"):
            self.run_fails(expected="it must stay the same", argv=[*resume, "--set", changed])
        self.run_fails(argv=[*resume, "--cfg=" + DEFAULT], expected="the run has model: resnet18, now it is resnet50")
        result = run([*resume, "--set=lr=0.002", "--set=trainer.limits.max_steps=16", "--set=trainer.checkpoints.steps=1"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("lr: 0.002 instead of 0.01; ", result.stderr)
        rates = [(line["step"], round(line["learning_rate"], 6)) for line in lines(self.where + "/runs/cifar10/steps.jsonl")[-3:]]
        # The cosine's values after 11 of 13, 13 of 16 and 15 of 16 steps, 10 of them warm-up.
        self.assertEqual(rates, [(2, 0.0075), (4, 0.001), (6, 0.000134)])
        config = open(self.where + "/runs/cifar10/config.yaml").read()
        self.assertIn("momentum: 0.5", config)
        self.assertIn("lr: 0.002", config)

    def test_other_ways_to_train(self):
        for flags in (("--nproc_per_node=1", "--set=amp=bf16", "--set=color_jitter=0.4", "--set=cutmix=1"),
                      ("--set=sync_batch_norm=true", "--set=schedule.kind=one_cycle", "--set=schedule.max_lr=0.1"),
                      ("--set=schedule={kind: reduce_on_plateau, monitor: val_loss}",),
                      ("--set=picture_size=48", "--set=resize=56", "--set=small_images=false", "--set=patience=1"),
                      ("--set=trainer.limits.overfit_batches=1", "--set=trainer.limits.sanity_batches=1")):
            self.where = folder()
            self.run_ok(*TINY, *flags)
            self.assertGreaterEqual(len(metrics(self.where)), 1)
        self.where = folder()
        self.run_ok(*TINY, "--set=trainer.limits.fast_dev_run=1")
        self.assertFalse(os.path.exists(self.where + "/runs/cifar10/metrics.jsonl"))

    def test_mistakes_are_named_in_one_line(self):
        self.run_fails(expected="--synthetic=")
        self.run_fails(*TINY, "--set=lerning_rate=1", expected="unknown key 'lerning_rate'")
        self.run_fails(*TINY, "--set=batch_size=21", expected="21 pictures can't be shared by 2 ranks")
        self.run_fails(*TINY, "--set=device=[cuda:0]", expected="no GPU here")
        self.run_fails(*TINY, "--set=device=[tpu]", expected="'tpu' is none")
        self.run_fails(*TINY, "--set=model=resnet20", expected="there are resnet18")
        self.run_fails(*TINY, "--set=batch_size=400", expected="more than the 200 training pictures")
        self.run_fails(*TINY, "--set=num_classes=3", expected="the data has 10")
        self.run_fails(*TINY, "--set=schedule.kind=cosinus", expected="schedule: ")
        self.run_fails(*TINY, "--set=schedule={kind: step}", expected="step_size is missing")
        self.run_fails(*TINY, "--set=schedule={kind: reduce_on_plateau, monitor: val_los}", expected="there are train_loss")
        self.run_fails(*TINY, "--lr=0.05", expected="--lr=0.05: lr is a setting; give it as --set lr=0.05")
        self.run_fails(*TINY, "--set=epochs=3", expected="did you mean 'epoch'?")
        self.run_fails(*TINY, "--weights=/nonexistent.pth", expected="/nonexistent.pth")
        self.run_fails(*TINY, "--resume=latest", expected="--resume=latest")
        self.run_fails("--synthetic=3", expected="from 50 to")
        wrong = self.where + "/wrong.yaml"
        open(wrong, "w").write("lr: 0.1\nbatchsize: 3\nnum_workers: many\n")
        self.run_fails(argv=[PROGRAM, "--cfg=" + wrong], expected="wrong.yaml:2:1: unknown key 'batchsize'; did you mean 'batch_size'?")
        self.run_ok(*TINY, "--set=epoch=1")
        self.run_fails(*TINY, expected="go on with it (--resume=latest)")

    def test_a_folder_has_one_run_at_a_time_and_a_run_without_a_checkpoint_begins_anew(self):
        first = subprocess.Popen(command(self.where, *TINY, "--set=epoch=1000", "--set=trainer.checkpoints.epochs=0"), env=ENV,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in first.stdout:
            if line.startswith("epoch: 1, step: 2/"):
                break
        self.run_fails(*TINY, expected="another run is using it")
        first.kill()  # its ranks go with it
        first.communicate()
        self.run_ok(*TINY)
        self.assertEqual(len(metrics(self.where)), 2)

    def test_the_jobs_own_configuration_is_found_and_can_be_printed(self):
        result = run([PROGRAM, "--print_config"], cwd=os.getcwd())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("model: resnet50", result.stdout)
        self.assertIn("picture_size: 224", result.stdout)
        local = folder()
        os.makedirs(local + "/config")
        open(local + "/config/classifier_cifar10.yaml", "w").write("lr: 0.125\n")
        result = run([PROGRAM, "--print_config", "--set", "momentum=0.5", "--set=weight_decay=0.0"], cwd=local)
        self.assertIn("lr: 0.125", result.stdout)
        self.assertIn("momentum: 0.5", result.stdout)


if __name__ == "__main__":
    junit.main()
