#include "lockstep/data/transforms/transform.h"

#include <utility>

namespace lockstep::transforms {

Transform Compose(std::vector<Transform> chain) {
  return [chain = std::move(chain)](TensorBatch batch, const BatchKeys& keys) {
    BatchKeys own = keys;
    own.stream = keys.stream * 64;  // chains in chains draw numbers of their own
    for (const auto& transform : chain) {
      ++own.stream;
      batch = transform(std::move(batch), own);
    }
    return batch;
  };
}

}  // namespace lockstep::transforms
