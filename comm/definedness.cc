#include "lockstep/comm/definedness.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace lockstep {
namespace {

using Reduction = c10d::ReduceOp::RedOpType;

bool IsAnyOf(c10::ScalarType dtype, std::initializer_list<c10::ScalarType> list) {
  return std::find(list.begin(), list.end(), dtype) != list.end();
}

/// What Gloo and NCCL have code for, but for complex numbers, which are moved as pairs.
bool IsCommon(c10::ScalarType dtype) {
  return IsAnyOf(dtype, {c10::kBool, c10::kByte, c10::kChar, c10::kInt, c10::kLong, c10::kHalf, c10::kBFloat16,
                         c10::kFloat, c10::kDouble});
}

std::string BackendName(const char* operation, const at::Tensor& tensor,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  TORCH_CHECK(tensor.defined(), operation, ": an undefined tensor");
  TORCH_CHECK(tensor.layout() == at::kStrided, operation, ": a ", tensor.layout(),
              " tensor; only dense ones are moved");
  if (!group) return "none";
  for (const c10::Device& device : group->getDeviceTypes()) {
    if (device.type() == tensor.device().type()) return group->getBackend(device.type())->getBackendName();
  }
  TORCH_CHECK(false, operation, ": the group has no backend for ", tensor.device().type(), " tensors");
}

}  // namespace

const char* ReductionName(Reduction reduction) {
  static const char* const kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  return reduction < std::size(kNames) ? kNames[reduction] : "none";
}

bool IsReductionDefined(const std::string& backend, Reduction reduction, c10::ScalarType dtype) {
  const bool shm = backend == "shm" || backend == "none", gloo = backend == "gloo" || backend == "hierarchical",
             nccl = backend == "nccl";
  if (!shm && !gloo && !nccl) return true;
  const bool integer = c10::isIntegralType(dtype, /*includeBool=*/true), complex = c10::isComplexType(dtype);
  const bool known =
      IsCommon(dtype) || (shm && dtype == c10::kShort) || IsAnyOf(dtype, {c10::kComplexFloat, c10::kComplexDouble});
  if (!known) return false;
  switch (reduction) {
    case Reduction::SUM: return true;
    case Reduction::PRODUCT: return shm || !complex;
    case Reduction::AVG: return !integer;
    case Reduction::MIN:
    case Reduction::MAX: return !complex;
    case Reduction::BAND:
    case Reduction::BOR:
    case Reduction::BXOR: return integer && !nccl;
    default: return false;
  }
}

bool IsMovable(const std::string& backend, c10::ScalarType dtype) {
  if (backend == "nccl" && IsAnyOf(dtype, {c10::kFloat8_e5m2, c10::kFloat8_e4m3fn})) return true;
  const bool any = backend != "gloo" && backend != "hierarchical" && backend != "nccl";
  return any || IsCommon(dtype) || c10::isComplexType(dtype);
}

void CheckDefined(const char* operation, Reduction reduction, const at::Tensor& tensor,
                  const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const std::string backend = BackendName(operation, tensor, group);
  TORCH_CHECK(IsReductionDefined(backend, reduction, tensor.scalar_type()), operation, ": ", ReductionName(reduction),
              " of ", tensor.scalar_type(), " is not defined on backend ", backend);
}

void CheckMovable(const char* operation, const at::Tensor& tensor,
                  const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const std::string backend = BackendName(operation, tensor, group);
  TORCH_CHECK(IsMovable(backend, tensor.scalar_type()), operation, ": ", tensor.scalar_type(),
              " is not defined on backend ", backend);
}

}  // namespace lockstep
