#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep {

/// LibTorch's Gloo backend over TCP, for CPU tensors.
/// `host` is where this rank listens: a name or address of this machine, or empty for the address that the machine's
/// own name stands for. `interfaces`, names of network interfaces to use instead, take precedence.
/// Collective: every rank of the store must call it. Throws c10's exceptions when the ranks can't connect.
c10::intrusive_ptr<c10d::Backend> MakeGlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, std::chrono::milliseconds timeout,
                                                  const std::string& host = "",
                                                  const std::vector<std::string>& interfaces = {});

/// LibTorch's wrapper around `backend` that compares, before each collective, operation, shapes, dtypes and devices
/// over all ranks, and throws an error that names what differs. `gloo` is a Gloo backend of the wrapper's own.
c10::intrusive_ptr<c10d::Backend> CheckCollectives(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                   const c10::intrusive_ptr<c10d::Backend>& gloo);

}  // namespace lockstep
