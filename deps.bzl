"""The outside dependencies. A repository that the workspace has already defined wins over ours."""

load("//third_party/abseil:repository.bzl", "abseil_repository")
load("//third_party/cairo:repository.bzl", "cairo_repository")
load("//third_party/cuda:repository.bzl", "cuda_repository")
load("//third_party/glog:repository.bzl", "glog_repository")
load("//third_party/googletest:repository.bzl", "googletest_repository")
load("//third_party/libarchive:repository.bzl", "libarchive_repository")
load("//third_party/libjpeg_turbo:repository.bzl", "libjpeg_turbo_repository")
load("//third_party/libpng:repository.bzl", "libpng_repository")
load("//third_party/libtorch:repository.bzl", "libtorch_cuda_runtime_repository", "libtorch_repository")
load("//third_party/nlohmann_json:repository.bzl", "nlohmann_json_repository")
load("//third_party/yaml-cpp:repository.bzl", "yaml_cpp_repository")
load("//third_party/zlib:repository.bzl", "zlib_repository")

_REPOSITORIES = {
    "cairo": cairo_repository,
    "com_github_google_glog": glog_repository,
    "com_google_absl": abseil_repository,
    "com_google_googletest": googletest_repository,
    "cuda": cuda_repository,
    "libarchive": libarchive_repository,
    "libjpeg_turbo": libjpeg_turbo_repository,
    "libpng": libpng_repository,
    "libtorch": libtorch_repository,
    "libtorch_cuda_runtime": libtorch_cuda_runtime_repository,
    "nlohmann_json": nlohmann_json_repository,
    "yaml-cpp": yaml_cpp_repository,
    "zlib": zlib_repository,
}

def lockstep_dependencies():
    for name, define in _REPOSITORIES.items():
        if not native.existing_rule(name):
            define(name = name)
