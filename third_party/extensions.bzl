"""The dependencies that the Bazel Central Registry lacks, for MODULE.bazel."""

load("//third_party/cuda:repository.bzl", "cuda_repository")
load("//third_party/libtorch:repository.bzl", "libtorch_repository")

def _libtorch_impl(_ctx):
    libtorch_repository(name = "libtorch")
    cuda_repository(name = "cuda")

libtorch = module_extension(implementation = _libtorch_impl)
