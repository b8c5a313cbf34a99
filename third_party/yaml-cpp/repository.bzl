"""yaml-cpp from the system, as `@yaml-cpp//:yaml-cpp`."""

load("//third_party:system_library.bzl", "system_library")

def yaml_cpp_repository(name):
    system_library(
        name = name,
        package = "libyaml-cpp-dev",
        headers = ["yaml-cpp/yaml.h"],
        targets = {"": ["yaml-cpp:-lyaml-cpp"]},
    )
