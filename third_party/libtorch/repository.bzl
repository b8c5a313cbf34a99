"""LibTorch as `@libtorch//:torch`: the hash-pinned wheel, or the folder that $LOCKSTEP_LIBTORCH names."""

# Version number and the C++ standard that its headers need. A version is listed once the tests have passed on it.
TESTED_VERSIONS = {
    "2.11.0": "c++17",
}

def _tested():
    return "tested versions: " + ", ".join(sorted(TESTED_VERSIONS.keys())) + " (x86-64 Linux, new C++ ABI)"

def _check_platform(ctx):
    arch = ctx.execute(["uname", "-m"]).stdout.strip()
    if not ctx.os.name.lower().startswith("linux") or arch != "x86_64":
        fail("lockstep: LibTorch is built here for x86-64 Linux only, and this is {} {}".format(ctx.os.name, arch))

def _cache_dir(ctx):
    env = ctx.os.environ
    if env.get("LOCKSTEP_CACHE"):
        return env["LOCKSTEP_CACHE"]
    if env.get("XDG_CACHE_HOME"):
        return env["XDG_CACHE_HOME"] + "/lockstep"
    if env.get("HOME"):
        return env["HOME"] + "/.cache/lockstep"
    return str(ctx.path("download"))

def _download(ctx):
    result = ctx.execute(
        ["bash", ctx.path(ctx.attr._install), ctx.path(ctx.attr.requirements), _cache_dir(ctx)],
        timeout = 3600,
    )
    if result.return_code != 0:
        fail("lockstep: LibTorch could not be downloaded with pip (set LOCKSTEP_LIBTORCH to a folder that holds " +
             "it to do without):\n" + result.stderr)
    return result.stdout.strip().split("\n")[-1]

def _version(ctx, folder):
    """The number in an unpacked wheel (version.py) or in LibTorch's zip (build-version), without its local part."""
    script = "cd \"$1\" && { sed -n \"s/^__version__ = '\\([^']*\\)'.*/\\1/p\" version.py 2>/dev/null; " + \
             "cat build-version 2>/dev/null; } | head -n 1"
    version = ctx.execute(["bash", "-c", script, "bash", folder]).stdout.strip()
    if not version:
        fail("lockstep: no LibTorch in {}: neither version.py nor build-version is there".format(folder))
    return version.split("+")[0]

def _check(ctx, folder):
    for part in ["include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so", "lib/libc10.so"]:
        if not ctx.path(folder + "/" + part).exists:
            fail("lockstep: {} is no LibTorch: {} is missing".format(folder, part))
    version = _version(ctx, folder)
    if version not in TESTED_VERSIONS:
        fail("lockstep: LibTorch {} in {} is not a tested version; {}".format(version, folder, _tested()))
    old_abi = ctx.execute(["grep", "-c", "_ZN3c1013MessageLogger6streamEv\\|__cxx1112basic_string", folder + "/lib/libc10.so"])
    if old_abi.return_code != 0:
        fail("lockstep: LibTorch in {} was built with the old C++ ABI; {}".format(folder, _tested()))
    return version

def _link_libraries(ctx, folder):
    """Links folder's shared libraries into lib/ and returns their names."""
    names = []
    for lib in ctx.path(folder + "/lib").readdir():
        if ".so" in lib.basename:
            ctx.symlink(lib, "lib/" + lib.basename)
            names.append(lib.basename)
    return sorted(names)

def _libtorch_impl(ctx):
    _check_platform(ctx)
    folder = ctx.os.environ.get("LOCKSTEP_LIBTORCH") or _download(ctx)
    version = _check(ctx, folder)
    ctx.symlink(folder + "/include", "include")
    present = _link_libraries(ctx, folder)

    # libgomp has a hashed name in some wheels; it belongs to the libraries that a CPU program loads.
    cpu = [n for n in present if n.startswith(("libtorch_cpu.so", "libc10.so", "libgomp", "libcudart.so.", "libcupti.so."))]
    enabled = str(Label("//third_party/cuda:enabled"))  # without a repository in Bazel 4's main workspace
    ctx.template("BUILD.bazel", ctx.attr._build, {
        "%{cpu_libs}": repr(["lib/" + n for n in cpu]),
        "%{cuda_enabled}": enabled if enabled.startswith("@") else "@lockstep" + enabled,
        "%{lib_dir}": folder + "/lib",
        "%{gomp}": ([n for n in present if n.startswith("libgomp")] or ["libgomp.so.1"])[0],
    })
    ctx.file("defs.bzl", "LIBTORCH_VERSION = {}\nLIBTORCH_CXX_STANDARD = {}\n".format(
        repr(version),
        repr(TESTED_VERSIONS[version]),
    ))

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    attrs = {
        "requirements": attr.label(default = Label("//third_party/libtorch:requirements.txt"), allow_single_file = True),
        "_install": attr.label(default = Label("//third_party/libtorch:install.sh"), allow_single_file = True),
        "_build": attr.label(default = Label("//third_party/libtorch:BUILD.libtorch.bazel"), allow_single_file = True),
    },
    environ = ["LOCKSTEP_LIBTORCH", "LOCKSTEP_CACHE", "XDG_CACHE_HOME", "HOME"],
)

def _cuda_runtime_impl(ctx):
    _check_platform(ctx)
    names = _link_libraries(ctx, _download(ctx))
    ctx.file("BUILD.bazel", """cc_library(
    name = "libtorch_cuda_runtime",
    srcs = {},
    visibility = ["//visibility:public"],
)
""".format(repr(["lib/" + n for n in names])))

# Fetched only when something is built with `--config=cuda`.
libtorch_cuda_runtime_repository = repository_rule(
    implementation = _cuda_runtime_impl,
    attrs = {
        "requirements": attr.label(default = Label("//third_party/libtorch:requirements_cuda.txt"), allow_single_file = True),
        "_install": attr.label(default = Label("//third_party/libtorch:install.sh"), allow_single_file = True),
    },
    environ = ["LOCKSTEP_CACHE", "XDG_CACHE_HOME", "HOME"],
)
