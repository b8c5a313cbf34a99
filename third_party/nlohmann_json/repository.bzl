"""JSON for Modern C++ from the system, as `@nlohmann_json//:json`."""

load("//third_party:system_library.bzl", "system_library")

def nlohmann_json_repository(name):
    system_library(
        name = name,
        package = "nlohmann-json3-dev",
        headers = ["nlohmann/json.hpp"],
        targets = {"": ["json"]},
    )
