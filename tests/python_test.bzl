"""A test that is a Python script of unittest cases, for whole programs; it needs nothing but python3."""

def python_test(name, srcs, data = [], tags = [], **kwargs):
    """Runs `srcs[0]`, which ends with `junit.main()`.

    Args:
      name: of the test.
      srcs: the script.
      data: what it runs and reads, at its path in the workspace.
      tags: as for sh_test.
      **kwargs: passed to sh_test.
    """
    native.sh_test(
        name = name,
        srcs = srcs,
        data = data + ["//tests:junit.py"],
        tags = tags + ["block-network", "cpu:2"],
        **kwargs
    )
