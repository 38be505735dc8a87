/* Products of small half tensors on the CPU, without a call of Python. The inputs are widened,
 * PyTorch's fp32 kernel computes the product, and the result is rounded once, as in `widen.py`.
 * `small.py` registers these kernels in PyTorch's dispatcher, over the kernels of `products.py`, to
 * which they pass all other products. */

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "numbers.h"

/* The function of the BLAS in PyTorch; null if PyTorch has no BLAS. */
extern "C" __attribute__((weak)) void sgemm_(
    const char *, const char *, const int *, const int *, const int *, const float *, const float *,
    const int *, const float *, const int *, const float *, float *, const int *);

namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKeySet;
using c10::KernelFunction;
using c10::OperatorHandle;

/* Tensors with fewer elements are small: a call of Python takes longer than their conversion. */
constexpr int64_t LARGE = 1 << 14;

/* Which half dtypes are widened and rounded once, and whether another `Arithmetic` of `products.py`
 * has claimed a dtype. */
std::atomic<bool> fp16_is_widened, bf16_is_widened, others_are_claimed;

bool is_widened(ScalarType type) {
    return (type == at::kHalf && fp16_is_widened) || (type == at::kBFloat16 && bf16_is_widened);
}

bool is_small(const Tensor &tensor) {
    return tensor.numel() < LARGE && tensor.is_non_overlapping_and_dense();
}

/* Returns one of three fp32 tensors of this thread, selected by `place`. Its values are valid until
 * the next call with this `place`. */
Tensor &scratch(int place, at::IntArrayRef sizes, at::IntArrayRef strides) {
    thread_local Tensor places[3];
    Tensor &tensor = places[place];
    if (!tensor.defined()) {
        c10::InferenceMode otherwise_read_only(false);
        tensor = at::detail::empty_cpu({LARGE}, at::TensorOptions(at::kFloat));
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return tensor;
}

void widen(const Tensor &narrow, float *__restrict to) {
    const auto *__restrict from = static_cast<const uint16_t *>(narrow.const_data_ptr());
    const int64_t count = narrow.numel();
    if (narrow.scalar_type() == at::kHalf)
        for (int64_t i = 0; i < count; i++) to[i] = widened_fp16(from[i]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = widened_bf16(from[i]);
}

const Tensor &widened(const Tensor &narrow, int place) {
    Tensor &wide = scratch(place, narrow.sizes(), narrow.strides());
    widen(narrow, static_cast<float *>(wide.mutable_data_ptr()));
    return wide;
}

Tensor rounded(
    const float *__restrict from, at::IntArrayRef sizes, at::IntArrayRef strides, ScalarType type
) {
    Tensor narrow = at::detail::empty_strided_cpu(sizes, strides, type);
    auto *__restrict to = static_cast<uint16_t *>(narrow.mutable_data_ptr());
    const int64_t count = narrow.numel();
    if (type == at::kHalf)
        for (int64_t i = 0; i < count; i++) to[i] = narrowed_fp16(from[i]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = narrowed_bf16(from[i]);
    return narrow;
}

Tensor rounded(const Tensor &wide, ScalarType type) {
    if (!wide.is_non_overlapping_and_dense()) return wide.to(type);
    const auto *from = static_cast<const float *>(wide.const_data_ptr());
    return rounded(from, wide.sizes(), wide.strides(), type);
}

/* Returns the tensor in an argument or result of a call; null for any other value. */
const Tensor *tensor_of(const c10::IValue &value) {
    return value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
}

OperatorHandle found(const char *name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

KernelFunction kernel_of(const OperatorHandle &op) {
    return op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU).kernelFunction();
}

/* The kernel of any product, with boxed arguments. */
struct Product : c10::OperatorKernel {
    KernelFunction original, in_python;
    size_t arguments, results;

    Product(const OperatorHandle &op, KernelFunction original)
        : original(std::move(original)),
          in_python(kernel_of(op)),
          arguments(op.schema().arguments().size()),
          results(op.schema().returns().size()) {}

    void operator()(const OperatorHandle &op, DispatchKeySet keys, torch::jit::Stack *stack) {
        auto shared = ScalarType::Undefined;
        bool alike = true, small = true;
        for (auto value = stack->end() - arguments; value != stack->end(); value++)
            if (const Tensor *tensor = tensor_of(*value)) {
                alike &= shared == ScalarType::Undefined || shared == tensor->scalar_type();
                shared = tensor->scalar_type();
                small &= is_small(*tensor);
            }
        if (!alike || !is_widened(shared))
            return (others_are_claimed ? in_python : original).callBoxed(op, keys, stack);
        if (!small) return in_python.callBoxed(op, keys, stack);
        int place = 0;
        for (auto value = stack->end() - arguments; value != stack->end(); value++)
            if (const Tensor *tensor = tensor_of(*value)) *value = widened(*tensor, place++);
        original.callBoxed(op, keys, stack);
        for (auto value = stack->end() - results; value != stack->end(); value++)
            if (const Tensor *tensor = tensor_of(*value)) *value = rounded(*tensor, shared);
    }
};

/* `mm` and `addmm` of matrices with at most this many elements call the BLAS directly, without
 * boxing and without PyTorch's kernel. */
constexpr int64_t SMALLEST = 1 << 10;

/* Tells whether a tensor is a matrix of few elements with more than one row and column. The strides
 * of such a matrix show whether it is stored in row or column order. */
bool is_smallest(const Tensor &matrix) {
    return matrix.dim() == 2 && matrix.size(0) > 1 && matrix.size(1) > 1 &&
        matrix.numel() <= SMALLEST && matrix.is_non_overlapping_and_dense();
}

bool are_smallest(const Tensor &left, const Tensor &right) {
    return sgemm_ && left.scalar_type() == right.scalar_type() &&
        is_widened(left.scalar_type()) && is_smallest(left) && is_smallest(right) &&
        left.size(1) == right.size(0) && left.size(0) * right.size(1) <= SMALLEST;
}

/* Calls the BLAS as PyTorch does for a result in row order: with the transposed matrices. `bias`
 * has one number per column and is added to each row; it may be null. */
Tensor smallest_product(const Tensor &left, const Tensor &right, const Tensor *bias) {
    alignas(64) float wide_left[SMALLEST], wide_right[SMALLEST], result[SMALLEST];
    widen(left, wide_left);
    widen(right, wide_right);
    const int rows = left.size(0), inner = left.size(1), columns = right.size(1);
    if (bias) widen(*bias, result);
    for (int row = 1; bias && row < rows; row++)
        std::copy(result, result + columns, result + row * columns);
    const bool left_in_columns = left.stride(1) != 1, right_in_columns = right.stride(1) != 1;
    const int left_step = left_in_columns ? rows : inner;
    const int right_step = right_in_columns ? inner : columns;
    const float one = 1, of_before = bias != nullptr;
    sgemm_(
        right_in_columns ? "t" : "n", left_in_columns ? "t" : "n", &columns, &rows, &inner, &one,
        wide_right, &right_step, wide_left, &left_step, &of_before, result, &columns);
    return rounded(result, {rows, columns}, {columns, 1}, left.scalar_type());
}

/* Boxes the arguments of a call, and calls the kernel for any product. */
template <class... Arguments>
Tensor boxed(const OperatorHandle &op, Product &product, DispatchKeySet keys, Arguments... values) {
    torch::jit::Stack stack{c10::IValue(values)...};
    product(op, keys, &stack);
    return std::move(stack.back()).toTensor();
}

std::unique_ptr<Product> mm, addmm;

Tensor mm_kernel(DispatchKeySet keys, const Tensor &left, const Tensor &right) {
    if (are_smallest(left, right)) return smallest_product(left, right, nullptr);
    static const auto op = found("aten::mm");
    return boxed(op, *mm, keys, left, right);
}

Tensor addmm_kernel(
    DispatchKeySet keys, const Tensor &added, const Tensor &left, const Tensor &right,
    const at::Scalar &beta, const at::Scalar &alpha
) {
    if (are_smallest(left, right) && added.scalar_type() == left.scalar_type() &&
        added.dim() == 1 && added.size(0) == right.size(1) && added.is_contiguous() &&
        beta.equal(1) && alpha.equal(1))
        return smallest_product(left, right, &added);
    static const auto op = found("aten::addmm");
    return boxed(op, *addmm, keys, added, left, right, beta, alpha);
}

std::vector<std::pair<OperatorHandle, KernelFunction>> originals;
std::unique_ptr<torch::Library> library;

}  // namespace

extern "C" {

void choose(int fp16, int bf16, int others) {
    fp16_is_widened = fp16;
    bf16_is_widened = bf16;
    others_are_claimed = others;
}

/* Stores the present kernel of an operator, before `products.py` replaces it. */
void keep(const char *name) {
    const auto op = found(name);
    originals.emplace_back(op, kernel_of(op));
}

/* Registers the kernels of this file for the operators that `keep` has stored. */
void put_in_place() {
    library = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    for (auto &[op, original] : originals) {
        const auto &name = op.operator_name().name;
        auto product = std::make_unique<Product>(op, std::move(original));
        if (name == "aten::mm") {
            mm = std::move(product);
            library->impl("mm", torch::CppFunction(&mm_kernel));
        } else if (name == "aten::addmm") {
            addmm = std::move(product);
            library->impl("addmm", torch::CppFunction(&addmm_kernel));
        } else {
            library->impl(
                name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(product)));
        }
    }
    originals.clear();
}

void give_back() { library.reset(); }
}
