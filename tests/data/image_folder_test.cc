#include "lockstep/data/image_folder.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string Folder() {
  std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/folder.XXXXXX";
  return mkdtemp(pattern.data());
}

void Add(const std::string& path, const std::string& picture = "rgb.png") {
  fs::create_directories(fs::path(path).parent_path());
  fs::copy_file("tests/data/images/" + picture, path);
}

TEST(ImageFolder, ClassesAndFilesComeInTorchvisionsOrder) {
  const std::string root = Folder();
  for (const char* path : {"dog/b.png", "dog/B.PNG", "dog/a.jpeg", "cat/x/2.png", "cat/x.y/1.png", "cat/x/a/3.png",
                           "cat/9.png", "Ant/z.JPG"}) {
    Add(root + "/" + path);
  }
  std::ofstream(root + "/dog/notes.txt") << "no picture";
  std::ofstream(root + "/list.png") << "not in a class";
  const auto data = ImageFolder::Open(root);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->classes(), (std::vector<std::string>{"Ant", "cat", "dog"}));
  EXPECT_EQ(data->class_to_idx().at("dog"), 2);
  std::vector<std::string> names;
  for (const auto& [path, label] : data->samples()) names.push_back(path.substr(root.size() + 1));
  EXPECT_EQ(names, (std::vector<std::string>{"Ant/z.JPG", "cat/9.png", "cat/x/2.png", "cat/x.y/1.png", "cat/x/a/3.png",
                                             "dog/B.PNG", "dog/a.jpeg", "dog/b.png"}));
  EXPECT_EQ(data->samples()[4].second, 1);
  EXPECT_EQ(data->size().value(), 8u);
}

TEST(ImageFolder, GivesPicturesAndNamesTheOneThatIsDamaged) {
  const std::string root = Folder();
  Add(root + "/a/grey.png", "grey.png");
  Add(root + "/b/cmyk.jpg", "cmyk.JPEG");
  std::ofstream(root + "/b/damaged.png") << "nothing";
  auto data = ImageFolder::Open(root);
  ASSERT_TRUE(data.ok()) << data.status();
  const auto example = data->get(1);
  EXPECT_EQ(example.data.sizes(), (std::vector<int64_t>{3, 13, 19}));
  EXPECT_EQ(example.target.item<int64_t>(), 1);
  EXPECT_EQ(example.target.dim(), 0);
  EXPECT_EQ(data->get_batch({0, 1}).size(), 2u);
  try {
    data->get(2);
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("/b/damaged.png: neither PNG nor JPEG"), std::string::npos) << e.what();
  }
  EXPECT_THROW(data->get(3), c10::Error);
}

TEST(ImageFolder, WhatIsWrongIsNamed) {
  const auto expect = [](const std::string& root, const std::string& want) {
    const auto data = ImageFolder::Open(root);
    ASSERT_FALSE(data.ok()) << want;
    EXPECT_NE(data.status().message().find(want), std::string::npos) << data.status();
  };
  const std::string root = Folder();
  expect("/nowhere", "/nowhere: no such folder");
  expect(root, "no folders in it");
  fs::create_directories(root + "/empty");
  expect(root, "class empty has no .png");
  Add(root + "/empty/a.png");
  fs::create_directory_symlink(root + "/empty", root + "/empty/again");
  expect(root, "a link to a folder that it is in");
}

TEST(ImageFolder, FollowsLinks) {
  const std::string root = Folder(), other = Folder();
  Add(other + "/1.png");
  fs::create_directories(root + "/a");
  fs::create_directory_symlink(other, root + "/a/there");
  const auto data = ImageFolder::Open(root);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->size().value(), 1u);
}

}  // namespace
}  // namespace lockstep
