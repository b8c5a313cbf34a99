#include "lockstep/ddp/internal/reduce_at_end.h"

#include <c10/util/Exception.h>

#include "lockstep/comm/texts.h"
#include "lockstep/ddp/internal/trained_parameters.h"

namespace lockstep::internal {

ReduceAtEnd::ReduceAtEnd(std::vector<NamedParameter> parameters, ProcessGroupPtr group)
    : parameters_(TrainedParameters(std::move(parameters))), group_(std::move(group)), watch_(*this) {
  for (const auto& named : parameters_) {
    TORCH_CHECK(!named.sparse, "reducer: ", named.name, " has sparse gradients, which only BucketedReducer can reduce");
  }
  watch_.Watch(parameters_, /*hooks=*/group_ != nullptr);
}

void ReduceAtEnd::PrepareForBackward(const std::vector<at::Tensor>& outputs) {
  if (!group_) return;
  EndUnfinished();
  watch_.Announce(outputs, /*average=*/true);
}

void ReduceAtEnd::PrepareForAccumulation(const std::vector<at::Tensor>& outputs) {
  if (!group_) return;
  EndUnfinished();
  watch_.Announce(outputs, /*average=*/false);
}

void ReduceAtEnd::SetWeight(std::optional<double> weight) {
  CheckWeight(weight);
  weight_ = weight;
}

void ReduceAtEnd::Abandon(const std::string& why) {
  if (!group_ || !watch_.IsAwaited()) return;
  watch_.Reset();
  Reduce(why);
}

void ReduceAtEnd::EndUnfinished() {
  if (watch_.IsUnfinished()) Abandon("the last backward did not come to its end: it threw");
}

void ReduceAtEnd::ThrowProblems(const std::string& problem) const {
  const std::vector<std::string> all = AllGatherString(problem, group_);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK(all[rank].empty(), "reducer: rank ", rank, ": ", all[rank]);
  }
}

}  // namespace lockstep::internal
