"""The CUDA toolkit and NCCL as `@cuda//:cuda` and `@cuda//:nccl`, found or absent; a CPU build never needs them.

They are looked for in $CUDA_HOME, /usr/local/cuda and /usr. Where one is missing its target exists all the same and
says so when something that needs it is built (`--config=cuda`).
"""

_LIBRARIES = ["cublas", "cublasLt", "cudnn", "cufft", "curand", "cusparse", "cusolver", "nvrtc"]

_ABSENT = """
genrule(
    name = "{name}_is_missing",
    outs = ["{name}_is_missing.h"],
    cmd = "echo 'lockstep: --config=cuda needs {what}; set CUDA_HOME to the folder that holds it' >&2; exit 1",
)

cc_library(
    name = "{name}",
    hdrs = ["{name}_is_missing.h"],
)
"""

def _cuda_impl(ctx):
    build = ["package(default_visibility = [\"//visibility:public\"])\n"]
    roots = [r for r in [ctx.os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr"] if r]

    def_root = None
    for root in roots:
        if ctx.path(root + "/include/cuda_runtime.h").exists:
            def_root = root
            break
    if def_root:
        ctx.symlink(def_root + "/include", "include")
        libdir = def_root + ("/lib64" if ctx.path(def_root + "/lib64").exists else "/lib/x86_64-linux-gnu")
        build.append("""
cc_library(
    name = "cuda",
    hdrs = ["include"],
    includes = ["include"],
    linkopts = ["-L{lib}", "-Wl,-rpath,{lib}"],
)

# Named one by one, so that a program finds them by its own rpath: libtorch_cuda.so has none for them.
cc_library(
    name = "libraries",
    linkopts = ["-Wl,--no-as-needed"] + ["-l" + name for name in {names}] + ["-Wl,--as-needed"],
    deps = [":cuda"],
)
""".format(lib = libdir, names = repr(_LIBRARIES)))
    else:
        for name in ["cuda", "libraries"]:
            build.append(_ABSENT.format(name = name, what = "the CUDA toolkit (cuda_runtime.h)"))

    nccl_root = None
    for root in roots:
        if ctx.path(root + "/include/nccl.h").exists:
            nccl_root = root
            break
    if nccl_root and def_root:
        if nccl_root != def_root:
            ctx.symlink(nccl_root + "/include/nccl.h", "nccl_include/nccl.h")
        build.append("""
cc_library(
    name = "nccl",
    {headers}
    linkopts = ["-lnccl"],
    deps = [":cuda"],
)
""".format(headers = "" if nccl_root == def_root else "hdrs = [\"nccl_include/nccl.h\"], includes = [\"nccl_include\"],"))
    else:
        build.append(_ABSENT.format(name = "nccl", what = "NCCL (nccl.h)"))
    ctx.file("BUILD.bazel", "".join(build))

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["CUDA_HOME"],
)
