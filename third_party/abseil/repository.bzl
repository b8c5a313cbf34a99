"""Abseil from the system, under upstream's labels (`@com_google_absl//absl/status:statusor`)."""

load("//third_party:system_library.bzl", "system_library")

def abseil_repository(name):
    system_library(
        name = name,
        package = "libabsl-dev",
        headers = ["absl/status/statusor.h"],
        targets = {
            "absl/algorithm": ["container", "algorithm"],
            "absl/base": ["core_headers", "base:-labsl_base"],
            "absl/cleanup": ["cleanup"],
            "absl/container": [
                "flat_hash_map:-labsl_raw_hash_set -labsl_hash -labsl_city -labsl_low_level_hash",
                "flat_hash_set:-labsl_raw_hash_set -labsl_hash -labsl_city -labsl_low_level_hash",
                "inlined_vector:-labsl_throw_delegate",
            ],
            "absl/flags": [
                "config:-labsl_flags_config",
                "flag:-labsl_flags_internal -labsl_flags_marshalling -labsl_flags_reflection -labsl_flags_config:@com_google_absl//absl/strings",
                "parse:-labsl_flags_parse -labsl_flags_usage -labsl_flags_usage_internal:@com_google_absl//absl/flags:flag",
                "reflection:-labsl_flags_reflection:@com_google_absl//absl/flags:flag",
                "usage:-labsl_flags_usage -labsl_flags_usage_internal:@com_google_absl//absl/flags:flag",
                "usage_config:-labsl_flags_config -labsl_flags_program_name:@com_google_absl//absl/flags:flag",
            ],
            "absl/memory": ["memory"],
            "absl/status": [
                "status:-labsl_status -labsl_cord:@com_google_absl//absl/strings",
                "statusor:-labsl_statusor:@com_google_absl//absl/status:status",
            ],
            "absl/strings": [
                "strings:-labsl_strings -labsl_strings_internal -labsl_throw_delegate",
                "str_format:-labsl_str_format_internal:@com_google_absl//absl/strings",
                "cord:-labsl_cord:@com_google_absl//absl/strings",
            ],
            "absl/synchronization": ["synchronization:-labsl_synchronization:@com_google_absl//absl/time"],
            "absl/time": ["time:-labsl_time -labsl_time_zone -labsl_civil_time -labsl_int128:@com_google_absl//absl/strings"],
            "absl/types": ["optional", "span", "variant"],
        },
    )
