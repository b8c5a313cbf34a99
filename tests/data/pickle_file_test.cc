#include "lockstep/checkpoint/pickle_file.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep {
namespace {

const std::string kFolder = "tests/data/cifar/";

TEST(PickleFile, ArraysOfEachDtypeAndOrderBecomeTensors) {
  for (const char* protocol : {"2", "4", "5"}) {
    const auto arrays = LoadPickle(kFolder + "arrays_" + protocol + ".pkl");
    ASSERT_TRUE(arrays.ok()) << arrays.status();
    const auto expect = [&](const char* name, const at::Tensor& want) {
      const Value* value = arrays->find(name);
      ASSERT_TRUE(value != nullptr && value->tensor() != nullptr) << name;
      EXPECT_EQ(value->tensor()->scalar_type(), want.scalar_type()) << name;
      EXPECT_EQ(value->tensor()->sizes(), want.sizes()) << name;
      EXPECT_EQ(value->tensor()->strides(), want.strides()) << name << protocol;
      EXPECT_TRUE(value->tensor()->to(at::kComplexDouble).equal(want.to(at::kComplexDouble))) << name;
    };
    const at::Tensor six = at::arange(6, at::kLong).reshape({2, 3});
    expect("bool", six.to(at::kBool));
    expect("int8", six.to(at::kChar));
    expect("int16", six.to(at::kShort));
    expect("int32", six.to(at::kInt));
    expect("int64", six);
    expect("uint8", six.to(at::kByte));
    expect("uint16", six.to(at::kUInt16));
    expect("uint32", six.to(at::kUInt32));
    expect("uint64", six.to(at::kUInt64));
    expect("float16", six.to(at::kHalf));
    expect("float32", six.to(at::kFloat));
    expect("float64", six.to(at::kDouble));
    expect("complex64", six.to(at::kComplexFloat));
    expect("fortran", at::arange(24, at::kInt).reshape({2, 3, 4}).permute({2, 1, 0}).contiguous().permute({2, 1, 0}));
    expect("strided", at::arange(0, 10, 3, at::kLong));
    expect("scalar", at::scalar_tensor(7, at::kLong));
    expect("empty", at::empty({0, 3}));
  }
}

TEST(PickleFile, WhatIsRefusedIsNamed) {
  const auto expect = [](const std::string& name, const std::string& want) {
    const auto status = LoadPickle(kFolder + "refused_" + name + ".pkl").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(want), std::string::npos) << status << "\nwant: " << want;
    EXPECT_NE(status.message().find("refused_" + name), std::string::npos) << status;
  };
  expect("big_endian", "big-endian");
  expect("objects", "'O8'");
  expect("wide", "'c16'");
  expect("masked", "numpy.ma.core._mareconstruct is not allowed");
  expect("fields", "'V4'");
  expect("text", "'U2'");
  expect("function", "posix.system is not allowed");
  expect("matrix", "matrix is not allowed");
  EXPECT_EQ(LoadPickle("/nowhere").status().code(), absl::StatusCode::kNotFound);
}

absl::Status LoadBytes(const std::string& bytes) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/hostile.pkl";
  std::ofstream(path, std::ios::binary) << bytes;
  return LoadPickle(path).status();
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(PickleFile, EveryTruncationIsAnError) {
  for (const char* protocol : {"2", "5"}) {
    const std::string whole = Slurp(kFolder + "arrays_" + protocol + ".pkl");
    for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(LoadBytes(whole.substr(0, size)).ok()) << size;
  }
}

TEST(PickleFile, NoByteThatIsWrongEndsTheProcess) {
  const std::string whole = Slurp(kFolder + "arrays_2.pkl");
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      LoadBytes(damaged).IgnoreError();
    }
  }
}

using std::string_literals::operator""s;

const std::string kDtype = "cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"s;

/// An array of `shape`, a tuple's instructions, over `bytes`.
std::string Array(const std::string& shape, const std::string& bytes) {
  std::string size(4, '\0');
  for (int i = 0; i < 4; ++i) size[i] = static_cast<char>(bytes.size() >> (8 * i));
  return "\x80\x02"s + "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01"s + "b\x87R(K\x01"s +
         shape + kDtype + "\x89T"s + size + bytes + "tb.";
}

TEST(PickleFile, ShapesThatDoNotFitAreErrors) {
  EXPECT_TRUE(LoadBytes(Array("K\x02\x85", "ab")).ok()) << LoadBytes(Array("K\x02\x85", "ab"));
  EXPECT_NE(LoadBytes(Array("K\x03\x85", "ab")).message().find("shape doesn't fit"), std::string::npos);
  EXPECT_NE(LoadBytes(Array("K\x01\x85", "ab")).message().find("shape doesn't fit"), std::string::npos);
  EXPECT_FALSE(LoadBytes(Array("J\xff\xff\xff\xff\x85", "ab")).ok());
  // 2³² · 2³² elements of no bytes: none modulo 2⁶⁴.
  const std::string huge = "\x8a\x05\0\0\0\0\x01"s;
  EXPECT_NE(LoadBytes(Array(huge + huge + "\x86", "")).message().find("shape doesn't fit"), std::string::npos);
}

TEST(PickleFile, TheSameBytesForEverMoreArraysAreAnError) {
  std::string pickle = "\x80\x02]cnumpy.core.multiarray\n_reconstruct\nq\x01"s + "0cnumpy\nndarray\nq\x02"s +
                       "0(K\x01J\0\0\x10\0\x85"s + kDtype + "\x89T\0\0\x10\0"s + std::string(1 << 20, 'x') + "tq\x03"s +
                       "0("s;
  for (int i = 0; i < 1000; ++i) pickle += "h\x01h\x02K\0\x85U\x01"s + "b\x87Rh\x03"s + "b"s;
  const auto status = LoadBytes(pickle + "e.");
  EXPECT_NE(status.message().find("too much memory"), std::string::npos) << status;
}

}  // namespace
}  // namespace lockstep
