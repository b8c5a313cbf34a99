"""Runs unittest cases and writes one entry for each to $XML_OUTPUT_FILE, as Bazel's other tests do."""
import os
import sys
import time
import unittest
from xml.sax.saxutils import escape, quoteattr


class _Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []

    def startTest(self, test):
        super().startTest(test)
        self._start = time.time()

    def _add(self, test, inner):
        name, klass = test.id().rsplit(".", 1)[-1], type(test).__name__
        self.cases.append(f"<testcase name={quoteattr(name)} classname={quoteattr(klass)} time=\"{time.time() - self._start:.2f}\">{inner}</testcase>")

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test, "")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, f"<skipped message={quoteattr(reason)}/>")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add(test, f"<failure>{escape(self._exc_info_to_string(err, test))}</failure>")

    def addError(self, test, err):
        super().addError(test, err)
        self._add(test, f"<error>{escape(self._exc_info_to_string(err, test))}</error>")


def main():
    program = unittest.main(module="__main__", exit=False, verbosity=2,
                            testRunner=unittest.TextTestRunner(verbosity=2, resultclass=_Result))
    result, path = program.result, os.environ.get("XML_OUTPUT_FILE")
    if path:
        with open(path, "w") as out:
            out.write(f"<testsuites><testsuite name=\"python\" tests=\"{len(result.cases)}\">{''.join(result.cases)}</testsuite></testsuites>")
    sys.exit(0 if result.wasSuccessful() and result.cases else 1)
