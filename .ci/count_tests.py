#!/usr/bin/env python3
"""Counts the test cases in Bazel's XML results: count_tests.py COMMAND_FAILED FOLDER...

Prints one line, `N passed, N failed[, N skipped]`, and exits with 1 when anything failed or nothing ran.
"""
import os
import sys
import xml.etree.ElementTree as ElementTree


def main():
    command_failed, folders = sys.argv[1] != "0", sys.argv[2:]
    passed = failed = skipped = 0
    for folder in folders:
        for where, _, files in os.walk(folder):
            if "test.xml" not in files:
                continue
            try:
                cases = list(ElementTree.parse(os.path.join(where, "test.xml")).getroot().iter("testcase"))
            except ElementTree.ParseError:
                cases = []
            bad = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
            skip = sum(1 for c in cases if c.find("skipped") is not None or c.get("status") == "notrun" or c.get("result") == "skipped")
            failed += bad
            skipped += skip
            passed += len(cases) - bad - skip
    if command_failed and failed == 0:
        failed = 1  # a build that failed, or a test that died before it could report
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or command_failed or passed == 0 else 0


sys.exit(main())
