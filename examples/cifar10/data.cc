#include "lockstep/examples/cifar10/data.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/agree.h"
#include "lockstep/data/cifar.h"
#include "lockstep/data/device_source.h"
#include "lockstep/data/once_per_host.h"
#include "lockstep/data/transforms/color_jitter.h"
#include "lockstep/data/transforms/crop.h"
#include "lockstep/data/transforms/mix.h"
#include "lockstep/data/transforms/pixels.h"
#include "lockstep/data/transforms/random_erasing.h"
#include "lockstep/data/transforms/resize.h"
#include "lockstep/samplers/distributed_sampler.h"

namespace cifar10 {
namespace {

using namespace lockstep::transforms;  // NOLINT

const std::vector<double> kMean{0.485, 0.456, 0.406}, kStd{0.229, 0.224, 0.225};

/// Where the pictures are: what the user has, or the stand-in.
absl::StatusOr<std::string> Prepare(const Config& config) {
  if (config.synthetic == 0) {
    auto found = lockstep::FindCifar10(config.data);
    if (found.ok() || !absl::IsNotFound(found.status())) return found;
    return absl::NotFoundError(
        absl::StrCat(std::string(found.status().message()),
                     "; or train on a stand-in that can be learnt: --synthetic=10000, or another number of pictures"));
  }
  // Of one size and seed each, so that no run changes what another one reads.
  const std::string folder = absl::StrCat(config.data, "/synthetic-", config.synthetic, "-", config.seed);
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/cifar-10-batches-bin/batches.meta.txt", ignored))
    return folder;  // written last
  LOCKSTEP_RETURN_IF_ERROR(
      lockstep::WriteSyntheticCifar10(folder, config.synthetic, config.synthetic / 5, config.seed));
  return folder;
}

Transform TrainTransforms(const Config& config) {
  std::vector<Transform> chain;
  const bool small = config.picture_size == 32;
  if (small) chain.push_back(RandomCrop(32, 32, config.crop_padding));
  if (config.flip > 0) chain.push_back(RandomHorizontalFlip(config.flip));
  chain.push_back(ToFloat());
  if (config.color_jitter > 0) {
    lockstep::transforms::ColorJitterOptions jitter;
    jitter.brightness = jitter.contrast = jitter.saturation = {1 - config.color_jitter, 1 + config.color_jitter};
    jitter.hue = {-config.color_jitter / 4, config.color_jitter / 4};
    chain.push_back(ColorJitter(jitter));
  }
  chain.push_back(Normalize(kMean, kStd));  // before the pictures are large; resizing is linear
  if (!small) {
    chain.push_back(ResizeAndRandomCrop(config.resize, config.resize, config.picture_size, config.picture_size));
  }
  if (config.random_erasing > 0) {
    RandomErasingOptions erasing;
    erasing.p = config.random_erasing;
    chain.push_back(RandomErasing(erasing));
  }
  if (config.mixup > 0) chain.push_back(MixUp(config.mixup, config.num_classes));
  if (config.cutmix > 0) chain.push_back(CutMix(config.cutmix, config.num_classes));
  return Compose(std::move(chain));
}

Transform EvaluationTransforms(const Config& config) {
  std::vector<Transform> chain{ToFloat(), Normalize(kMean, kStd)};
  if (config.picture_size != 32) chain.push_back(Resize(config.picture_size, config.picture_size));
  return Compose(std::move(chain));
}

std::unique_ptr<lockstep::TensorLoader> MakeLoader(lockstep::CifarData data, bool training, Transform transform,
                                                   const Config& config, const Plan& plan,
                                                   const lockstep::ProcessGroupPtr& group) {
  lockstep::DistributedSamplerOptions order;
  order.seed = config.seed;
  order.shuffle = order.pad = training;  // a validation counts each picture once
  lockstep::DistributedSampler sampler(static_cast<size_t>(data.labels.numel()),
                                       static_cast<size_t>(lockstep::GetWorldSize(group)),
                                       static_cast<size_t>(lockstep::GetRank(group)), order);
  lockstep::LoaderOptions options;
  options.batch_size = plan.batch_size;
  options.drop_last = training;
  options.num_workers = config.num_workers;
  options.seed = config.seed;
  if (plan.device_index >= 0) {
    transform = [inner = std::move(transform)](lockstep::TensorBatch batch, const lockstep::BatchKeys& keys) {
      return lockstep::PinMemory(inner(std::move(batch), keys));
    };
  }
  return std::make_unique<lockstep::TensorLoader>(std::move(data.images), std::move(data.labels), std::move(sampler),
                                                  options, std::move(transform));
}

}  // namespace

absl::StatusOr<Data> OpenData(const Config& config, const Plan& plan, const lockstep::ProcessGroupPtr& group) {
  lockstep::HostRanks ranks;
  ranks.group = group;
  ranks.local_rank = plan.environment.local_rank;
  ranks.shared_folder = config.shared_folder;
  LOCKSTEP_RETURN_IF_ERROR(lockstep::OncePerHost([&] { return Prepare(config).status(); }, ranks));
  const auto path = Prepare(config);  // is there by now
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(path.status(), group));
  auto train = lockstep::LoadCifar10(*path, lockstep::CifarSplit::kTrain);
  auto test = lockstep::LoadCifar10(*path, lockstep::CifarSplit::kTest);
  absl::Status status = train.ok() ? test.status() : train.status();
  if (status.ok() && config.num_classes < static_cast<int64_t>(train->classes.size())) {
    status = absl::InvalidArgumentError(
        absl::StrCat("num_classes: ", config.num_classes, ", but the data has ", train->classes.size()));
  }
  const auto shares = static_cast<int64_t>(config.batch_size);
  if (status.ok() && train->labels.numel() < shares) {
    status = absl::InvalidArgumentError(
        absl::StrCat("batch_size: ", shares, " is more than the ", train->labels.numel(), " training pictures"));
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(status, group));
  return Data{MakeLoader(*std::move(train), true, TrainTransforms(config), config, plan, group),
              MakeLoader(*std::move(test), false, EvaluationTransforms(config), config, plan, group)};
}

}  // namespace cifar10
