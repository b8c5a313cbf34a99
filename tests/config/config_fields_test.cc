#include "lockstep/config/config_fields.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// One variable of each type.
struct Config {
  double lr = 0.1;
  int64_t seed = -1;
  size_t batch_size = 32;
  int epochs = 5;
  bool shuffle = true;
  std::string amp = "no";
  std::vector<std::string> device;
  std::vector<double> betas{0.9, 0.999};
  std::vector<int> milestones;
  std::vector<bool> flags;
  std::vector<int64_t> offsets;
  std::vector<size_t> sizes;
  std::optional<double> max_grad_norm;
  std::optional<int64_t> limit;
  std::optional<size_t> workers;
  std::optional<int> warmup = 3;
  std::optional<bool> pin;
  std::optional<std::string> pretrained;
  int64_t max_steps = 0;
  double patience = std::numeric_limits<double>::infinity();
};

class ConfigFieldsTest : public testing::Test {
 protected:
  ConfigFieldsTest() { Bind(config_, fields_); }

  static void Bind(Config& config, ConfigFields& fields) {
    fields.Add("lr", &config.lr, "SGD's learning rate");
    fields.Add("trainer.max_steps", &config.max_steps, "stop after so many");
    fields.Add("seed", &config.seed, "of everything");
    fields.Add("batch_size", &config.batch_size, "samples of a rank's step");
    fields.Add("epochs", &config.epochs, "passes over the data");
    fields.Add("shuffle", &config.shuffle, "a new order in each epoch");
    fields.Add("amp", &config.amp, "no, bf16 or fp16");
    fields.Add("device", &config.device, "one for each rank");
    fields.Add("optimizer.betas", &config.betas, "of Adam");
    fields.Add("optimizer.schedule.milestones", &config.milestones, "epochs");
    fields.Add("flags", &config.flags, "-");
    fields.Add("offsets", &config.offsets, "-");
    fields.Add("sizes", &config.sizes, "-");
    fields.Add("max_grad_norm", &config.max_grad_norm, "-");
    fields.Add("limit", &config.limit, "-");
    fields.Add("workers", &config.workers, "-");
    fields.Add("warmup", &config.warmup, "-");
    fields.Add("pin", &config.pin, "-");
    fields.Add("pretrained", &config.pretrained, "-");
    fields.Add("trainer.patience", &config.patience, "-");
  }

  static std::string Write(const std::string& text) {
    const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/config.yaml";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  absl::Status Load(const std::string& text) { return fields_.Load(Write(text)); }

  /// The error of a file without its folder, or "no error". An error must leave all variables as they were.
  std::string ErrorOf(const std::string& text) {
    const std::string before = fields_.ToYaml();
    const absl::Status status = Load(text);
    if (status.ok()) return "no error";
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(fields_.ToYaml(), before);
    std::string error(status.message());
    const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/";
    for (size_t at; (at = error.find(folder)) != std::string::npos;) error.erase(at, folder.size());
    return error;
  }

  std::string SetError(const std::string& assignment) {
    const std::string before = fields_.ToYaml();
    const absl::Status status = fields_.Set(assignment);
    if (status.ok()) return "no error";
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(fields_.ToYaml(), before);
    return std::string(status.message());
  }

  Config config_;
  ConfigFields fields_;
};

TEST_F(ConfigFieldsTest, ReadsEveryTypeAndKeepsWhatIsAbsent) {
  const auto status = Load(R"(# a comment
lr: 1e-4
seed: -9223372036854775808
batch_size: 18446744073709551615
shuffle: false
amp: bf16
device: [cuda:0, cuda:1]
flags: [true, no, on]
offsets: [-1, +2]
sizes: [0]
max_grad_norm: 1
limit: 7
workers: 2
warmup: null
pin: yes
pretrained: "a: b"
trainer:
  max_steps: 100
optimizer:
  betas:
    - .5
    - 5.
  schedule: {milestones: []}
)");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config_.lr, 1e-4);
  EXPECT_EQ(config_.seed, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(config_.batch_size, std::numeric_limits<size_t>::max());
  EXPECT_EQ(config_.epochs, 5);
  EXPECT_FALSE(config_.shuffle);
  EXPECT_EQ(config_.amp, "bf16");
  EXPECT_THAT(config_.device, ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(config_.flags, ElementsAre(true, false, true));
  EXPECT_THAT(config_.offsets, ElementsAre(-1, 2));
  EXPECT_THAT(config_.sizes, ElementsAre(0));
  EXPECT_EQ(config_.max_grad_norm, 1.0);
  EXPECT_EQ(config_.limit, 7);
  EXPECT_EQ(config_.workers, 2);
  EXPECT_EQ(config_.warmup, std::nullopt);
  EXPECT_EQ(config_.pin, true);
  EXPECT_EQ(config_.pretrained, "a: b");
  EXPECT_EQ(config_.max_steps, 100);
  EXPECT_THAT(config_.betas, ElementsAre(0.5, 5.0));
  EXPECT_THAT(config_.milestones, IsEmpty());
}

TEST_F(ConfigFieldsTest, JsonDottedKeysAndWindowsLineEndsAreRead) {
  ASSERT_TRUE(Load("{\"lr\": 0.5, \"trainer\": {\"max_steps\": 3}}").ok());
  EXPECT_EQ(config_.max_steps, 3);
  ASSERT_TRUE(Load("\xEF\xBB\xBFlr: 0.25\r\ntrainer.max_steps: 4\r\n").ok());
  EXPECT_EQ(config_.lr, 0.25);
  EXPECT_EQ(config_.max_steps, 4);
}

TEST_F(ConfigFieldsTest, OfTwoFilesTheLaterWinsAndAnEmptyMapSetsNothing) {
  ASSERT_TRUE(Load("lr: 0.5\nepochs: 7").ok());
  ASSERT_TRUE(Load("lr: 0.25").ok());
  ASSERT_TRUE(Load("{}").ok());
  EXPECT_EQ(config_.lr, 0.25);
  EXPECT_EQ(config_.epochs, 7);
}

TEST_F(ConfigFieldsTest, TextStaysTextWhateverYamlWouldMakeOfIt) {
  for (const std::string text : {"no", "007", "1e5", "true", "12", "a b", "é"}) {
    ASSERT_TRUE(Load("amp: " + text).ok());
    EXPECT_EQ(config_.amp, text);
  }
  ASSERT_TRUE(Load("amp: |\n  two\n  lines\n").ok());
  EXPECT_EQ(config_.amp, "two\nlines\n");
  ASSERT_TRUE(Load("amp: ''").ok());
  EXPECT_EQ(config_.amp, "");
}

TEST_F(ConfigFieldsTest, EveryProblemOfAFileIsALineWithItsPlace) {
  EXPECT_EQ(ErrorOf("lr: fast\n\nbatch_size: many\nlearning_rate: 0.1\ntrainer:\n  max_step: 3\nepochs: 1.5\n"),
            "config.yaml:1:1: lr: expected a number, found 'fast'\n"
            "config.yaml:3:1: batch_size: expected an integer from 0 on, found 'many'\n"
            "config.yaml:4:1: unknown key 'learning_rate'; did you mean 'lr'?\n"
            "config.yaml:6:3: unknown key 'trainer.max_step'; did you mean 'trainer.max_steps'?\n"
            "config.yaml:7:1: epochs: expected an integer, found '1.5'");
}

TEST_F(ConfigFieldsTest, ALongListOfProblemsIsCut) {
  std::string text;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, "unknown", i, ": 1\n");
  const std::string error = ErrorOf(text);
  EXPECT_THAT(error, HasSubstr("config.yaml:20:1: unknown key 'unknown19'\n… and 980 more"));
}

TEST_F(ConfigFieldsTest, UnknownKeysNameTheClosestOne) {
  EXPECT_THAT(ErrorOf("batchsize: 1"), HasSubstr("did you mean 'batch_size'?"));
  EXPECT_THAT(ErrorOf("max_steps: 1"), HasSubstr("did you mean 'trainer.max_steps'?"));
  EXPECT_THAT(ErrorOf("trainer: {epochs: 1}"), HasSubstr("unknown key 'trainer.epochs'; did you mean 'epochs'?"));
  EXPECT_THAT(ErrorOf("optimiser: {betas: [1]}"), HasSubstr("did you mean 'optimizer'?"));
  EXPECT_THAT(ErrorOf("bs: 1"), HasSubstr("did you mean 'batch_size'?"));
  EXPECT_EQ(ErrorOf("zebra: 1"), "config.yaml:1:1: unknown key 'zebra'");
  EXPECT_EQ(ErrorOf("\"\": 1"), "config.yaml:1:1: unknown key ''");
  EXPECT_EQ(ErrorOf("trainer: {\"\": 1}"), "config.yaml:1:11: unknown key 'trainer.'");
  EXPECT_THAT(ErrorOf(std::string(500, 'x') + ": 1"), HasSubstr("xxx…'"));
}

TEST_F(ConfigFieldsTest, WrongTypesSayWhatWasExpectedAndFound) {
  const std::pair<const char*, const char*> cases[] = {
      {"lr: [1]", "lr: expected a number, found a list"},
      {"lr: {a: 1}", "lr: expected a number, found a map"},
      {"lr:", "lr: expected a number, found nothing (null)"},
      {"lr: ~", "lr: expected a number, found nothing (null)"},
      {"lr: '0.1'", "lr: expected a number, found '0.1'; take the quotes off"},
      {"lr: \"\"", "lr: expected a number, found ''; take the quotes off"},
      {"lr: !!float 1", "lr: has the tag 'tag:yaml.org,2002:float'; tags have no use here"},
      {"lr: 1x", "lr: expected a number, found '1x'"},
      {"lr: +-1", "lr: expected a number, found '+-1'"},
      {"lr: inf", "lr: expected a number, found 'inf'"},
      {"lr: nan", "lr: expected a number, found 'nan'"},
      {"lr: infinity", "lr: expected a number, found 'infinity'"},
      {"lr: .", "lr: expected a number, found '.'"},
      {"lr: .inf", "lr: must be finite, found '.inf'"},
      {"lr: -.INF", "lr: must be finite, found '-.INF'"},
      {"lr: .NaN", "lr: must be finite, found '.NaN'"},
      {"optimizer: {betas: [.5, .inf]}", "optimizer.betas[1]: must be finite, found '.inf'"},
      {"lr: 1e999", "lr: '1e999' is out of a double's range"},
      {"lr: 1e-999", "lr: '1e-999' is out of a double's range"},
      {"epochs: 1e3", "epochs: expected an integer, found '1e3'"},
      {"epochs: 0x10", "epochs: expected an integer, found '0x10'"},
      {"epochs: 010", "epochs: expected an integer, found '010' with a leading zero"},
      {"epochs: +-1", "epochs: expected an integer, found '+-1'"},
      {"epochs: --1", "epochs: expected an integer, found '--1'"},
      {"epochs: 1 2", "epochs: expected an integer, found '1 2'"},
      {"epochs: true", "epochs: expected an integer, found 'true'"},
      {"epochs: 2147483648", "epochs: '2147483648' is not from -2147483648 to 2147483647"},
      {"seed: 9223372036854775808", "seed: '9223372036854775808' is not from -9223372036854775808 to"},
      {"batch_size: -1", "batch_size: '-1' is not from 0 to 18446744073709551615"},
      {"batch_size: 18446744073709551616", "is not from 0 to 18446744073709551615"},
      {"shuffle: 1", "shuffle: expected true or false, found '1'"},
      {"shuffle: maybe", "shuffle: expected true or false, found 'maybe'"},
      {"shuffle: 'true'", "shuffle: expected true or false, found 'true'; take the quotes off"},
      {"amp: null", "amp: expected text, found nothing (null); an empty text is written \"\""},
      {"amp: [no]", "amp: expected text, found a list"},
      {"device: cuda:0", "device: expected a list of texts, found 'cuda:0'; a list is written in brackets: [a, b]"},
      {"device:", "device: expected a list of texts, found nothing (null)"},
      {"device: [a, [b]]", "device[1]: expected text, found a list"},
      {"offsets: [1, 2, x]", "offsets[2]: expected an integer, found 'x'"},
      {"limit: x", "limit: expected an integer, found 'x'"},
      {"trainer: 3", "trainer: expected a map of its keys, found '3'"},
      {"trainer:", "trainer: expected a map of its keys, found nothing (null)"},
      {"trainer: [1]", "trainer: expected a map of its keys, found a list"},
  };
  for (const auto& [text, error] : cases) EXPECT_THAT(ErrorOf(text), HasSubstr(error)) << text;
}

TEST_F(ConfigFieldsTest, DuplicateKeysAreFound) {
  EXPECT_EQ(ErrorOf("lr: 1\nepochs: 1\nlr: 1\n"), "config.yaml:3:1: duplicate key 'lr', first in line 1");
  EXPECT_THAT(ErrorOf("trainer: {max_steps: 1}\ntrainer: {patience: 1}"),
              HasSubstr("2:1: duplicate key 'trainer', first in line 1"));
  EXPECT_THAT(ErrorOf("trainer: {max_steps: 1}\ntrainer.max_steps: 2"),
              HasSubstr("2:1: duplicate key 'trainer.max_steps', first in line 1"));
}

TEST_F(ConfigFieldsTest, WhatIsNoMapOfNamesIsRefused) {
  EXPECT_EQ(ErrorOf(""), "config.yaml: has no keys; a file that sets nothing is written {}");
  EXPECT_EQ(ErrorOf("# lr: 1\n"), "config.yaml: has no keys; a file that sets nothing is written {}");
  EXPECT_EQ(ErrorOf("null"), "config.yaml: has no keys; a file that sets nothing is written {}");
  EXPECT_EQ(ErrorOf("lr 0.1"), "config.yaml:1:1: expected lines of 'key: value', found 'lr 0.1'");
  EXPECT_EQ(ErrorOf("- lr"), "config.yaml:1:1: expected lines of 'key: value', found a list");
  EXPECT_EQ(ErrorOf("[a, b]: 1"), "config.yaml:1:1: a key must be a name, found a list");
  EXPECT_EQ(ErrorOf("~: 1"), "config.yaml:1:1: a key must be a name, found nothing (null)");
  EXPECT_EQ(ErrorOf("lr: 1\n---\nlr: 2\n"),
            "config.yaml:2:1: no YAML, or a second document ('---'); there must be one");
}

TEST_F(ConfigFieldsTest, WhatIsNoYamlIsRefused) {
  EXPECT_THAT(ErrorOf(", lr: 1"), HasSubstr("config.yaml:1:1: no YAML"));  // the parser takes nothing of it
  for (const char* text : {"lr: [1", "lr: 'a", "a: b: c", "lr: 1\n epochs: 2", "\tlr: 1", "lr: *x", "lr: \"\\q\"", "}",
                           "%YAML 9.9\n---\nlr: 1"}) {
    EXPECT_THAT(ErrorOf(text), testing::MatchesRegex("config.yaml:[0-9]+:[0-9]+: no YAML: .+")) << text;
  }
}

TEST_F(ConfigFieldsTest, WhatIsNoUtf8IsRefused) {
  EXPECT_EQ(ErrorOf("lr: 1\namp: \xFFx"), "config.yaml:2:6: not text in UTF-8: byte 0xff");
  EXPECT_EQ(ErrorOf("\x7F"
                    "ELF"),
            "config.yaml:1:1: not text in UTF-8: byte 0x7f");
  for (const std::string& text :
       {std::string("l\0r: 1", 6), std::string("\xFF\xFEl\0r\0", 6), std::string("amp: \xC0\x80"),
        std::string("amp: \xED\xA0\x80"), std::string("amp: \xF4\x90\x80\x80"), std::string("amp: \xE2\x82"),
        std::string("amp: \x1B[1m")}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("not text in UTF-8")) << testing::PrintToString(text);
  }
  EXPECT_EQ(ErrorOf("amp: \"\U0001F600 \u20AC\""), "no error");
}

TEST_F(ConfigFieldsTest, WhatIsNoFileIsRefused) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  EXPECT_EQ(fields_.Load(folder + "/none.yaml").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fields_.Load(folder + "/none.yaml").message(), folder + "/none.yaml: there is no such file");
  EXPECT_EQ(fields_.Load("").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fields_.Load(folder).message(), folder + ": is a folder");
  EXPECT_EQ(fields_.Load("/dev/zero").message(), "/dev/zero: is no regular file");
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(fields_.Load(pipe).message(), pipe + ": is no regular file");
  EXPECT_EQ(ErrorOf(std::string(2 << 20, ' ')), "config.yaml: is larger than 1 MiB, so it is no configuration");
  const std::string secret = Write("lr: 1");
  if (getuid() == 0) return;  // root reads everything
  ASSERT_EQ(chmod(secret.c_str(), 0), 0);
  EXPECT_EQ(fields_.Load(secret).message(), secret + ": can't be read: Permission denied");
  ASSERT_EQ(unlink(secret.c_str()), 0);
}

TEST_F(ConfigFieldsTest, DeepNestingIsRefused) {
  for (const std::string open : {"[", "{a: ", "- ", "? "}) {
    std::string text = "lr: ";
    if (open == "- ") text += "\n";
    for (int i = 0; i < 20000; ++i) text += open;
    EXPECT_THAT(ErrorOf(text), testing::MatchesRegex("config.yaml:[0-9]+:[0-9]+: (nested too deeply|no YAML: .*)"))
        << open;
  }
}

TEST_F(ConfigFieldsTest, AliasesAreReadAndCantMakeMuchOfLittle) {
  ASSERT_TRUE(Load("device: &d [a, b]\namp: &n bf16\npretrained: *n\n").ok());
  EXPECT_EQ(config_.pretrained, "bf16");
  // Each key ten times the one before.
  std::string bomb = "a0: &a0 x\n";
  for (int i = 1; i < 15; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) absl::StrAppend(&bomb, j > 0 ? ", " : "", "*a", i - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("unknown key 'a14'"));
  EXPECT_THAT(ErrorOf(bomb + "device: *a14\n"), HasSubstr("unknown key 'a0'"));
  EXPECT_THAT(ErrorOf("trainer: &t\n  trainer: *t\n"), HasSubstr("unknown key 'trainer.trainer'"));
  EXPECT_THAT(ErrorOf("device: &d [*d]\n"), HasSubstr("device[0]: expected text, found a list"));
}

TEST_F(ConfigFieldsTest, MergeKeysAreRefusedByName) {
  EXPECT_EQ(ErrorOf("trainer: &t {max_steps: 1}\n<<: *t\n"),
            "config.yaml:2:1: merge keys ('<<') can't be used; write the keys out");
  EXPECT_THAT(ErrorOf("trainer:\n  <<: {max_steps: 1}\n"), HasSubstr("2:3: merge keys"));
}

TEST_F(ConfigFieldsTest, SetReadsYamlAndTheLastWins) {
  ASSERT_TRUE(fields_.Set("lr=0.05").ok());
  ASSERT_TRUE(fields_.Set(" lr = 0.025 ").ok());
  EXPECT_EQ(config_.lr, 0.025);
  ASSERT_TRUE(fields_.Set("device=[cuda:0,cuda:1]").ok());
  EXPECT_THAT(config_.device, ElementsAre("cuda:0", "cuda:1"));
  ASSERT_TRUE(fields_.Set("device=[]").ok());
  EXPECT_THAT(config_.device, IsEmpty());
  ASSERT_TRUE(fields_.Set("trainer={max_steps: 9, patience: 2}").ok());
  ASSERT_TRUE(fields_.Set("trainer.max_steps=8").ok());
  EXPECT_EQ(config_.max_steps, 8);
  EXPECT_EQ(config_.patience, 2);
  ASSERT_TRUE(fields_.Set("amp=a=b").ok());
  EXPECT_EQ(config_.amp, "a=b");
  ASSERT_TRUE(fields_.Set("warmup=null").ok());
  EXPECT_EQ(config_.warmup, std::nullopt);
}

TEST_F(ConfigFieldsTest, SetHasTheSameErrors) {
  EXPECT_EQ(SetError("lr=fast"), "--set lr=fast: lr: expected a number, found 'fast'");
  EXPECT_EQ(SetError("lr="), "--set lr=: lr: expected a number, found nothing (null)");
  EXPECT_EQ(SetError("lr"), "--set 'lr': expected KEY=VALUE");
  EXPECT_EQ(SetError("=1"), "--set '=1': expected KEY=VALUE");
  EXPECT_EQ(SetError(""), "--set '': expected KEY=VALUE");
  EXPECT_EQ(SetError("learning_rate=1"), "--set learning_rate=1: unknown key 'learning_rate'; did you mean 'lr'?");
  EXPECT_EQ(SetError("trainer=1"), "--set trainer=1: trainer: expected a map of its keys, found '1'");
  EXPECT_THAT(SetError("device=[a"), HasSubstr("--set device=[a: no YAML: "));
  EXPECT_THAT(SetError("lr=1\n---\n2"), HasSubstr("a second document ('---')"));
  EXPECT_EQ(SetError("amp=\xFF"), "--set amp=\\xff: not text in UTF-8: byte 0xff");
  EXPECT_THAT(SetError("trainer={max_steps: 1, max_steps: 2}"), HasSubstr("duplicate key 'trainer.max_steps'"));
}

TEST_F(ConfigFieldsTest, GivenTellsWhatAFileOrSetHad) {
  ASSERT_TRUE(Load("lr: 0.1").ok());
  ASSERT_TRUE(fields_.Set("epochs=5").ok());
  ASSERT_FALSE(Load("seed: 1\namp: [1]").ok());
  EXPECT_TRUE(fields_.Given("lr"));
  EXPECT_TRUE(fields_.Given("epochs"));
  EXPECT_FALSE(fields_.Given("seed"));
  EXPECT_FALSE(fields_.Given("amp"));
}

TEST_F(ConfigFieldsTest, AFailedCheckHasThePlaceAndChangesNothing) {
  fields_.Check("batch_size", [this] {
    return config_.batch_size > 0 ? absl::OkStatus() : absl::InvalidArgumentError("must be at least 1, is 0");
  });
  fields_.Check("epochs", [this] {
    return config_.epochs <= config_.max_steps ? absl::OkStatus()
                                               : absl::OutOfRangeError("more than trainer.max_steps");
  });
  EXPECT_EQ(ErrorOf("lr: 0.5\nbatch_size: 0\nepochs: 9\n"),
            "config.yaml:2:1: batch_size: must be at least 1, is 0\n"
            "config.yaml:3:1: epochs: more than trainer.max_steps");
  EXPECT_EQ(SetError("batch_size=0"), "--set batch_size=0: batch_size: must be at least 1, is 0");
  EXPECT_EQ(ErrorOf("epochs: 9\ntrainer: {max_steps: 9}\n"), "no error");
  EXPECT_EQ(ErrorOf("lr: 1"), "no error");  // checks of fields that aren't given aren't called
}

TEST_F(ConfigFieldsTest, TheYamlIsAsAPersonWouldWriteIt) {
  ConfigFields fields;
  fields.Add("lr", &config_.lr, "");
  fields.Add("trainer.max_steps", &config_.max_steps, "");
  fields.Add("device", &config_.device, "");
  fields.Add("optimizer.betas", &config_.betas, "");
  fields.Add("optimizer.schedule.milestones", &config_.milestones, "");
  fields.Add("trainer.patience", &config_.patience, "");
  fields.Add("amp", &config_.amp, "");
  fields.Add("pin", &config_.pin, "");
  config_.lr = 1e-4;
  config_.max_steps = 10;
  config_.device = {"cuda:0", "cpu"};
  EXPECT_EQ(fields.ToYaml(), R"(lr: 1.0e-04
trainer:
  max_steps: 10
  patience: .inf
device: ["cuda:0", cpu]
optimizer:
  betas: [0.9, 0.999]
  schedule:
    milestones: []
amp: "no"
pin: null
)");
  EXPECT_EQ(ConfigFields().ToYaml(), "{}\n");
}

TEST_F(ConfigFieldsTest, TheYamlIsReadBackToTheSameValues) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    const auto any_double = [&] {
      const uint64_t bits = random();
      double value;
      std::memcpy(&value, &bits, sizeof(value));
      return std::isfinite(value) ? value : static_cast<double>(bits);
    };
    config_.lr = any_double();
    config_.max_grad_norm = any_double();
    config_.betas = {any_double(), any_double(), -0.0, 5e-324, 1.7976931348623157e308, 1e22, 100};
    config_.seed = static_cast<int64_t>(random());
    config_.batch_size = random();
    config_.sizes = {random(), 0, std::numeric_limits<size_t>::max()};
    config_.flags = {random() % 2 == 0, true};
    const char* const texts[] = {"",         "007",  "true", "~",    "1e5",    "null",   "no",      "Yes",
                                 "a\nb\n",   " x ",  "a: b", "#x",   "'",      "\"",     "\\n",     "- a",
                                 "[a",       "{a",   "*a",   "&a",   "!a",     "%a",     "@a",      "é😀",
                                 "\t\r\x01", "a #b", "---",  ".inf", "0x1F",   "1:30",   "=",       "a,b]c",
                                 "?",        "|",    ">",    "<<",   "\u2028", "\u0085", "\uFEFFa", "-"};
    config_.device.assign(std::begin(texts), std::end(texts));
    config_.amp = texts[random() % std::size(texts)];
    config_.pretrained = texts[random() % std::size(texts)];
    const std::string yaml = fields_.ToYaml();
    Config read;
    ConfigFields fields;
    Bind(read, fields);
    const auto status = fields.Load(Write(yaml));
    ASSERT_TRUE(status.ok()) << status << yaml;
    EXPECT_EQ(std::memcmp(&read.lr, &config_.lr, sizeof(double)), 0);
    EXPECT_EQ(read.max_grad_norm, config_.max_grad_norm);
    EXPECT_EQ(read.betas, config_.betas);
    EXPECT_TRUE(std::signbit(read.betas[2]));
    EXPECT_EQ(read.seed, config_.seed);
    EXPECT_EQ(read.batch_size, config_.batch_size);
    EXPECT_EQ(read.sizes, config_.sizes);
    EXPECT_EQ(read.flags, config_.flags);
    EXPECT_EQ(read.device, config_.device);
    EXPECT_EQ(read.amp, config_.amp);
    EXPECT_EQ(read.pretrained, config_.pretrained);
    EXPECT_EQ(read.patience, config_.patience);  // infinite: its default is
    EXPECT_EQ(fields.ToYaml(), yaml);
  }
}

TEST_F(ConfigFieldsTest, HelpHasNameTypeDefaultAndText) {
  config_.lr = 7;  // the default stays what it was
  const std::string help = fields_.Help();
  EXPECT_THAT(help, HasSubstr("  lr (a number; default: 0.1)\n      SGD's learning rate\n"));
  EXPECT_THAT(help, HasSubstr("  trainer.max_steps (an integer; default: 0)\n      stop after so many\n"));
  EXPECT_THAT(help, HasSubstr("  device (a list of texts; default: [])\n"));
  EXPECT_THAT(help, HasSubstr("  pretrained (text or null; default: null)\n"));
  EXPECT_THAT(help, HasSubstr("  amp (text; default: \"no\")\n"));
}

TEST_F(ConfigFieldsTest, DamagedFilesAreReadOrRefused) {
  const std::string whole =
      "lr: 1e-4\ndevice: &d [\"cuda:0\", 'x']\ntrainer: {max_steps: 1}\noptimizer:\n  betas:\n  - 1\n  - .5\n"
      "amp: |\n  a\n  b\n? epochs\n: 5\npretrained: >-\n  x\n# end\n";
  std::mt19937 random(2);
  const std::string specials = "-?:,[]{}#&*!|>'\"%@` \n\t~<=.0a";
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string text = whole;
    for (size_t change = random() % 6; change > 0; --change) {
      const size_t at = random() % text.size();
      if (random() % 4 == 0) text.erase(at, random() % 5 + 1);
      text.insert(std::min(at, text.size()), 1, specials[random() % specials.size()]);
    }
    if (!Load(text).ok()) ++refused;
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 600);
}

using ConfigFieldsDeathTest = ConfigFieldsTest;

TEST_F(ConfigFieldsDeathTest, NamesThatCantBeAreABrokenInvariant) {
  EXPECT_DEATH(fields_.Add("lr", &config_.lr, ""), "lr is added twice");
  EXPECT_DEATH(fields_.Add("lr.x", &config_.seed, ""), "lr is a field and a map");
  EXPECT_DEATH(fields_.Add("trainer", &config_.seed, ""), "trainer is a field and a map");
  EXPECT_DEATH(fields_.Add("a..b", &config_.seed, ""), "'a..b' is no name for a field");
  EXPECT_DEATH(fields_.Add("a b", &config_.seed, ""), "'a b' is no name for a field");
  EXPECT_DEATH(fields_.Check("zebra", [] { return absl::OkStatus(); }), "there is no field zebra");
}

TEST(ConfigFields, IsJsonForOtherPrograms) {
  double lr = 0.5, endless = HUGE_VAL;
  std::vector<std::string> device{"cuda:0", "a \"b\""};
  std::optional<int> limit;
  ConfigFields fields;
  fields.Add("lr", &lr, "");
  fields.Add("a.endless", &endless, "");
  fields.Add("a.device", &device, "");
  fields.Add("limit", &limit, "");
  EXPECT_EQ(fields.ToJson(), R"({
  "lr": 0.5,
  "a": {
    "endless": null,
    "device": [
      "cuda:0",
      "a \"b\""
    ]
  },
  "limit": null
}
)");
}

TEST_F(ConfigFieldsTest, TwoConfigurationsAreCompared) {
  Config other;
  ConfigFields before;
  Bind(other, before);
  ASSERT_TRUE(before.LoadText(fields_.ToYaml(), "what was saved").ok());
  EXPECT_TRUE(fields_.DifferencesFrom(before).empty());
  ASSERT_TRUE(fields_.Set("trainer.max_steps=77").ok());
  ASSERT_TRUE(fields_.Set("lr=0.125").ok());
  const auto differences = fields_.DifferencesFrom(before);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].name, "lr");
  EXPECT_EQ(differences[0].now, "0.125");
  EXPECT_EQ(differences[1].name, "trainer.max_steps");
  EXPECT_EQ(differences[1].now, "77");
  EXPECT_NE(differences[1].before, "77");
  EXPECT_THAT(std::string(before.LoadText("lr: fast", "what was saved").message()),
              HasSubstr("what was saved:1:1: lr: expected a number"));
}

}  // namespace
}  // namespace lockstep
