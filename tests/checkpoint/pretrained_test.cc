#include "lockstep/checkpoint/pretrained.h"

#include <ATen/Functions.h>
#include <absl/status/status.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/value.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/batch_norm.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kFolder = "tests/checkpoint/";

/// The network of make_pretrained.py.
struct Net : torch::nn::Module {
  explicit Net(int64_t classes = 5, int64_t channels = 2)
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, channels, 3).bias(false)))),
        bn1(register_module("bn1", nn::BatchNorm2d(channels))),
        fc(register_module("fc", torch::nn::Linear(channels, classes))) {}
  torch::nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  torch::nn::Linear fc;
};

/// The number that fills each tensor, in the order of the state dict; 0 where it isn't one number.
std::vector<int> Numbers(const torch::nn::Module& module) {
  std::vector<int> numbers;
  const Value state = ModuleState(module);
  for (const auto& [key, value] : state.dict()->items) {
    const at::Tensor flat = value.tensor()->reshape({-1});
    numbers.push_back(flat.eq(flat[0]).all().item<bool>() ? flat[0].item<int>() : 0);
  }
  return numbers;
}

class FindPretrainedTest : public testing::Test {
 protected:
  FindPretrainedTest() {
    for (const char* name : {"TORCH_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
    folder_ = std::string(std::getenv("TEST_TMPDIR")) + "/find";
    fs::remove_all(folder_);
    setenv("HOME", folder_.c_str(), 1);
  }

  /// An empty file, changed `age` hours ago.
  std::string Make(const std::string& path, int age = 0) {
    const std::string whole = folder_ + "/" + path;
    fs::create_directories(fs::path(whole).parent_path());
    std::ofstream(whole).flush();
    fs::last_write_time(whole, fs::file_time_type::clock::now() - std::chrono::hours(age));
    return whole;
  }

  std::string Found(const std::string& architecture, const std::string& path = "") {
    const auto found = FindPretrained(path, architecture);
    return found.ok() ? *found : std::string(found.status().message());
  }

  std::string folder_;
};

TEST_F(FindPretrainedTest, LooksWhereTorchHubDoes) {
  const std::string file = "/hub/checkpoints/resnet18-f37072fd.pth";
  const std::string home = Make(".cache/torch" + file), xdg = Make("xdg/torch" + file), torch = Make("torch" + file);
  EXPECT_EQ(Found("resnet18"), home);
  setenv("XDG_CACHE_HOME", (folder_ + "/xdg").c_str(), 1);
  EXPECT_EQ(Found("resnet18"), xdg);
  setenv("TORCH_HOME", "~/torch", 1);
  EXPECT_EQ(Found("resnet18"), torch);
  setenv("TORCH_HOME", "", 1);
  setenv("XDG_CACHE_HOME", "", 1);
  EXPECT_EQ(Found("resnet18"), home);
}

TEST_F(FindPretrainedTest, APathWinsAndAFolderIsLookedInto) {
  Make(".cache/torch/hub/checkpoints/resnet18-f37072fd.pth");
  const std::string file = Make("mine.pth"), other = Make("weights/resnet18-00000000.pth");
  EXPECT_EQ(Found("resnet18", file), file);
  EXPECT_EQ(Found("resnet18", "~/mine.pth"), file);
  EXPECT_EQ(Found("resnet18", folder_ + "/weights"), other);
  EXPECT_EQ(FindPretrained(folder_ + "/none.pth", "resnet18").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Found("resnet18", folder_ + "/none.pth"), "pretrained weights: there is no file " + folder_ + "/none.pth");
}

TEST_F(FindPretrainedTest, OfSeveralTheNewestVersionThenTheOneChangedLast) {
  const std::string old = Make("w/resnet50-00000000.pth", 5), young = Make("w/resnet50-deadbeef.pth", 1);
  EXPECT_EQ(Found("resnet50", folder_ + "/w"), young);
  const std::string v1 = Make("w/resnet50-0676ba61.pth", 7);
  EXPECT_EQ(Found("resnet50", folder_ + "/w"), v1);
  const std::string v2 = Make("w/resnet50-11ad3fa6.pth", 9);
  EXPECT_EQ(Found("resnet50", folder_ + "/w"), v2);
}

TEST_F(FindPretrainedTest, OtherNamesAreNoWeights) {
  Make("w/resnet50-finetune.pth");
  Make("w/resnet50-DEADBEEF.pth");
  Make("w/resnet50-11ad3fa6.pth.partial");
  Make("w/wide_resnet50-11ad3fa6.pth");
  Make("w/resnet501-11ad3fa6.pth");
  fs::create_directory(folder_ + "/w/resnet50-11ad3fa6.pth");
  fs::create_symlink("nowhere", folder_ + "/w/resnet50-0676ba61.pth");
  EXPECT_EQ(Found("resnet50", folder_ + "/w"),
            "there are no pretrained weights of 'resnet50': no such file in " + folder_ +
                "/w; wanted: resnet50-11ad3fa6.pth or resnet50-0676ba61.pth of torchvision, or another "
                "resnet50-<8 hex digits>.pth; or name a file");
}

TEST_F(FindPretrainedTest, NoFolderIsNotFoundWithWhatIsWanted) {
  EXPECT_EQ(FindPretrained("", "vgg11").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Found("vgg11"), "there are no pretrained weights of 'vgg11': there is no folder " + folder_ +
                                "/.cache/torch/hub/checkpoints; wanted: vgg11-<8 hex digits>.pth; or name a file");
}

TEST(LoadPretrained, ReadsACheckpointOfAWrappedModel) {
  Net net;
  const auto report = LoadPretrained(kFolder + "pretrained.pth", net);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->left_as_is, IsEmpty());
  EXPECT_THAT(Numbers(net), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(LoadPretrained, ReadsAnOlderFileWithoutNumBatchesTracked) {
  Net net;
  const auto report = LoadPretrained(kFolder + "pretrained_legacy.pth", net);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Numbers(net), ElementsAre(1, 2, 3, 4, 5, 0, 7, 8));
}

TEST(LoadPretrained, LeavesAClassifierOfAnotherSizeAndSaysSo) {
  for (const char* file : {"pretrained.pth", "pretrained_legacy.pth"}) {
    Net net(/*classes=*/3);
    const at::Tensor before = net.fc->weight.clone();
    const auto report = LoadPretrained(kFolder + file, net);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->left_as_is, ElementsAre("fc.weight", "fc.bias"));
    EXPECT_TRUE(at::equal(net.fc->weight, before));
    EXPECT_EQ(Numbers(net)[0], 1);
  }
}

TEST(LoadPretrained, WhatElseDoesntFitIsAnErrorAndChangesNothing) {
  Net net(/*classes=*/3, /*channels=*/4);
  const at::Tensor before = net.conv1->weight.clone();
  const auto report = LoadPretrained(kFolder + "pretrained.pth", net);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("pretrained.pth: weights of another model: 'conv1.weight' has shape [2, 3, 3, 3] in the "
                        "checkpoint, [4, 3, 3, 3] in the model; 'bn1.weight' has shape [2]"));
  EXPECT_TRUE(at::equal(net.conv1->weight, before));

  torch::nn::Linear other(2, 5);
  EXPECT_THAT(std::string(LoadPretrained(kFolder + "pretrained_legacy.pth", *other).status().message()),
              HasSubstr("'weight' is missing from the checkpoint; 'bias' is missing from the checkpoint; "
                        "'bn1.bias' is not in the model"));
}

TEST(LoadPretrained, TheClassifierIsTheOneThatIsNamed) {
  Net net(/*classes=*/3);
  for (const char* classifier : {"", "head", "f"}) {
    LoadPretrainedOptions options;
    options.classifier = classifier;
    EXPECT_THAT(std::string(LoadPretrained(kFolder + "pretrained.pth", net, options).status().message()),
                HasSubstr("weights of another model: 'fc.weight' has shape [5, 2]"))
        << classifier;
  }
}

TEST(LoadPretrained, ResNet18TakesAllButTheClassesAndKeepsItsDtype) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/resnet18.pth";
  const auto published = models::ResNet18();
  ASSERT_TRUE(SavePth(ModuleState(*published), path).ok());
  auto net = models::ResNet18(10);
  net->to(at::kBFloat16);
  const auto report = LoadPretrained(path, *net);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->left_as_is, ElementsAre("fc.weight", "fc.bias"));
  EXPECT_TRUE(at::equal(net->conv1->weight, published->conv1->weight.to(at::kBFloat16)));
  EXPECT_EQ(net->fc->weight.size(0), 10);
  fs::remove(path);
}

TEST(LoadPretrained, FilesThatHoldNoStateAreRefusedByName) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/other.pth";
  Net net;
  ASSERT_TRUE(SavePth(Value(at::ones({2})), path).ok());
  EXPECT_EQ(LoadPretrained(path, net).status().message(), path + ": holds no state dict but a tensor");
  ASSERT_TRUE(SavePth(Value(ValueDict()), path).ok());
  EXPECT_THAT(std::string(LoadPretrained(path, net).status().message()), HasSubstr("'conv1.weight' is missing"));
  Value numbers;
  numbers.set("model", 3);
  numbers.set("module.fc.weight", "text");
  ASSERT_TRUE(SavePth(numbers, path).ok());
  EXPECT_THAT(std::string(LoadPretrained(path, net).status().message()), HasSubstr("'model' is not in the model"));
  std::ofstream(path) << "no checkpoint";
  EXPECT_THAT(std::string(LoadPretrained(path, net).status().message()), HasSubstr(path));
  EXPECT_EQ(LoadPretrained(path + ".none", net).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep
