#pragma once

#include <absl/status/statusor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace lockstep {

/// The file of pretrained weights that a program wants. `path`: a file, or a folder to look in; empty: the folder where
/// Python's torch.hub keeps them, `$TORCH_HOME/hub/checkpoints` (TORCH_HOME is `$XDG_CACHE_HOME/torch` by default, and
/// that ~/.cache/torch). Nothing is downloaded. `~/` at the front of a path is the home folder.
///
/// In a folder it is `<architecture>-<8 hex digits>.pth`, as torchvision publishes them ("resnet50-11ad3fa6.pth"). Of
/// several, torchvision's newest for its ResNets (IMAGENET1K_V2, then V1), else the one that was changed last.
/// Errors: NotFound, with what is wanted and where; Unavailable with what the system says.
absl::StatusOr<std::string> FindPretrained(const std::string& path, const std::string& architecture);

struct LoadPretrainedOptions {
  /// The module that makes logits of features. When one of its tensors has another shape than the file's, all of it
  /// stays as it is. Empty: everything must fit.
  std::string classifier = "fc";
  bool verify = true;  ///< Whether the file's checksums are compared (LoadPthOptions).
};

struct PretrainedReport {
  std::vector<std::string> left_as_is;  ///< The module's tensors that weren't loaded: its classifier's, or none.
};

/// Copies weights from a file of Python's torch.save into the module, which keeps its devices and dtypes. The file is a
/// state dict, or a checkpoint that has one under "state_dict" or "model"; "module." of DistributedDataParallel is
/// taken off its names. As in Python, batch norms' `num_batches_tracked` may be missing, as older files have none. The
/// file and what wasn't loaded are logged. Not collective: in a world of several ranks load on all, or broadcast
/// afterwards.
///
/// Errors: LoadPth's; InvalidArgument, before anything is changed, with everything else that doesn't fit.
absl::StatusOr<PretrainedReport> LoadPretrained(const std::string& path, torch::nn::Module& module,
                                                const LoadPretrainedOptions& options = {});

}  // namespace lockstep
