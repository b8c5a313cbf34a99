#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// Labelled colour pictures of 32 × 32 pixels.
struct CifarData {
  at::Tensor images;                 ///< uint8, (N, 3, 32, 32), 0 to 255; red, green, blue.
  at::Tensor labels;                 ///< int64, (N), from 0 on.
  std::vector<std::string> classes;  ///< The name of each label.
};

enum class CifarSplit { kTrain, kTest };
enum class Cifar100Labels { kFine, kCoarse };

/// Reads a part of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html). `path` is one of these, or a folder that
/// holds one of them:
///
/// - the folder `cifar-10-batches-bin`: data_batch_1.bin … data_batch_5.bin, test_batch.bin, batches.meta.txt;
/// - the folder `cifar-10-batches-py`, which torchvision leaves: data_batch_1 … data_batch_5, test_batch, batches.meta;
/// - the archive `cifar-10-binary.tar.gz` or `cifar-10-python.tar.gz`, which is unpacked beside it, once.
///
/// Batches may have any number of pictures. Nothing is fetched, and nothing in a pickle is executed. Errors: NotFound
/// that says what is wanted and where; InvalidArgument, with the file, for what is truncated or damaged, a label that
/// is too large, or no pictures at all.
absl::StatusOr<CifarData> LoadCifar10(const std::string& path, CifarSplit split);

/// The same for CIFAR-100: the folder `cifar-100-binary` (train.bin, test.bin, fine_label_names.txt,
/// coarse_label_names.txt), `cifar-100-python` (train, test, meta), or the archive `cifar-100-binary.tar.gz` or
/// `cifar-100-python.tar.gz`. There are 100 fine and 20 coarse labels.
absl::StatusOr<CifarData> LoadCifar100(const std::string& path, CifarSplit split,
                                       Cifar100Labels labels = Cifar100Labels::kFine);

/// The folder of batches that `path` stands for, after an archive has been unpacked. Ranks call it once per host before
/// they load:
///
///     LOCKSTEP_RETURN_IF_ERROR(OncePerHost([&] { return FindCifar10(path).status(); }, ranks));
absl::StatusOr<std::string> FindCifar10(const std::string& path);
absl::StatusOr<std::string> FindCifar100(const std::string& path);

/// Writes pictures that look like nothing but can be learnt, in the place and format of CIFAR-10's
/// (`folder`/cifar-10-batches-bin), for machines that don't have it: each class is a smooth pattern that is shifted,
/// mixed with another class's, lit differently, and covered with noise. The same bytes for the same numbers on any
/// machine. Errors: InvalidArgument for fewer than 5 training pictures (there are five files) or 1 for testing; those
/// of writing.
absl::Status WriteSyntheticCifar10(const std::string& folder, int64_t train_count, int64_t test_count, uint64_t seed);

}  // namespace lockstep
