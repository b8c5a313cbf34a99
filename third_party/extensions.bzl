"""The dependencies that the Bazel Central Registry lacks, for MODULE.bazel."""

load("//third_party/cuda:repository.bzl", "cuda_repository")
load("//third_party/libtorch:repository.bzl", "libtorch_cuda_runtime_repository", "libtorch_repository")

def _libtorch_impl(_ctx):
    libtorch_repository(name = "libtorch")
    libtorch_cuda_runtime_repository(name = "libtorch_cuda_runtime")
    cuda_repository(name = "cuda")

libtorch = module_extension(implementation = _libtorch_impl)
