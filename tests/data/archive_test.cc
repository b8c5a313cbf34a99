#include "lockstep/data/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string Folder() {
  std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/archive.XXXXXX";
  return mkdtemp(pattern.data());
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Entry {
  std::string name, text;
  unsigned type = AE_IFREG;
  std::string link = "";
  bool hard = false;
};

std::string Make(const std::string& path, const std::vector<Entry>& entries, int (*format)(archive*),
                 int (*filter)(archive*)) {
  archive* a = archive_write_new();
  format(a);
  filter(a);
  EXPECT_EQ(archive_write_open_filename(a, path.c_str()), ARCHIVE_OK);
  for (const Entry& entry : entries) {
    archive_entry* e = archive_entry_new();
    archive_entry_set_pathname(e, entry.name.c_str());
    archive_entry_set_filetype(e, entry.type);
    archive_entry_set_perm(e, 06755);
    archive_entry_set_size(e, static_cast<la_int64_t>(entry.text.size()));
    if (!entry.link.empty() && entry.hard) archive_entry_set_hardlink(e, entry.link.c_str());
    if (!entry.link.empty() && !entry.hard) archive_entry_set_symlink(e, entry.link.c_str());
    archive_write_header(a, e);
    archive_write_data(a, entry.text.data(), entry.text.size());
    archive_entry_free(e);
  }
  archive_write_close(a);
  archive_write_free(a);
  return path;
}

std::string TarGz(const std::vector<Entry>& entries) {
  return Make(Folder() + "/data.tar.gz", entries, &archive_write_set_format_pax_restricted,
              &archive_write_add_filter_gzip);
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(Unpack, FilesOfEachFormatComeOut) {
  const std::vector<Entry> entries{
      {"a/", "", AE_IFDIR}, {"a/one", "1"}, {"./b/c/two", std::string(300000, 'x')}, {"ünï", "three"}, {"empty", ""}};
  int count = 0;
  for (const auto& [format, filter] : std::vector<std::pair<int (*)(archive*), int (*)(archive*)>>{
           {&archive_write_set_format_gnutar, &archive_write_add_filter_gzip},
           {&archive_write_set_format_ustar, &archive_write_add_filter_none},
           {&archive_write_set_format_gnutar, &archive_write_add_filter_bzip2},
           {&archive_write_set_format_gnutar, &archive_write_add_filter_xz},
           {&archive_write_set_format_zip, &archive_write_add_filter_none}}) {
    const std::string folder = Folder(), path = Make(folder + "/data", entries, format, filter);
    const auto status = Unpack(path, folder + "/out/");
    ASSERT_TRUE(status.ok()) << status << " " << count;
    EXPECT_EQ(Slurp(folder + "/out/a/one"), "1");
    EXPECT_EQ(Slurp(folder + "/out/b/c/two"), entries[2].text);
    EXPECT_EQ(Slurp(folder + "/out/ünï"), "three");
    EXPECT_TRUE(fs::is_regular_file(folder + "/out/empty"));
    EXPECT_EQ(Names(folder).size(), 2u);
    struct stat info {};
    ASSERT_EQ(stat((folder + "/out/a/one").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07111, 0u);
    ++count;
  }
}

TEST(Unpack, AFolderThatIsThereStays) {
  const std::string path = TarGz({{"new", "1"}}), folder = Folder();
  std::ofstream(folder + "/old") << "2";
  EXPECT_TRUE(Unpack(path, folder).ok());
  EXPECT_EQ(Names(folder), std::vector<std::string>{"old"});
}

TEST(Unpack, WhatAProcessThatDiedLeftIsRemoved) {
  const std::string path = TarGz({{"new", "1"}}), parent = fs::path(path).parent_path().string();
  fs::create_directories(parent + "/out.tmp.2147483646/half");
  ASSERT_TRUE(Unpack(path, parent + "/out").ok());
  EXPECT_EQ(Names(parent).size(), 2u);
}

void ExpectRefused(const std::string& path, const std::string& want, const UnpackLimits& limits = {},
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const std::string parent = Folder();
  const auto status = Unpack(path, parent + "/out", limits);
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(status.message().find(want), std::string::npos) << status << "\nwant: " << want;
  EXPECT_NE(status.message().find(path), std::string::npos) << status;
  EXPECT_TRUE(Names(parent).empty());
}

TEST(Unpack, NothingLeavesTheFolder) {
  const std::string outside = Folder() + "/outside";
  ExpectRefused(TarGz({{"good", "1"}, {outside, "1"}}), "absolute path");
  ExpectRefused(TarGz({{"a/../../outside", "1"}}), "leads out of the folder");
  ExpectRefused(TarGz({{"..", "", AE_IFDIR}}), "leads out of the folder");
  ExpectRefused(TarGz({{"link", "", AE_IFLNK, fs::path(outside).parent_path().string()}, {"link/outside", "1"}}),
                "'link' is neither a file nor a folder");
  ExpectRefused(TarGz({{"good", "1"}, {"link", "", AE_IFREG, "/etc/passwd", true}}), "'link' is neither");
  ExpectRefused(TarGz({{"pipe", "", AE_IFIFO}}), "'pipe' is neither");
  ExpectRefused(TarGz({{"file", "1"}, {"file/under", "2"}}), "file/under", {}, absl::StatusCode::kUnavailable);
  EXPECT_FALSE(fs::exists(outside));
}

TEST(Unpack, DamageIsAnError) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919 % 10007);
  const std::string path = TarGz({{"one", text}}), whole = Slurp(path);
  const auto with = [&](const std::string& bytes) {
    const std::string damaged = Folder() + "/damaged.tar.gz";
    std::ofstream(damaged, std::ios::binary) << bytes;
    return damaged;
  };
  for (size_t cut : {1, 4, 9, 1000}) ExpectRefused(with(whole.substr(0, whole.size() - cut)), "truncated");
  for (size_t at = 50; at < whole.size(); at += 997) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    ExpectRefused(with(flipped), "damaged");
  }
  ExpectRefused(with("no archive at all, but some text"), "no tar or zip file");
  ExpectRefused(with(""), "");
  ExpectRefused("/nowhere/x.tar.gz", "no such file", {}, absl::StatusCode::kNotFound);
  ExpectRefused(Folder(), "not a regular file");
}

TEST(Unpack, LimitsHold) {
  const std::string path = TarGz({{"one", std::string(1000, 'x')}, {"two", std::string(1000, 'x')}});
  ExpectRefused(path, "'two' takes it past 1999 bytes", {1999, 10}, absl::StatusCode::kResourceExhausted);
  ExpectRefused(path, "more than 1 files", {5000, 1}, absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Unpack(path, Folder() + "/out", {2000, 2}).ok());
}

}  // namespace
}  // namespace lockstep
