#!/usr/bin/env python3
"""//metrics:report on good, odd and damaged runs; its page in a real browser, where one is installed."""
import glob
import html.parser
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

sys.path.insert(0, "tests")
import junit  # noqa: E402

REPORT = os.path.abspath("metrics/report")
SVG = "{http://www.w3.org/2000/svg}"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
PANELS = {"loss", "accuracy", "learning-rate"}


def lines(rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def epochs(count, **more):
    return [{"epoch": e, "train_loss": 2 / e, "val_loss": 2.2 / e, "train_accuracy": 1 - 0.5 / e, "val_accuracy": 1 - 0.6 / e,
             "learning_rate": 0.1, "seconds": 10, **more} for e in range(1, count + 1)]


def steps(epochs, each):
    return [{"epoch": e, "step": s, "steps": each, "loss": 2 / (e + s / each), "learning_rate": 0.1 / e}
            for e in range(1, epochs + 1) for s in range(1, each + 1)]


def pixels(path):
    """Width, height, and the rows of a PNG picture of 8-bit RGB, each with its filter's number and filtered bytes."""
    data = open(path, "rb").read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", path
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind) in ((8, 2), (8, 6)), (depth, kind)
    packed, at = b"", 8
    while at < len(data):
        size, = struct.unpack(">I", data[at:at + 4])
        if data[at + 4:at + 8] == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += size + 12
    size = width * (3 if kind == 2 else 4) + 1
    raw = zlib.decompress(packed)
    return width, height, [raw[i:i + size] for i in range(0, len(raw), size)]


def different_rows(path):
    """How many different rows a picture has, as a share of all: next to none in a blank one."""
    _, height, rows = pixels(path)
    return len(set(rows)) / height


class Page(html.parser.HTMLParser):
    """What a page holds: panels, curves, the texts outside of scripts, and names of all elements."""

    def __init__(self, text):
        super().__init__()
        self.panels, self.curves, self.tags, self.words, self.inside = set(), [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.inside = tag
        if attributes.get("class") == "plot":
            self.panels.add(attributes["id"])
        if attributes.get("class") == "curve":
            self.curves.append(attributes["data-name"])
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name not in ("src", "href"), value

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data.strip())


class Report(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, **files):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        for file, rows in files.items():
            name = file + (".json" if file == "config" else ".jsonl")
            with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as out:
                out.write(rows if isinstance(rows, str) else lines(rows))
        return folder

    def run_report(self, *arguments):
        return subprocess.run([REPORT, *arguments], capture_output=True, text=True, timeout=60)

    def report(self, *folders, warns=False):
        """The page, after all three files were looked at."""
        result = self.run_report(*folders)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(bool(result.stderr), warns, result.stderr)
        self.warnings = result.stderr
        prefix = folders[0] + ("/report" if len(folders) == 1 else "/comparison")
        self.assertEqual(result.stdout.split("\n"), [prefix + ".html", prefix + ".svg", prefix + ".png", ""])
        root = xml.etree.ElementTree.parse(prefix + ".svg").getroot()
        self.assertEqual({g.get("id") for g in root.iter(SVG + "g")}, PANELS)
        self.assertGreater(different_rows(prefix + ".png"), 0.1)
        page = Page(open(prefix + ".html", encoding="utf-8").read())
        self.assertEqual(page.panels, PANELS)
        self.assertEqual(glob.glob(folders[0] + "/*.tmp.*"), [])
        return page

    def test_a_run_has_its_curves_its_tables_and_its_numbers(self):
        ranks = [{"epoch": e, "rank": r, "seconds": 10, "images_per_second": 1000 + r, "data_wait_share": 0.25,
                  "peak_memory_bytes": (r + 1) << 30} for e in (1, 2, 3) for r in (0, 1)]
        page = self.report(self.write("mine", config='{"lr": 0.5, "deep": {"name": "x"}}', metrics=epochs(3, val_top5=0.9),
                                      steps=steps(3, 20), ranks=ranks))
        self.assertEqual(sorted(page.curves), ["per step", "training, per epoch", "training, per epoch", "training, per step",
                                               "validation top5", "validation, per epoch", "validation, per epoch"])
        for text in ("Training run mine", "lr", "0.5", "deep.name", "30.0 s", "25.0 %", "1.00 GiB", "2.00 GiB", "1001"):
            self.assertIn(text, page.words)
        self.assertIn("best validation accuracy 0.8  ·  duration 30.0 s  ·  peak memory 2.00 GiB a rank", page.words)

    def test_validations_inside_an_epoch_have_their_place_and_count_no_time_twice(self):
        inside = [{"epoch": e, "step": 5, "val_loss": 1.5, "val_accuracy": 0.5, "seconds": 6} for e in (1, 2)]
        whole = epochs(2)
        page = self.report(self.write("mine", metrics=[inside[0], whole[0], inside[1], whole[1]], steps=steps(2, 10)))
        self.assertIn("duration 20.0 s", " ".join(page.words))

    def test_several_runs_are_told_apart(self):
        first, second = (self.write(name, config='{"lr": %d}' % lr, metrics=epochs(3)) for name, lr in (("a", 1), ("b/a", 2)))
        page = self.report(first, second)
        self.assertIn(os.path.basename(self.folder) + "/a: validation, per epoch", page.curves)
        self.assertIn("b/a: validation, per epoch", page.curves)
        same = self.report(first, first)
        self.assertTrue(any("a (2): validation" in curve for curve in same.curves), same.curves)
        self.assertIn("2 training runs", page.words)
        result = self.run_report(first, second, "--out=" + self.folder + "/new/both", "--title=Mine & yours")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Mine & yours", Page(open(self.folder + "/new/both.html").read()).words)

    def test_texts_of_files_are_no_markup(self):
        evil = "</svg></script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"
        page = self.report(self.write("<img src=x onerror=alert(1)>", config=json.dumps({evil: evil}),
                                      metrics=epochs(2, **{"val_accuracy" + evil: 0.5, evil: evil})))
        self.assertEqual(page.tags.count("script"), 1)
        self.assertNotIn("img", page.tags)
        self.assertIn(evil, page.words)

    def test_damaged_lines_are_left_out_and_named(self):
        folder = self.write("damaged", metrics=lines(epochs(2)) + '{"epoch":3,"val_lo', config="[1, 2",
                            steps=["\udcff\udcfe", *steps(1, 5), "", "[]", "7", {"loss": 1}, {"epoch": "x", "step": -1}, "[" * 100000,
                                   "y" * (1 << 21), {"epoch": 1, "step": 9, "loss": {"a": 1}, "learning_rate": 1e300}])
        page = self.report(folder, warns=True)
        for part in ("metrics.jsonl line 3: no JSON object, left out\n", "steps.jsonl line 1: no JSON object, left out; so were 4 more",
                     "steps.jsonl: 2 lines without an epoch and a step", "config.json: no JSON object"):
            self.assertIn(part, self.warnings)
        self.assertIn("Notes", page.words)
        self.assertIn("training, per step", page.curves)

    def test_numbers_that_are_not_finite_cut_the_curve(self):
        metrics = epochs(5)
        metrics[2]["val_loss"] = None
        page = self.report(self.write("nan", metrics=metrics), warns=True)
        self.assertIn("val_loss of 1 epochs is not finite", self.warnings)
        self.assertEqual(page.curves.count("validation, per epoch"), 3)  # two parts of the loss, and the accuracy

    def test_little_is_drawn_too(self):
        for name, empty_panels, files in (("one epoch", 0, {"metrics": epochs(1)}), ("late", 0, {"metrics": epochs(1000)[900:]}),
                                          ("no validation", 2, {"metrics": [{"epoch": 1, "train_loss": 1}]}),
                                          ("constant", 2, {"metrics": [{"epoch": e, "train_loss": 0} for e in (1, 2)]}),
                                          ("epoch 0", 2, {"metrics": [{"epoch": 0, "val_loss": -1e30}]}),
                                          ("one step", 1, {"steps": steps(1, 1)}), ("nothing", 3, {"metrics": "", "steps": ""})):
            with self.subTest(name):
                self.assertEqual(self.report(self.write(name, **files)).words.count("no data"), empty_panels)

    def test_many_steps_make_no_larger_page(self):
        self.report(self.write("many", steps=steps(20, 10000)))
        self.assertLess(os.path.getsize(self.folder + "/many/report.html"), 150_000)

    def test_errors_are_one_line_and_name_the_path(self):
        empty, good = self.write("empty"), self.write("good", metrics=epochs(1))
        os.mkdir(self.write("odd") + "/metrics.jsonl")
        open(self.folder + "/file", "w").close()
        for arguments, want in (((), "give the folder"), ((self.folder + "/none",), "none: "), ((self.folder + "/file",), "not a folder"),
                                ((empty,), "empty: no run's"), ((self.folder + "/odd",), "odd/metrics.jsonl: not a regular file"),
                                ((good, empty), "empty: no run's"), ((good,) * 11, "it takes 1 to 10"),
                                ((good, "--out=" + self.folder + "/file/x"), "file/x.html: cannot"),
                                ((good, "--out=/proc/x"), "/proc/x.html: cannot be written")):
            result = self.run_report(*arguments)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(want, result.stderr)

    def test_a_browser_shows_the_page(self):
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is None:
            self.skipTest("none of these is installed: " + ", ".join(BROWSERS))
        folder = self.write("shown", config='{"lr": 0.5}', metrics=epochs(3), steps=steps(3, 20))
        self.report(folder)
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,900",
                   "--user-data-dir=" + self.folder + "/profile", "--virtual-time-budget=1000"]
        env = {**os.environ, "HOME": self.folder}

        def browse(*flags):
            return subprocess.run([*command, *flags, "file://" + folder + "/report.html"], env=env, capture_output=True, text=True,
                                  timeout=120)

        result = browse("--dump-dom")
        page = Page(result.stdout)
        self.assertEqual(page.panels, PANELS, result.stderr)
        for text in ("Loss", "Accuracy", "Learning rate", "training, per step", "training, per epoch", "validation, per epoch"):
            self.assertIn(text, page.words)
        # The script has run: in each panel it has put the area that follows the mouse.
        self.assertEqual(result.stdout.count('fill="transparent"'), 3)
        picture = self.folder + "/shot.png"
        result = browse("--screenshot=" + picture)
        self.assertTrue(os.path.exists(picture), result.stderr)
        self.assertEqual(pixels(picture)[:2], (1300, 900))
        self.assertGreater(different_rows(picture), 0.3)


if __name__ == "__main__":
    junit.main()
