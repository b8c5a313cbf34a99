#include "lockstep/data/record_stream.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

namespace lockstep {
namespace {

class RecordStream : public Stream<std::string> {
 public:
  RecordStream(std::vector<std::string> files, const RecordStreamOptions& options)
      : files_(std::move(files)), options_(options) {}

  std::optional<std::string> Next() override {
    while (true) {
      if (!file_.is_open()) {
        if (next_ == files_.size()) return std::nullopt;
        Open(files_[next_++]);
      }
      auto record = options_.record_bytes > 0 ? Record() : Line();
      TORCH_CHECK(!file_.bad(), Name(), "cannot be read");
      if (record) return record;
      file_.close();
    }
  }

 private:
  std::string Name() const { return "file " + files_[next_ - 1] + ": "; }

  void Open(const std::string& path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    TORCH_CHECK(std::filesystem::exists(status), Name(), "no such file");
    TORCH_CHECK(std::filesystem::is_regular_file(status), Name(), "not a regular file");
    file_.clear();
    file_.open(path, std::ios::binary);
    TORCH_CHECK(file_.is_open(), Name(), "cannot be opened");
  }

  std::optional<std::string> Record() {
    std::string record(options_.record_bytes, '\0');
    file_.read(record.data(), static_cast<std::streamsize>(record.size()));
    const auto got = static_cast<size_t>(file_.gcount());
    if (got == 0) return std::nullopt;
    TORCH_CHECK(got == record.size(), Name(), "truncated: the last record has ", got, " bytes, not ", record.size());
    return record;
  }

  std::optional<std::string> Line() {
    constexpr int kEnd = std::char_traits<char>::eof();
    std::string line;
    int c = file_.rdbuf()->sbumpc();
    if (c == kEnd) return std::nullopt;
    for (; c != kEnd && c != '\n'; c = file_.rdbuf()->sbumpc()) {
      TORCH_CHECK(line.size() < options_.max_line_bytes, Name(), "a line of more than ", options_.max_line_bytes,
                  " bytes");
      line += static_cast<char>(c);
    }
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }

  const std::vector<std::string> files_;
  const RecordStreamOptions options_;
  std::ifstream file_;
  size_t next_ = 0;
};

}  // namespace

StreamFactory<std::string> RecordStreams(std::vector<std::string> files, RecordStreamOptions options) {
  return [files = std::move(files), options](size_t shard, size_t num_shards, size_t epoch) {
    std::vector<std::string> order = files, mine;
    if (options.shuffle_seed) {
      std::seed_seq seed{*options.shuffle_seed & 0xFFFFFFFF, *options.shuffle_seed >> 32, uint64_t{epoch}};
      std::mt19937_64 generator(seed);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
    }
    for (size_t i = shard; i < order.size(); i += num_shards) mine.push_back(std::move(order[i]));
    return std::make_unique<RecordStream>(std::move(mine), options);
  };
}

}  // namespace lockstep
