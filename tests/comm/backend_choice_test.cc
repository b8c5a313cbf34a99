#include "lockstep/comm/backend_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/comm/nccl/nccl.h"

namespace lockstep {
namespace {

std::string Parsed(const std::string& text, bool cuda) {
  const auto choice = ParseBackend(text, cuda);
  return choice.ok() ? choice->cpu + "|" + choice->cuda : std::string(choice.status().message());
}

TEST(BackendChoice, OneNameForAllDevices) {
  EXPECT_EQ(Parsed("auto", false), "auto|");
  EXPECT_EQ(Parsed("shm", false), "shm|");
  EXPECT_EQ(Parsed("gloo", false), "gloo|");
  EXPECT_EQ(Parsed("gloo", true), "gloo|gloo");
  EXPECT_EQ(Parsed("auto", true), HasNccl() ? "auto|nccl" : "auto|gloo");
}

TEST(BackendChoice, OneForEachDevice) {
  EXPECT_EQ(Parsed("cpu:shm", false), "shm|");
  EXPECT_EQ(Parsed("cpu:gloo,cuda:gloo", true), "gloo|gloo");
  EXPECT_EQ(Parsed("cuda:gloo,cpu:shm", true), "shm|gloo");
  EXPECT_EQ(Parsed("cpu:gloo,cuda:gloo", false), "gloo|") << "a run on the CPU moves no CUDA tensors";
  EXPECT_EQ(Parsed("cpu:auto", true), HasNccl() ? "auto|nccl" : "auto|gloo");
  EXPECT_TRUE(!HasNccl() || Parsed("cpu:shm,cuda:nccl", true) == "shm|nccl");
}

TEST(BackendChoice, NamesWhatIsWrong) {
  const auto expect = [](const std::string& text, bool cuda, const std::string& wanted) {
    EXPECT_NE(Parsed(text, cuda).find(wanted), std::string::npos) << text << ": " << Parsed(text, cuda);
  };
  expect("smoke", false, "backend smoke: unknown; known: auto, shm, gloo, hierarchical, nccl");
  expect("", false, "unknown");
  expect("mpi", false, "mpirun");
  expect("shm", true, "shm moves CPU tensors only");
  expect("cpu:nccl", true, HasNccl() ? "NCCL moves CUDA tensors only" : "built without CUDA");
  expect("cuda:shm", true, "shm moves CPU tensors only");
  expect("cpu:shm,cpu:gloo", false, "two backends for cpu");
  expect("tpu:shm", false, "'tpu:shm' is not DEVICE:BACKEND");
  expect("cpu:shm,", false, "'' is not DEVICE:BACKEND");
  expect("cpu:shm:x", false, "is not DEVICE:BACKEND");
  expect("cpu:", false, "unknown");
  expect("nccl", false, HasNccl() ? "NCCL moves CUDA tensors only" : "built without CUDA");
}

}  // namespace
}  // namespace lockstep
