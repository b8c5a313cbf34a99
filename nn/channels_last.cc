#include "lockstep/nn/channels_last.h"

#include <ATen/Functions.h>

namespace lockstep::nn {

void ToChannelsLast(torch::nn::Module& module) {
  const auto convert = [](at::Tensor tensor) {
    if (!tensor.defined() || tensor.dim() != 4) return;
    const at::Tensor data = tensor.detach();
    tensor.set_data(at::empty_like(data, data.options(), at::MemoryFormat::ChannelsLast).copy_(data));
  };
  for (auto& parameter : module.parameters()) convert(parameter);
  for (auto& buffer : module.buffers()) convert(buffer);
}

}  // namespace lockstep::nn
