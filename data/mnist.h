#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep {

/// Labelled pictures of 28 × 28 grey pixels.
struct MnistData {
  at::Tensor images;  ///< uint8, (N, 1, 28, 28), 0 to 255.
  at::Tensor labels;  ///< int64, (N), 0 to 9.
};

/// A CSV file whose rows are `label,p0,…,p783`; a byte-order mark, a header row, CRLF and blank lines at the end are
/// allowed. Errors: NotFound; InvalidArgument that names the row (the first line of the file is 1) and the column
/// (the label is 1) of what is no number from 0 to 255, a label over 9, or a row of another length; an empty file.
absl::StatusOr<MnistData> LoadMnistCsv(const std::string& path);

/// The IDX files of a folder, in the order train, t10k, concatenated; each plain or with `.gz`:
/// `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`. One of
/// the two pairs is enough. Errors: NotFound that lists the names, InvalidArgument for a wrong magic number, a
/// truncated file or counts that differ. Format: http://yann.lecun.com/exdb/mnist.
absl::StatusOr<MnistData> LoadMnistIdx(const std::string& folder);

/// A CSV file or a folder of IDX files.
absl::StatusOr<MnistData> LoadMnist(const std::string& path);

}  // namespace lockstep
