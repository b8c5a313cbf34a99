#include "lockstep/checkpoint/early_stopping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

using Mode = EarlyStoppingOptions::Mode;

struct Row {
  double value;
  bool improved;
  int counter;
  bool stop;
};

/// Runs a table worked out by hand.
void Check(const EarlyStoppingOptions& options, const std::vector<Row>& rows) {
  EarlyStopping stopping(options);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto verdict = stopping.Check({{options.monitor, rows[i].value}});
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_EQ(verdict->improved, rows[i].improved) << "row " << i;
    EXPECT_EQ(stopping.counter(), rows[i].counter) << "row " << i;
    EXPECT_EQ(verdict->stop, rows[i].stop) << "row " << i;
    EXPECT_EQ(verdict->stop, !stopping.reason().empty()) << "row " << i;
  }
}

TEST(EarlyStopping, LessIsBetterByDefault) {
  EarlyStoppingOptions options;
  options.patience = 2;
  Check(options, {{1.0, true, 0, false},
                  {0.9, true, 0, false},
                  {0.9, false, 1, false},
                  {0.8, true, 0, false},
                  {0.85, false, 1, false},
                  {0.81, false, 2, true}});
}

TEST(EarlyStopping, MoreIsBetterWithMax) {
  EarlyStoppingOptions options;
  options.monitor = "accuracy";
  options.mode = Mode::kMax;
  options.patience = 3;
  Check(options, {{0.5, true, 0, false},
                  {0.5, false, 1, false},
                  {0.4, false, 2, false},
                  {0.6, true, 0, false},
                  {0.1, false, 1, false},
                  {0.6, false, 2, false},
                  {0.6, false, 3, true}});
}

TEST(EarlyStopping, BetterIsStrictlyByMoreThanMinDelta) {
  EarlyStoppingOptions options;
  options.mode = Mode::kMax;
  options.min_delta = 0.25;  // exact in binary
  options.patience = 2;
  Check(options, {{1.0, true, 0, false},
                  {1.25, false, 1, false},
                  {1.5, true, 0, false},
                  {1.74, false, 1, false},
                  {1.75, false, 2, true}});
}

TEST(EarlyStopping, PatienceOfOneStopsAtTheFirstThatIsNoBetter) {
  EarlyStoppingOptions options;
  options.patience = 1;
  Check(options, {{3, true, 0, false}, {2, true, 0, false}, {2, false, 1, true}});
}

TEST(EarlyStopping, Thresholds) {
  EarlyStoppingOptions options;
  options.stopping_threshold = 0.1;
  options.divergence_threshold = 10;
  Check(options, {{5, true, 0, false}, {0.1, true, 0, false}, {0.09, true, 0, true}});
  Check(options, {{5, true, 0, false}, {10, false, 1, false}, {10.5, false, 2, true}});
}

TEST(EarlyStopping, ANumberThatIsNoneIsAnErrorAndNeverAnImprovement) {
  for (double bad : std::vector<double>{std::nan(""), INFINITY, -INFINITY}) {
    EarlyStopping strict;
    const auto verdict = strict.Check({{"val_loss", bad}});
    ASSERT_FALSE(verdict.ok());
    EXPECT_NE(verdict.status().message().find("'val_loss' is"), std::string::npos) << verdict.status();
  }
  EarlyStoppingOptions options;
  options.check_finite = false;
  options.patience = 2;
  Check(options, {{std::nan(""), false, 1, false},
                  {1, true, 0, false},
                  {std::nan(""), false, 1, false},
                  {std::nan(""), false, 2, true}});
}

TEST(EarlyStopping, AMissingMetricListsTheKnownOnes) {
  EarlyStopping stopping;
  const auto verdict = stopping.Check({{"accuracy", 1}, {"loss", 1}});
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.status().message(), "early stopping: there is no metric 'val_loss'; known: accuracy, loss");
}

TEST(EarlyStopping, RefusesOptionsThatMakeNoSense) {
  EarlyStoppingOptions options;
  options.patience = 0;
  EXPECT_FALSE(EarlyStopping(options).Check({{"val_loss", 1}}).ok());
  options.patience = 1;
  options.min_delta = -1;
  EXPECT_FALSE(EarlyStopping(options).Check({{"val_loss", 1}}).ok());
}

TEST(EarlyStopping, GoesOnFromASavedState) {
  EarlyStoppingOptions options;
  options.patience = 2;
  EarlyStopping a(options), b(options);
  for (double v : {3., 2., 2.5}) ASSERT_TRUE(a.Check({{"val_loss", v}}).ok());
  ASSERT_TRUE(b.set_state(a.state()).ok());
  EXPECT_EQ(b.counter(), 1);
  EXPECT_EQ(b.best(), 2);
  EXPECT_TRUE(b.Check({{"val_loss", 2.1}})->stop);
  EXPECT_EQ(b.reason(), "val_loss has not improved on 2 for 2 validations");
  ASSERT_TRUE(a.set_state(b.state()).ok());
  EXPECT_EQ(a.reason(), b.reason());
  EXPECT_FALSE(b.set_state({{"counter", 1}}).ok());
}

}  // namespace
}  // namespace lockstep
