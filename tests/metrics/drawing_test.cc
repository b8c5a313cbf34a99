// What pictures of runs are made of.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/metrics/internal/axis.h"
#include "lockstep/metrics/internal/markup.h"
#include "lockstep/metrics/internal/thinned_curve.h"

namespace lockstep::internal {
namespace {

TEST(ThinnedCurve, KeepsAFewPointsAsTheyAre) {
  ThinnedCurve curve;
  for (int i = 0; i < 5; ++i) curve.Add(i, i * i);
  const auto parts = curve.Parts();
  ASSERT_EQ(parts.size(), 1u);
  ASSERT_EQ(parts[0].size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(parts[0][i].x, i);
    EXPECT_EQ(parts[0][i].y, i * i);
  }
}

TEST(ThinnedCurve, OfMillionsOfPointsKeepsFewAndEveryPeak) {
  ThinnedCurve curve(100);
  for (int i = 0; i < 3'000'000; ++i) curve.Add(i, i == 1'234'567 ? 50 : i == 2'000'001 ? -50 : std::sin(i));
  const auto parts = curve.Parts();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_LE(parts[0].size(), 200u);
  EXPECT_GE(parts[0].size(), 90u);
  bool peak = false, dip = false;
  double before = -1;
  for (const Point& point : parts[0]) {
    peak |= point.x == 1'234'567 && point.y == 50;
    dip |= point.x == 2'000'001 && point.y == -50;
    EXPECT_GT(point.x, before);
    before = point.x;
  }
  EXPECT_TRUE(peak && dip);
  EXPECT_EQ(curve.count(), 3'000'000u);
}

TEST(ThinnedCurve, IsCutWhereANumberIsNotFiniteOrAbsurd) {
  ThinnedCurve curve;
  const double infinity = std::numeric_limits<double>::infinity();
  const double numbers[] = {1, 2, std::nan(""), 3, infinity, -infinity, 4, 1e300};
  for (size_t i = 0; i < std::size(numbers); ++i) curve.Add(static_cast<double>(i), numbers[i]);
  const auto parts = curve.Parts();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size(), 2u);
  EXPECT_EQ(parts[1][0].y, 3);
  EXPECT_EQ(parts[2][0].y, 4);
  EXPECT_EQ(curve.gaps(), 4u);
}

TEST(Axis, EndsAtRoundNumbersAroundTheData) {
  const Axis axis(0.113, 0.87, 5);
  EXPECT_EQ(axis.low(), 0);
  EXPECT_DOUBLE_EQ(axis.high(), 1);
  ASSERT_EQ(axis.ticks().size(), 6u);
  EXPECT_EQ(axis.ticks()[1].label, "0.2");
  EXPECT_DOUBLE_EQ(axis.ticks()[1].position, 0.2);
}

TEST(Axis, HasPlaceForOneNumberAndForHugeAndTinyOnes) {
  for (const double value : {0., 1., -3., 1e-30, 1e99, -1e99}) {
    const Axis axis(value, value, 5);
    EXPECT_GT(axis.ticks().size(), 1u) << value;
    EXPECT_LT(axis.ticks().size(), 20u) << value;
    EXPECT_GT(axis.Position(value), 0) << value;
    EXPECT_LT(axis.Position(value), 1) << value;
  }
  EXPECT_LT(Axis(-1e99, 1e99, 5).ticks().size(), 20u);
}

TEST(Axis, OfPowersOfTenIsEvenInTheirExponents) {
  const Axis axis(0.01, 100, 5, /*logarithmic=*/true);
  EXPECT_NEAR(axis.Position(1), 0.5, 1e-9);
  EXPECT_LT(Axis(1e-90, 1e90, 5, true).ticks().size(), 20u);
  EXPECT_GT(Axis(2, 70, 5, true).ticks().size(), 2u);
}

TEST(Markup, NothingInATextIsMarkup) {
  EXPECT_EQ(EscapeMarkup("<a href=\"x\" b='y'>&amp;"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(EscapeMarkup("ünï ☃ 𝄞"), "ünï ☃ 𝄞");
}

TEST(Markup, WhatIsNoUtf8IsReplaced) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(ValidUtf8("a\xFF z"), "a" + bad + " z");
  EXPECT_EQ(ValidUtf8("\xC0\x80"), bad + bad);      // longer than needed
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80").size(), 9u);  // a surrogate
  EXPECT_EQ(ValidUtf8("\xE2\x98"), bad + bad);      // cut off
  EXPECT_EQ(ValidUtf8(std::string("\0\x01", 2)), bad + bad);
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80").size(), 12u);  // beyond the last letter
}

TEST(Markup, ALongTextIsShortenedByLetters) {
  EXPECT_EQ(Shortened("ünïcode", 7), "ünïcode");
  EXPECT_EQ(Shortened("ünïcode", 4), "ünï…");
  EXPECT_EQ(Shortened("", 4), "");
}

}  // namespace
}  // namespace lockstep::internal
