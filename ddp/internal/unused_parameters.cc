#include "lockstep/ddp/internal/unused_parameters.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace lockstep::internal {

void FindReached(const std::vector<at::Tensor>& outputs, Reached& reached) {
  using torch::autograd::Node;
  std::unordered_set<Node*> seen;
  std::vector<Node*> queue;
  const auto push = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) queue.push_back(node);
  };
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    if (output.grad_fn()) {
      push(output.grad_fn().get());
    } else {
      reached.leaves.insert(output.unsafeGetTensorImpl());
    }
  }
  while (!queue.empty()) {
    Node* const node = queue.back();
    queue.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      reached.leaves.insert(leaf->variable.unsafeGetTensorImpl());
      continue;
    }
    if (node->name().find("Checkpoint") != std::string::npos) reached.complete = false;
    for (const auto& edge : node->next_edges()) push(edge.function.get());
  }
}

}  // namespace lockstep::internal
