// Files that Python wrote, in all formats; see make_golden.py. And files that nobody should have written.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "lockstep/checkpoint/pth.h"
#include "test_files.h"

namespace lockstep {
namespace {

using namespace std::string_literals;

const std::string kFolder = "tests/checkpoint/";

template <typename T>
const T& Get(const Value& value, const std::string& key) {
  const Value* found = value.find(key);
  if (found == nullptr) throw std::runtime_error(key + " is missing");
  const T* typed = std::get_if<T>(&found->get());
  if (typed == nullptr) throw std::runtime_error(key + " is a " + found->type_name());
  return *typed;
}

void ExpectTensor(const Value& value, const std::string& key, const at::Tensor& expected,
                  at::IntArrayRef strides = {}) {
  const at::Tensor& tensor = Get<at::Tensor>(value, key);
  EXPECT_EQ(tensor.scalar_type(), expected.scalar_type()) << key;
  EXPECT_EQ(tensor.sizes(), expected.sizes()) << key;
  EXPECT_TRUE(tensor.detach().resolve_conj().to(at::kComplexDouble).equal(expected.to(at::kComplexDouble))) << key;
  if (!strides.empty()) {
    EXPECT_EQ(tensor.strides(), strides) << key;
  }
}

void ExpectEverything(const Value& v) {
  EXPECT_TRUE(v.find("none")->is_none());
  EXPECT_TRUE(Get<bool>(v, "true"));
  EXPECT_EQ(Get<int64_t>(v, "int"), 7);
  EXPECT_EQ(Get<int64_t>(v, "negative"), -300);
  EXPECT_EQ(Get<int64_t>(v, "large"), int64_t{1} << 40);
  EXPECT_EQ(Get<ValueBigInt>(v, "huge").bytes, std::string(8, '\0') + "\x40");
  EXPECT_EQ(Get<ValueBigInt>(v, "minus huge").bytes, std::string(8, '\0') + "\xC0");
  EXPECT_EQ(Get<double>(v, "float"), 0.1);
  EXPECT_TRUE(std::isinf(Get<double>(v, "inf")));
  EXPECT_EQ(Get<std::string>(v, "text"), "ünïcode ☃");
  EXPECT_EQ(Get<std::string>(v, "empty text"), "");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(Get<ValueBytes>(v, "bytes").bytes, all);
  EXPECT_EQ(Get<ValueBytes>(v, "no bytes").bytes, "");
  EXPECT_EQ(Get<ValueBytes>(v, "bytearray").bytes, "\x00\xff"s);
  EXPECT_EQ(Get<std::complex<double>>(v, "complex"), std::complex<double>(1.5, -2));
  const auto& list = Get<ValueList>(v, "list");
  EXPECT_EQ((*list[1].items())[1].items()->size(), 0u);
  EXPECT_EQ(*(*Get<ValueTuple>(v, "tuple").items[1].items())[0].string(), "a");
  EXPECT_EQ(Get<ValueSet>(v, "set").items.size(), 2u);
  const Value* dict = v.find("dict")->find("a");
  EXPECT_EQ(*dict->dict()->items[0].second.string(), "one");
  EXPECT_EQ(dict->dict()->items[1].first.items()->size(), 2u);
  EXPECT_EQ(Get<ValueDict>(v, "counter").kind, ValueDict::Kind::kCounter);
  EXPECT_EQ(*v.find("counter")->find("x")->number(), 3);
  EXPECT_EQ(v.find("default")->find("k")->items()->size(), 1u);
  EXPECT_TRUE(Get<ValueTuple>(v, "size").is_size);
  EXPECT_EQ(*Get<ValueTuple>(v, "size").items[1].number(), 3);
  EXPECT_EQ(Get<at::ScalarType>(v, "dtype"), at::kBFloat16);
  EXPECT_EQ(Get<at::Device>(v, "device"), at::Device(at::kCUDA, 1));
  EXPECT_EQ(Get<at::Device>(v, "cpu"), at::Device(at::kCPU));
  EXPECT_EQ(*v.find("namespace")->find("lr")->number(), 0.1);
  const auto& numpy = Get<ValueList>(v, "numpy");
  EXPECT_EQ(*numpy[0].number(), 2.5);
  EXPECT_EQ(*numpy[1].number(), 1.25);
  EXPECT_EQ(*numpy[2].number(), -4);
  EXPECT_TRUE(std::get<bool>(numpy[3].get()));
  EXPECT_EQ(*numpy[4].number(), 200);
  const auto& state = Get<ValueDict>(v, "state");
  EXPECT_EQ(state.kind, ValueDict::Kind::kOrdered);
  ASSERT_EQ(state.attributes.size(), 1u);
  EXPECT_EQ(*state.attributes[0].first.string(), "_metadata");
  EXPECT_EQ(*state.attributes[0].second.find("layer")->find("version")->number(), 2);

  const at::Tensor base = at::arange(12., at::kFloat).view({3, 4});
  ExpectTensor(*v.find("state"), "weight", base);
  EXPECT_TRUE(Get<at::Tensor>(v, "parameter").requires_grad());
  EXPECT_FALSE(Get<at::Tensor>(v, "frozen").requires_grad());
  EXPECT_TRUE(Get<at::Tensor>(v, "needs gradient").requires_grad());
  ExpectTensor(v, "parameter", at::full({2}, 4.));
  ExpectTensor(v, "transposed", base.t(), {1, 4});
  ExpectTensor(v, "part", base.slice(0, 1).slice(1, 1, 3), {4, 1});
  ExpectTensor(v, "expanded", at::full({3}, 5.), {0});
  ExpectTensor(v, "scalar", at::scalar_tensor(3.5));
  ExpectTensor(v, "empty", at::empty({0, 4}));
  ExpectTensor(v, "strided", at::arange(0, 10, 3, at::kLong), {3});
  ExpectTensor(v, "conjugate", at::full({1}, c10::complex<double>(1, -2), at::kComplexFloat));
  ExpectTensor(v, "channels_last", at::arange(24., at::kFloat).view({1, 2, 3, 4}), {24, 1, 8, 2});
  const auto& shared = Get<ValueList>(v, "shared");
  EXPECT_TRUE(shared[0].tensor()->is_alias_of(*shared[1].tensor()));
  EXPECT_TRUE(shared[0].tensor()->is_alias_of(Get<at::Tensor>(v, "transposed")));
  for (const auto& [name, dtype] : std::map<std::string, at::ScalarType>{{"float64", at::kDouble},
                                                                         {"float16", at::kHalf},
                                                                         {"bfloat16", at::kBFloat16},
                                                                         {"int64", at::kLong},
                                                                         {"int32", at::kInt},
                                                                         {"int16", at::kShort},
                                                                         {"int8", at::kChar},
                                                                         {"uint8", at::kByte},
                                                                         {"bool", at::kBool},
                                                                         {"complex64", at::kComplexFloat},
                                                                         {"complex128", at::kComplexDouble},
                                                                         {"uint16", at::kUInt16},
                                                                         {"uint32", at::kUInt32},
                                                                         {"uint64", at::kUInt64},
                                                                         {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                                         {"float8_e5m2", at::kFloat8_e5m2},
                                                                         {"complex32", at::kComplexHalf}}) {
    const at::Tensor& tensor = Get<at::Tensor>(v, "of " + name);
    EXPECT_EQ(tensor.scalar_type(), dtype) << name;
    const at::Tensor wide = tensor.is_complex() ? at::real(tensor.to(at::kComplexDouble)) : tensor.to(at::kDouble);
    EXPECT_TRUE(wide.equal(at::tensor({0., 1., dtype == at::kBool ? 1. : 2.}))) << name;
  }
}

TEST(PythonFiles, EverythingThatWeightsOnlyAcceptsInEachFormat) {
  for (const char* name : {"everything.pth", "legacy.pth", "deflated.pth"}) {
    SCOPED_TRACE(name);
    for (const bool verify : {true, false}) {
      LoadPthOptions options;
      options.verify = verify;
      const auto value = LoadPth(kFolder + name, options);
      ASSERT_TRUE(value.ok()) << value.status();
      ExpectEverything(*value);
    }
  }
}

TEST(PythonFiles, WhatWeWriteOfItIsTheSameAgain) {
  const auto value = LoadPth(kFolder + "everything.pth");
  ASSERT_TRUE(value.ok());
  const std::string path = Temporary("again.pth");
  const absl::Status saved = SavePth(*value, path);
  ASSERT_TRUE(saved.ok()) << saved;
  auto again = LoadPth(path);
  ASSERT_TRUE(again.ok()) << again.status();
  // A state's tensors are detached.
  for (const char* name : {"parameter", "needs gradient"}) Get<at::Tensor>(*again, name).requires_grad_();
  ExpectEverything(*again);
}

TEST(PythonFiles, MappedTensorsAreOursAndNotTheFiles) {
  const std::string path = Temporary("mapped.pth");
  const at::Tensor tensor = at::zeros({100000});
  ASSERT_TRUE(SavePth(Value(tensor), path).ok());
  const auto first = LoadPth(path), second = LoadPth(path);
  first->tensor()->fill_(1);
  EXPECT_EQ(second->tensor()->sum().item<double>(), 0);
  EXPECT_EQ(LoadPth(path)->tensor()->sum().item<double>(), 0);
  ASSERT_TRUE(SavePth(Value(at::ones({3})), path).ok());
  EXPECT_EQ(second->tensor()->sum().item<double>(), 0) << "the old file lives on while it is mapped";
}

TEST(PythonFiles, MapLocationMovesEachStorageOnce) {
  LoadPthOptions options;
  options.map_location = at::kMeta;  // the one other device that is here
  const auto value = LoadPth(kFolder + "everything.pth", options);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_TRUE(Get<at::Tensor>(*value, "part").is_meta());
  EXPECT_TRUE(Get<at::Tensor>(*value, "part").is_alias_of(Get<at::Tensor>(*value, "transposed")));
  if (!at::hasCUDA()) {
    options.map_location = at::Device(at::kCUDA, 0);
    EXPECT_NE(LoadPth(kFolder + "everything.pth", options).status().message().find("everything.pth"),
              std::string::npos);
  }
}

TEST(PythonFiles, WhatIsRefusedIsNamed) {
  for (const auto& [what, why] :
       std::map<std::string, std::string>{{"quantised", "quantised"},
                                          {"sparse", "sparse"},
                                          {"nested", "nested"},
                                          {"meta", "no numbers"},
                                          {"array", "numpy array"},
                                          {"function", "posix.system is not allowed"},
                                          {"class", "argparse.ArgumentParser is not allowed"}}) {
    const auto status = LoadPth(kFolder + "refused_" + what + ".pth").status();
    EXPECT_NE(status.message().find(why), std::string::npos) << what << ": " << status;
    EXPECT_NE(status.message().find("refused_" + what), std::string::npos) << status;
  }
}

/// A .pth file in the older format with this pickle for its value.
std::string Legacy(const std::string& pickle, const std::string& rest = "\x80\x02]."s) {
  const std::string magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 15);
  return magic + std::string("\x80\x02M\xe9\x03.") + "\x80\x02}X\x0d\0\0\0little_endian\x88s."s +
         std::string("\x80\x02") + pickle + "." + rest;
}

absl::Status LoadBytes(const std::string& bytes) {
  const std::string path = Temporary("hostile.pth");
  std::ofstream(path, std::ios::binary) << bytes;
  return LoadPth(path).status();
}

std::string Repeat(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(HostilePickles, AreRefused) {
  ASSERT_TRUE(LoadBytes(Legacy("K\x07")).ok()) << LoadBytes(Legacy("K\x07"));
  const std::map<std::string, std::string> pickles = {
      {"a call of the system", "cposix\nsystem\nX\x05\0\0\0false\x85R"s},
      {"builtins",
       "c__builtin__\neval\nX\x01\0\0\0"
       "1\x85R"s},
      {"a path for a module", "c../../etc/passwd\nx\n"},
      {"deep nesting", Repeat("]", 2000000) + Repeat("a", 1999999)},
      {"a circle", "]q\0h\0a"s},
      {"doubling lists",
       "]q" + std::string(1, '\0') +
           Repeat("]h" + std::string(1, '\0') + "ah" + std::string(1, '\0') + "aq" + std::string(1, '\0'), 60)},
      {"one text very often",
       "X\x00\x00\x10\x00"s + std::string(1 << 20, 'x') + "q\0]("s + Repeat("h\0"s, 500000) + "e"},
      {"a text longer than the file", "X\xff\xff\xff\x7f"s},
      {"a long integer longer than the file", "\x8b\xff\xff\xff\x7f"s},
      {"nothing on the stack", "R"},
      {"marks only", Repeat("(", 1000)},
      {"a far memo", "j\xff\xff\xff\xff"s},
      {"a storage of a negative size",
       "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
       "0X\x03\0\0\0cpuJ\xff\xff\xff\xffNtQ"s},
  };
  for (const auto& [what, pickle] : pickles) {
    const absl::Status status = LoadBytes(Legacy(pickle));
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << what << status;
  }
}

/// The bytes of a number in the file's order.
template <typename T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

/// A zip file of one deflated member that says it has `size` bytes.
std::string ZipOfOne(const std::string& name, const std::string& deflated, uint32_t size, uint32_t crc,
                     uint16_t flags = 0) {
  const std::string common = Raw<uint16_t>(20) + Raw(flags) + Raw<uint16_t>(8) + Raw<uint32_t>(0) + Raw(crc) +
                             Raw<uint32_t>(static_cast<uint32_t>(deflated.size())) + Raw(size) +
                             Raw<uint16_t>(static_cast<uint16_t>(name.size())) + Raw<uint16_t>(0);
  const std::string local = Raw<uint32_t>(0x04034b50) + common + name + deflated;
  const std::string entry = Raw<uint32_t>(0x02014b50) + Raw<uint16_t>(20) + common + Raw<uint16_t>(0) +
                            Raw<uint16_t>(0) + Raw<uint16_t>(0) + Raw<uint32_t>(0) + Raw<uint32_t>(0) + name;
  return local + entry + Raw<uint32_t>(0x06054b50) + Raw<uint32_t>(0) + Raw<uint16_t>(1) + Raw<uint16_t>(1) +
         Raw<uint32_t>(static_cast<uint32_t>(entry.size())) + Raw<uint32_t>(static_cast<uint32_t>(local.size())) +
         Raw<uint16_t>(0);
}

std::string Deflate(const std::string& bytes) {
  std::string out(compressBound(bytes.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(HostileZips, AreRefused) {
  const std::string pickle("\x80\x02K\x07.", 5), deflated = Deflate(pickle);
  const auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(pickle.data()), 5));
  ASSERT_TRUE(LoadBytes(ZipOfOne("x/data.pkl", deflated, 5, crc)).ok());
  const std::string bomb = Deflate(std::string(200 << 20, '\0'));
  EXPECT_NE(LoadBytes(ZipOfOne("x/data.pkl", bomb, 200 << 20, 0)).message().find("would take more than"),
            std::string::npos);
  const std::map<std::string, std::string> files = {
      {"a bomb that says it is small", ZipOfOne("x/data.pkl", bomb, 1000, crc)},
      {"a small member that says it is large", ZipOfOne("x/data.pkl", deflated, 60 << 20, crc)},
      {"another checksum", ZipOfOne("x/data.pkl", deflated, 5, crc + 1)},
      {"encrypted", ZipOfOne("x/data.pkl", deflated, 5, crc, 1)},
      {"no checkpoint", ZipOfOne("x/other.pkl", deflated, 5, crc)},
      {"an absolute path", ZipOfOne("/etc/passwd", deflated, 5, crc)},
  };
  for (const auto& [what, bytes] : files) EXPECT_FALSE(LoadBytes(bytes).ok()) << what;
}

TEST(Fuzz, NoMutatedFileCrashesOrHangs) {
  const int rounds = std::getenv("LOCKSTEP_EXHAUSTIVE") != nullptr ? 100000 : 2000;
  std::mt19937_64 random(1206);
  const std::string path = Temporary("fuzz.pth");
  std::vector<std::string> files;
  for (const char* name : {"everything.pth", "legacy.pth", "deflated.pth"}) files.push_back(Slurp(kFolder + name));
  int read = 0;
  for (int i = 0; i < rounds; ++i) {
    std::string bytes = files[static_cast<size_t>(i) % files.size()];
    for (int change = 1 + static_cast<int>(random() % 4); change > 0; --change) {
      const size_t at = random() % bytes.size(), length = 1 + random() % 16;
      switch (random() % 5) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
        case 2: bytes.erase(at, length); break;
        case 3: bytes.insert(at, bytes.substr(random() % bytes.size(), length)); break;
        default:
          for (size_t j = at; j < std::min(bytes.size(), at + length); ++j)
            bytes[j] = random() % 2 == 0 ? '\xff' : '\0';
      }
      if (bytes.empty()) bytes = "x";
    }
    std::ofstream(path, std::ios::binary) << bytes;
    LoadPthOptions options;
    options.verify = i % 2 == 0;  // without checksums more of the damage gets through
    const auto value = LoadPth(path, options);
    read += value.ok() ? 1 : 0;
    EXPECT_TRUE(value.ok() || value.status().message().find("fuzz.pth") != std::string::npos);
  }
  RecordProperty("read", read);
}

}  // namespace
}  // namespace lockstep
