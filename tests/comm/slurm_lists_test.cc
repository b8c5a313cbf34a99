#include "lockstep/comm/internal/slurm_lists.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

using Texts = std::vector<std::string>;

TEST(HostList, IsExpandedInOrder) {
  EXPECT_EQ(*ExpandHostList("node1"), Texts{"node1"});
  EXPECT_EQ(*ExpandHostList("node[001-003,7],other-a[1-2]b"),
            (Texts{"node001", "node002", "node003", "node7", "other-a1b", "other-a2b"}));
  EXPECT_EQ(*ExpandHostList("b,a"), (Texts{"b", "a"}));
  EXPECT_EQ(*ExpandHostList("n[08-11]"), (Texts{"n08", "n09", "n10", "n11"}));
  EXPECT_EQ(*ExpandHostList("n[99-101]"), (Texts{"n99", "n100", "n101"}));
  EXPECT_EQ(*ExpandHostList("rack[0-1]node[01-02]"),
            (Texts{"rack0node01", "rack0node02", "rack1node01", "rack1node02"}));
  EXPECT_EQ(*ExpandHostList("[1-2]"), (Texts{"1", "2"}));
}

TEST(HostList, WhatIsWrongIsNamed) {
  for (const char* list : {"", "a,,b", "n[1", "n1]", "n[[1]]", "n[]", "n[2-1]", "n[a-b]", "n[1-2-3]", "n[1,]",
                           "n[0-99999999]", "n[0-1000]m[0-1000]k[0-1000]"}) {
    const auto hosts = ExpandHostList(list);
    ASSERT_FALSE(hosts.ok()) << list;
    EXPECT_NE(hosts.status().message().find(list), absl::string_view::npos) << hosts.status();
  }
}

TEST(TaskCounts, AreExpanded) {
  EXPECT_EQ(*ExpandTaskCounts("2"), std::vector<int>{2});
  EXPECT_EQ(*ExpandTaskCounts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  for (const char* counts : {"", "0", "x", "2(x", "2(x)", "2(x3", "2(x3),", "2(x0)", "2(3)", "1(x9999999)"}) {
    EXPECT_FALSE(ExpandTaskCounts(counts).ok()) << counts;
  }
}

}  // namespace
}  // namespace lockstep
