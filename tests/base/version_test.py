#!/usr/bin/env python3
"""One version, wherever it is written."""
import re
import sys
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402


class Version(unittest.TestCase):
    def test_the_library_says_what_the_module_says(self):
        module = re.search(r'version = "([^"]+)"', open("MODULE.bazel").read()).group(1)
        header = re.search(r'kVersion\[\] = "([^"]+)"', open("base/version.h").read()).group(1)
        self.assertEqual(header, module)


if __name__ == "__main__":
    junit.main()
