// A small torch::Tensor for host code of extensions: sizes, strides, views, allocation, and nothing
// that computes. An answer compiles with it in a second, for the simulator and with nvcc. `call.h`
// passes arguments and results. A name that is missing here is a compiler's error that names it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#ifndef __restrict__
#define C10_RESTRICT __restrict__
#endif
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_LIKELY(condition) (condition)
#define C10_UNLIKELY(condition) (condition)

namespace c10 {

// ---- errors -----------------------------------------------------------------------------------
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <typename T, typename = void>
struct Printable : std::false_type {};
template <typename T>
struct Printable<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const T&>())>>
    : std::true_type {};

template <typename... A>
std::string str(const A&... parts) {
    std::ostringstream out;
    ((out << parts), ...);
    return out.str();
}

// ---- data types -------------------------------------------------------------------------------
struct Half {
    unsigned short x = 0;
    Half() = default;
    __host__ __device__ Half(float value) {
        unsigned bits;
        memcpy(&bits, &value, 4);
        unsigned sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
        if (magnitude >= 0x7f800000) {
            x = sign | 0x7c00 | (magnitude > 0x7f800000 ? 0x200 : 0);
        } else if (magnitude >= 0x477ff000) {
            x = sign | 0x7c00;
        } else if (magnitude < 0x38800000) {
            // A subnormal half: the addition rounds.
            float shifted, half = 0.5f;
            memcpy(&shifted, &magnitude, 4);
            shifted += half;
            memcpy(&bits, &shifted, 4);
            x = sign | (bits - 0x3f000000);
        } else {
            x = sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
        }
    }
    __host__ __device__ operator float() const {
        unsigned sign = (x & 0x8000u) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
        float value;
        if (exponent == 31) {
            unsigned bits = sign | 0x7f800000 | fraction << 13;
            memcpy(&value, &bits, 4);
            return value;
        }
        if (!exponent) {
            value = fraction * 5.9604644775390625e-8f;
            return sign ? -value : value;
        }
        unsigned bits = sign | (exponent + 112) << 23 | fraction << 13;
        memcpy(&value, &bits, 4);
        return value;
    }
};
struct BFloat16 {
    unsigned short x = 0;
    BFloat16() = default;
    __host__ __device__ BFloat16(float value) {
        unsigned bits;
        memcpy(&bits, &value, 4);
        x = value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    __host__ __device__ operator float() const {
        unsigned bits = unsigned(x) << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
};

// The numbers are those of the Python side (simulated.py).
enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, BFloat16, Bool, Undefined };
constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = ScalarType::Byte, kChar = ScalarType::Char,
                     kInt8 = ScalarType::Char, kShort = ScalarType::Short, kInt16 = ScalarType::Short,
                     kInt = ScalarType::Int, kInt32 = ScalarType::Int, kLong = ScalarType::Long,
                     kInt64 = ScalarType::Long, kHalf = ScalarType::Half, kFloat16 = ScalarType::Half,
                     kFloat = ScalarType::Float, kFloat32 = ScalarType::Float,
                     kDouble = ScalarType::Double, kFloat64 = ScalarType::Double,
                     kBFloat16 = ScalarType::BFloat16, kBool = ScalarType::Bool;
constexpr const char* kTypeNames[] = {"Byte", "Char", "Short", "Int", "Long", "Half",
                                      "Float", "Double", "BFloat16", "Bool", "Undefined"};
inline size_t elementSize(ScalarType type) {
    constexpr size_t sizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 2, 1, 0};
    return sizes[int(type)];
}
inline const char* toString(ScalarType type) { return kTypeNames[int(type)]; }
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }
inline bool isFloatingType(ScalarType type) {
    return type == kHalf || type == kFloat || type == kDouble || type == kBFloat16;
}

template <typename T> struct CppTypeToScalarType;
template <> struct CppTypeToScalarType<uint8_t> { static constexpr ScalarType value = kByte; };
template <> struct CppTypeToScalarType<int8_t> { static constexpr ScalarType value = kChar; };
template <> struct CppTypeToScalarType<int16_t> { static constexpr ScalarType value = kShort; };
template <> struct CppTypeToScalarType<int> { static constexpr ScalarType value = kInt; };
template <> struct CppTypeToScalarType<long> { static constexpr ScalarType value = kLong; };
template <> struct CppTypeToScalarType<long long> { static constexpr ScalarType value = kLong; };
template <> struct CppTypeToScalarType<Half> { static constexpr ScalarType value = kHalf; };
template <> struct CppTypeToScalarType<float> { static constexpr ScalarType value = kFloat; };
template <> struct CppTypeToScalarType<double> { static constexpr ScalarType value = kDouble; };
template <> struct CppTypeToScalarType<BFloat16> { static constexpr ScalarType value = kBFloat16; };
template <> struct CppTypeToScalarType<bool> { static constexpr ScalarType value = kBool; };

class Scalar {
    double real_ = 0;
    int64_t whole_ = 0;
    bool is_real_ = false;

  public:
    Scalar() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    Scalar(T value)
        : real_(double(value)), whole_(int64_t(value)), is_real_(std::is_floating_point_v<T>) {}
    template <typename T>
    T to() const { return is_real_ ? T(real_) : T(whole_); }
    double toDouble() const { return to<double>(); }
    float toFloat() const { return to<float>(); }
    int toInt() const { return to<int>(); }
    int64_t toLong() const { return to<int64_t>(); }
    bool toBool() const { return to<bool>(); }
    bool isFloatingPoint() const { return is_real_; }
};

// ---- arrays, devices, options -----------------------------------------------------------------
template <typename T>
class ArrayRef {
    const T* data_ = nullptr;
    size_t size_ = 0;

  public:
    ArrayRef() = default;
    ArrayRef(const T& one) : data_(&one), size_(1) {}
    ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
    ArrayRef(const T* begin, const T* end) : data_(begin), size_(end - begin) {}
    ArrayRef(const std::vector<T>& values) : data_(values.data()), size_(values.size()) {}
    template <size_t N>
    ArrayRef(const std::array<T, N>& values) : data_(values.data()), size_(N) {}
    template <size_t N>
    ArrayRef(const T (&values)[N]) : data_(values), size_(N) {}
    ArrayRef(const std::initializer_list<T>& values) : data_(values.begin()), size_(values.size()) {}
    const T* begin() const { return data_; }
    const T* end() const { return data_ + size_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }
    bool empty() const { return !size_; }
    const T& operator[](size_t i) const { return data_[i]; }
    const T& at(size_t i) const {
        if (i >= size_) throw Error(str("index ", i, " of an array of ", size_));
        return data_[i];
    }
    const T& front() const { return at(0); }
    const T& back() const { return at(size_ - 1); }
    std::vector<T> vec() const { return {begin(), end()}; }
    bool equals(ArrayRef other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
    ArrayRef slice(size_t start, size_t count) const { return {data_ + start, count}; }
    ArrayRef slice(size_t start) const { return {data_ + start, size_ - start}; }
};
template <typename T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <typename T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <typename T>
std::ostream& operator<<(std::ostream& out, ArrayRef<T> values) {
    out << "[";
    for (size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
    return out << "]";
}
using IntArrayRef = ArrayRef<int64_t>;

using std::nullopt;
using std::nullopt_t;
using std::optional;
template <typename T>
using OptionalRef = std::optional<T>;

enum class DeviceType : int8_t { CPU, CUDA };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
using DeviceIndex = int8_t;
inline std::ostream& operator<<(std::ostream& out, DeviceType type) {
    return out << (type == kCUDA ? "cuda" : "cpu");
}
struct Device {
    DeviceType type_ = kCPU;
    DeviceIndex index_ = -1;
    Device() = default;
    Device(DeviceType type, int index = -1) : type_(type), index_(DeviceIndex(index)) {}
    Device(const std::string& text) : type_(text.rfind("cuda", 0) == 0 ? kCUDA : kCPU) {}
    Device(const char* text) : Device(std::string(text)) {}
    DeviceType type() const { return type_; }
    DeviceIndex index() const { return index_; }
    bool has_index() const { return index_ >= 0; }
    bool is_cuda() const { return type_ == kCUDA; }
    bool is_cpu() const { return type_ == kCPU; }
    bool operator==(const Device& other) const { return type_ == other.type_; }
    bool operator!=(const Device& other) const { return !(*this == other); }
    std::string str() const { return type_ == kCUDA ? "cuda:0" : "cpu"; }
};
inline std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

enum Layout { kStrided };
enum class MemoryFormat { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

struct TensorOptions {
    ScalarType type_ = kFloat;
    Device device_;
    TensorOptions() = default;
    TensorOptions(ScalarType type) : type_(type) {}
    TensorOptions(Device device) : device_(device) {}
    TensorOptions(DeviceType type) : device_(type) {}
    TensorOptions dtype(ScalarType type) const {
        TensorOptions changed = *this;
        changed.type_ = type;
        return changed;
    }
    TensorOptions device(Device device) const {
        TensorOptions changed = *this;
        changed.device_ = device;
        return changed;
    }
    TensorOptions device(DeviceType type, int index = -1) const { return device(Device(type, index)); }
    TensorOptions device_index(int) const { return device(kCUDA); }
    TensorOptions layout(Layout) const { return *this; }
    TensorOptions requires_grad(bool = true) const { return *this; }
    TensorOptions pinned_memory(bool) const { return *this; }
    TensorOptions memory_format(MemoryFormat) const { return *this; }
    ScalarType dtype() const { return type_; }
    Device device() const { return device_; }
};

// ---- memory -----------------------------------------------------------------------------------
struct Storage {
    char* data = nullptr;
    size_t bytes = 0;
    bool on_gpu = false;
    // The place of the argument to which it belongs, or -1; on a GPU, the number of torch's tensor.
    int64_t owner = -1;
    ~Storage() {
        if (!on_gpu) std::free(data);
    }
};

}  // namespace c10

// Functions that the simulator or the Python side provides.
#ifdef CONVLAB_SIMULATOR
extern "C" {
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int use);
void sim_host(cudaStream_t stream);
}
#endif
namespace adopt {
using Allocate = void* (*)(size_t bytes, int64_t* owner);
inline Allocate g_allocate = nullptr;      // torch's allocator, on a GPU
inline cudaStream_t g_stream = nullptr;    // torch's current stream

inline void check(cudaError_t status, const char* call) {
    if (status != cudaSuccess)
        throw c10::Error(c10::str("CUDA error: ", cudaGetErrorString(status), " (", call, ")"));
}

inline std::shared_ptr<c10::Storage> allocate(size_t bytes, bool on_gpu) {
    auto storage = std::make_shared<c10::Storage>();
    storage->bytes = bytes;
    storage->on_gpu = on_gpu;
    if (!on_gpu) {
        storage->data = static_cast<char*>(std::malloc(std::max<size_t>(bytes, 1)));
        std::memset(storage->data, 0xff, bytes);
        return storage;
    }
#ifdef CONVLAB_SIMULATOR
    static int count = 0;
    std::string name = c10::str("tensor", ++count);
    constexpr int kFreshMemory = 1;
    storage->data = static_cast<char*>(sim_map(name.c_str(), -1, 0, bytes, kFreshMemory));
#else
    storage->data = static_cast<char*>(g_allocate(bytes, &storage->owner));
#endif
    if (!storage->data) throw c10::Error(c10::str("out of memory: ", bytes, " bytes"));
    return storage;
}

inline void copy_rows(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width,
                      size_t rows) {
    if (!width || !rows) return;
    if (from_pitch >= width && to_pitch >= width) {
        check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault, g_stream),
              "cudaMemcpy2DAsync");
        return;
    }
    for (size_t i = 0; i < rows; ++i)
        check(cudaMemcpyAsync(to + i * to_pitch, from + i * from_pitch, width, cudaMemcpyDefault, g_stream),
              "cudaMemcpyAsync");
}
}  // namespace adopt

// ---- tensors ----------------------------------------------------------------------------------
namespace at {
using namespace c10;

template <typename T>
struct DefaultPtrTraits { typedef T* PtrType; };
template <typename T>
struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };

template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename I = int64_t>
struct TensorAccessor {
    typename Traits<T>::PtrType data_;
    const I* sizes_;
    const I* strides_;
    __host__ __device__ TensorAccessor(T* data, const I* sizes, const I* strides)
        : data_(data), sizes_(sizes), strides_(strides) {}
    __host__ __device__ decltype(auto) operator[](I i) const {
        if constexpr (N == 1) return (data_[strides_[0] * i]);
        else return TensorAccessor<T, N - 1, Traits, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
    }
    __host__ __device__ I size(int i) const { return sizes_[i]; }
    __host__ __device__ I stride(int i) const { return strides_[i]; }
    __host__ __device__ T* data() const { return data_; }
};
template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename I = int64_t>
struct GenericPackedTensorAccessor {
    typename Traits<T>::PtrType data_;
    I sizes_[N];
    I strides_[N];
    __host__ __device__ decltype(auto) operator[](I i) const {
        if constexpr (N == 1) return (data_[strides_[0] * i]);
        else return TensorAccessor<T, N - 1, Traits, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
    }
    __host__ __device__ I size(int i) const { return sizes_[i]; }
    __host__ __device__ I stride(int i) const { return strides_[i]; }
    __host__ __device__ T* data() const { return data_; }
};
template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;

class Tensor {
    std::shared_ptr<Storage> storage_;
    std::vector<int64_t> sizes_, strides_;
    int64_t offset_ = 0;  // in elements
    ScalarType type_ = ScalarType::Undefined;

    int64_t wrapped(int64_t d, int64_t extra = 0) const {
        int64_t n = dim() + extra;
        if (d < -n || d >= n)
            throw Error(str("Dimension out of range: ", d, " of a tensor of ", dim(), " dimensions"));
        return d < 0 ? d + n : d;
    }
    Tensor viewed(std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset) const {
        Tensor view = *this;
        view.sizes_ = std::move(sizes);
        view.strides_ = std::move(strides);
        view.offset_ = offset;
        return view;
    }

  public:
    Tensor() = default;
    Tensor(std::shared_ptr<Storage> storage, std::vector<int64_t> sizes, std::vector<int64_t> strides,
           int64_t offset, ScalarType type)
        : storage_(std::move(storage)), sizes_(std::move(sizes)), strides_(std::move(strides)),
          offset_(offset), type_(type) {}

    static std::vector<int64_t> rows_first(const std::vector<int64_t>& sizes) {
        std::vector<int64_t> strides(sizes.size(), 1);
        for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
        return strides;
    }
    static Tensor fresh(IntArrayRef sizes, const TensorOptions& options) {
        int64_t count = 1;
        for (int64_t size : sizes) {
            if (size < 0)
                throw Error(str("Trying to create tensor with negative dimension ", size, ": ", sizes));
            count *= size;
        }
        auto storage = adopt::allocate(count * elementSize(options.type_), options.device_.is_cuda());
        return {storage, sizes.vec(), rows_first(sizes.vec()), 0, options.type_};
    }

    bool defined() const { return bool(storage_); }
    int64_t dim() const { return int64_t(sizes_.size()); }
    int64_t ndimension() const { return dim(); }
    int64_t size(int64_t d) const { return sizes_[wrapped(d)]; }
    int64_t stride(int64_t d) const { return strides_[wrapped(d)]; }
    IntArrayRef sizes() const { return sizes_; }
    IntArrayRef strides() const { return strides_; }
    int64_t storage_offset() const { return offset_; }
    int64_t numel() const {
        int64_t count = 1;
        for (int64_t size : sizes_) count *= size;
        return count;
    }
    size_t element_size() const { return elementSize(type_); }
    size_t itemsize() const { return element_size(); }
    size_t nbytes() const { return numel() * element_size(); }
    ScalarType scalar_type() const { return type_; }
    ScalarType dtype() const { return type_; }
    ScalarType type() const { return type_; }
    bool is_cuda() const { return storage_ && storage_->on_gpu; }
    bool is_cpu() const { return !is_cuda(); }
    bool is_floating_point() const { return isFloatingType(type_); }
    bool requires_grad() const { return false; }
    bool is_same(const Tensor& other) const { return storage_ == other.storage_ && offset_ == other.offset_; }
    Device device() const { return is_cuda() ? Device(kCUDA, 0) : Device(kCPU); }
    int get_device() const { return is_cuda() ? 0 : -1; }
    TensorOptions options() const { return TensorOptions(type_).device(device()); }
    Layout layout() const { return kStrided; }
    const std::shared_ptr<Storage>& storage_of() const { return storage_; }

    bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
        if (format == MemoryFormat::ChannelsLast)
            return dim() == 4 && permute({0, 2, 3, 1}).is_contiguous();
        int64_t expected = 1;
        for (size_t i = sizes_.size(); i-- > 0;) {
            if (sizes_[i] != 1 && strides_[i] != expected) return !numel();
            expected *= sizes_[i];
        }
        return true;
    }

    void* data_ptr() const { return storage_ ? storage_->data + offset_ * int64_t(element_size()) : nullptr; }
    const void* const_data_ptr() const { return data_ptr(); }
    void* mutable_data_ptr() const { return data_ptr(); }
    template <typename T>
    T* data_ptr() const {
        using Plain = std::remove_const_t<T>;
        constexpr ScalarType needed = CppTypeToScalarType<Plain>::value;
        if (needed != type_)
            throw Error(str("expected scalar type ", needed, " but found ", type_));
        return static_cast<T*>(data_ptr());
    }
    template <typename T>
    const T* const_data_ptr() const { return data_ptr<T>(); }
    template <typename T>
    T* mutable_data_ptr() const { return data_ptr<T>(); }
    template <typename T>
    T* data() const { return data_ptr<T>(); }

    template <typename T, size_t N>
    TensorAccessor<T, N> accessor() const {
        require_dimensions(N);
        return TensorAccessor<T, N>(data_ptr<T>(), sizes_.data(), strides_.data());
    }
    template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename I = int64_t>
    GenericPackedTensorAccessor<T, N, Traits, I> packed_accessor() const {
        require_dimensions(N);
        GenericPackedTensorAccessor<T, N, Traits, I> packed{data_ptr<T>(), {}, {}};
        for (size_t i = 0; i < N; ++i) {
            packed.sizes_[i] = I(sizes_[i]);
            packed.strides_[i] = I(strides_[i]);
        }
        return packed;
    }
    template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
    PackedTensorAccessor32<T, N, Traits> packed_accessor32() const { return packed_accessor<T, N, Traits, int32_t>(); }
    template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
    PackedTensorAccessor64<T, N, Traits> packed_accessor64() const { return packed_accessor<T, N, Traits, int64_t>(); }
    void require_dimensions(size_t n) const {
        if (dim() != int64_t(n)) throw Error(str("expected ", n, " dims but tensor has ", dim()));
    }

    // Copies of memory.
    Tensor& copy_(const Tensor& from) {
        if (from.sizes_ != sizes_ || from.type_ != type_)
            throw Error(str("copy_: convlab's small torch::Tensor copies only equal shapes and types, not ",
                            from.sizes(), " to ", sizes()));
        if (!numel()) return *this;
        size_t item = element_size();
        auto* to = static_cast<char*>(data_ptr());
        auto* source = static_cast<const char*>(from.data_ptr());
        if (is_contiguous() && from.is_contiguous()) {
            adopt::copy_rows(to, nbytes(), source, nbytes(), nbytes(), 1);
            return *this;
        }
        int64_t last = dim() ? sizes_.back() : 1, to_step = dim() ? strides_.back() : 1;
        int64_t from_step = dim() ? from.strides_.back() : 1;
        for (int64_t row = 0; row < numel() / last; ++row) {
            int64_t rest = row, put = 0, get = 0;
            for (size_t d = sizes_.size() - 1; d-- > 0;) {
                put += rest % sizes_[d] * strides_[d];
                get += rest % sizes_[d] * from.strides_[d];
                rest /= sizes_[d];
            }
            adopt::copy_rows(to + put * item, to_step * item, source + get * item, from_step * item, item, last);
        }
        return *this;
    }
    Tensor clone() const {
        Tensor copy = fresh(sizes_, options());
        copy.copy_(*this);
        return copy;
    }
    Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
        if (is_contiguous(format)) return *this;
        if (format == MemoryFormat::ChannelsLast) return permute({0, 2, 3, 1}).clone().permute({0, 3, 1, 2});
        return clone();
    }
    Tensor to(Device device) const {
        if (device == this->device()) return *this;
        Tensor copy = fresh(sizes_, options().device(device));
        copy.copy_(contiguous());
        if (device.is_cpu()) adopt::check(cudaStreamSynchronize(adopt::g_stream), "cudaStreamSynchronize");
        return copy;
    }
    Tensor to(DeviceType type) const { return to(Device(type)); }
    Tensor to(ScalarType type) const {
        if (type == type_) return *this;
        throw Error(str("not simulated: convlab's small torch::Tensor cannot convert ", type_, " to ", type));
    }
    Tensor to(const TensorOptions& options) const { return to(options.type_).to(options.device_); }
    Tensor cuda() const { return to(kCUDA); }
    Tensor cpu() const { return to(kCPU); }
    Tensor detach() const { return *this; }
    Tensor zero_() {
        if (!is_contiguous()) throw Error("not simulated: zero_ of a strided view");
        if (!nbytes()) return *this;
        if (!is_cuda()) std::memset(data_ptr(), 0, nbytes());
        else adopt::check(cudaMemsetAsync(data_ptr(), 0, nbytes(), adopt::g_stream), "cudaMemsetAsync");
        return *this;
    }
    Tensor fill_(Scalar value) {
        Tensor host = fresh(sizes_, options().device(kCPU));
        for (int64_t i = 0; i < numel(); ++i) host.set_host(i, value);
        copy_(host);
        if (is_cuda()) adopt::check(cudaStreamSynchronize(adopt::g_stream), "cudaStreamSynchronize");
        return *this;
    }
    void set_host(int64_t i, Scalar value) {
        switch (type_) {
            case kByte: data_ptr<uint8_t>()[i] = value.to<uint8_t>(); break;
            case kChar: data_ptr<int8_t>()[i] = value.to<int8_t>(); break;
            case kShort: data_ptr<int16_t>()[i] = value.to<int16_t>(); break;
            case kInt: data_ptr<int>()[i] = value.toInt(); break;
            case kLong: data_ptr<long>()[i] = value.toLong(); break;
            case kHalf: data_ptr<Half>()[i] = Half(value.toFloat()); break;
            case kFloat: data_ptr<float>()[i] = value.toFloat(); break;
            case kDouble: data_ptr<double>()[i] = value.toDouble(); break;
            case kBFloat16: data_ptr<BFloat16>()[i] = BFloat16(value.toFloat()); break;
            case kBool: data_ptr<bool>()[i] = value.toBool(); break;
            default: throw Error("a tensor without a type");
        }
    }
    template <typename T>
    T item() const {
        if (numel() != 1) throw Error(str("a Tensor with ", numel(), " elements cannot be converted to Scalar"));
        Tensor host = to(kCPU);
        return *host.data_ptr<T>();
    }

    // Views.
    Tensor view(IntArrayRef sizes) const {
        if (!is_contiguous())
            throw Error("view size is not compatible with input tensor's size and stride; use .reshape(...)");
        return reshape(sizes);
    }
    Tensor reshape(IntArrayRef wanted) const {
        std::vector<int64_t> sizes = wanted.vec();
        int64_t known = 1, open = -1;
        for (size_t i = 0; i < sizes.size(); ++i) {
            if (sizes[i] == -1) open = int64_t(i);
            else known *= sizes[i];
        }
        if (open >= 0 && known) sizes[open] = numel() / known;
        int64_t count = 1;
        for (int64_t size : sizes) count *= size;
        if (count != numel())
            throw Error(str("shape '", wanted, "' is invalid for input of size ", numel()));
        Tensor whole = contiguous();
        return whole.viewed(sizes, rows_first(sizes), whole.offset_);
    }
    Tensor view_as(const Tensor& other) const { return view(other.sizes()); }
    Tensor reshape_as(const Tensor& other) const { return reshape(other.sizes()); }
    Tensor flatten(int64_t from = 0, int64_t to = -1) const {
        if (!dim()) return reshape({1});
        from = wrapped(from);
        to = wrapped(to);
        std::vector<int64_t> sizes(sizes_.begin(), sizes_.begin() + from);
        int64_t flat = 1;
        for (int64_t d = from; d <= to; ++d) flat *= sizes_[d];
        sizes.push_back(flat);
        sizes.insert(sizes.end(), sizes_.begin() + to + 1, sizes_.end());
        return reshape(sizes);
    }
    Tensor permute(IntArrayRef order) const {
        if (int64_t(order.size()) != dim()) throw Error(str("permute of ", dim(), " dimensions with ", order));
        std::vector<int64_t> sizes, strides;
        for (int64_t d : order) {
            sizes.push_back(size(d));
            strides.push_back(stride(d));
        }
        return viewed(sizes, strides, offset_);
    }
    Tensor transpose(int64_t a, int64_t b) const {
        auto sizes = sizes_, strides = strides_;
        a = wrapped(a);
        b = wrapped(b);
        std::swap(sizes[a], sizes[b]);
        std::swap(strides[a], strides[b]);
        return viewed(sizes, strides, offset_);
    }
    Tensor t() const { return dim() < 2 ? *this : transpose(0, 1); }
    Tensor unsqueeze(int64_t d) const {
        auto sizes = sizes_, strides = strides_;
        d = wrapped(d, 1);
        strides.insert(strides.begin() + d, d < dim() ? sizes[d] * strides[d] : 1);
        sizes.insert(sizes.begin() + d, 1);
        return viewed(sizes, strides, offset_);
    }
    Tensor squeeze(int64_t d) const {
        auto sizes = sizes_, strides = strides_;
        d = wrapped(d);
        if (sizes[d] != 1) return *this;
        sizes.erase(sizes.begin() + d);
        strides.erase(strides.begin() + d);
        return viewed(sizes, strides, offset_);
    }
    Tensor squeeze() const {
        Tensor view = *this;
        for (int64_t d = dim(); d-- > 0;) view = view.squeeze(d);
        return view;
    }
    Tensor narrow(int64_t d, int64_t start, int64_t length) const {
        auto sizes = sizes_;
        d = wrapped(d);
        if (start < 0 || length < 0 || start + length > sizes[d])
            throw Error(str("start (", start, ") + length (", length, ") exceeds dimension size (", sizes[d], ")"));
        sizes[d] = length;
        return viewed(sizes, strides_, offset_ + start * strides_[d]);
    }
    Tensor select(int64_t d, int64_t index) const {
        d = wrapped(d);
        return narrow(d, index < 0 ? index + sizes_[d] : index, 1).squeeze(d);
    }
    Tensor operator[](int64_t index) const { return select(0, index); }
    Tensor expand(IntArrayRef wanted) const {
        std::vector<int64_t> sizes = wanted.vec(), strides(wanted.size(), 0);
        size_t extra = wanted.size() - sizes_.size();
        for (size_t i = 0; i < sizes_.size(); ++i) {
            int64_t& size = sizes[extra + i];
            if (size == -1) size = sizes_[i];
            if (size != sizes_[i] && sizes_[i] != 1)
                throw Error(str("cannot expand ", this->sizes(), " to ", wanted));
            strides[extra + i] = sizes_[i] == 1 && size != 1 ? 0 : strides_[i];
        }
        return viewed(sizes, strides, offset_);
    }
    Tensor expand_as(const Tensor& other) const { return expand(other.sizes()); }

    // New memory of the same type and device.
    Tensor new_empty(IntArrayRef sizes) const { return fresh(sizes, options()); }
    Tensor new_empty(IntArrayRef sizes, const TensorOptions& options) const { return fresh(sizes, options); }
    Tensor new_zeros(IntArrayRef sizes) const { return new_empty(sizes).zero_(); }
    Tensor new_zeros(IntArrayRef sizes, const TensorOptions& options) const { return new_empty(sizes, options).zero_(); }
    Tensor new_full(IntArrayRef sizes, Scalar value) const { return new_empty(sizes).fill_(value); }
    Tensor new_ones(IntArrayRef sizes) const { return new_full(sizes, 1); }
};

inline Tensor empty(IntArrayRef sizes, const TensorOptions& options = {}) { return Tensor::fresh(sizes, options); }
inline Tensor zeros(IntArrayRef sizes, const TensorOptions& options = {}) { return empty(sizes, options).zero_(); }
inline Tensor full(IntArrayRef sizes, Scalar value, const TensorOptions& options = {}) {
    return empty(sizes, options).fill_(value);
}
inline Tensor ones(IntArrayRef sizes, const TensorOptions& options = {}) { return full(sizes, 1, options); }
inline Tensor empty_like(const Tensor& x, const TensorOptions& options) { return empty(x.sizes(), options); }
inline Tensor empty_like(const Tensor& x) { return empty(x.sizes(), x.options()); }
inline Tensor zeros_like(const Tensor& x, const TensorOptions& options) { return zeros(x.sizes(), options); }
inline Tensor zeros_like(const Tensor& x) { return zeros(x.sizes(), x.options()); }
inline Tensor ones_like(const Tensor& x) { return ones(x.sizes(), x.options()); }
inline Tensor full_like(const Tensor& x, Scalar value) { return full(x.sizes(), value, x.options()); }
inline Tensor tensor(Scalar value, const TensorOptions& options = {}) { return full({}, value, options); }
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(Device device) { return TensorOptions(device); }
inline std::optional<Device> device_of(const Tensor& x) {
    return x.defined() ? std::optional<Device>(x.device()) : std::nullopt;
}
inline std::ostream& operator<<(std::ostream& out, const Tensor& x) {
    return out << "a " << x.scalar_type() << " tensor of shape " << x.sizes();
}
using TensorList = ArrayRef<Tensor>;

struct DeviceGuard {
    template <typename... A>
    explicit DeviceGuard(const A&...) {}
};
struct NoGradGuard {};
using OptionalDeviceGuard = DeviceGuard;

template <typename T> struct OpMathType { using type = T; };
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <typename T> using opmath_type = typename OpMathType<T>::type;
template <typename T, bool on_gpu = true> using acc_type = typename OpMathType<T>::type;
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
}  // namespace at

// ---- streams and guards -----------------------------------------------------------------------
namespace c10::cuda {
class CUDAStream {
    cudaStream_t stream_;

  public:
    CUDAStream(cudaStream_t stream) : stream_(stream) {}
    cudaStream_t stream() const { return stream_; }
    operator cudaStream_t() const { return stream_; }
    void synchronize() const { adopt::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
    bool operator==(const CUDAStream& other) const { return stream_ == other.stream_; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return adopt::g_stream; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return nullptr; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) {
    cudaStream_t stream;
    adopt::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
}
using CUDAGuard = at::DeviceGuard;
using OptionalCUDAGuard = at::DeviceGuard;
struct CUDAStreamGuard {
    cudaStream_t before = adopt::g_stream;
    explicit CUDAStreamGuard(CUDAStream stream) { adopt::g_stream = stream; }
    ~CUDAStreamGuard() { adopt::g_stream = before; }
};
inline int current_device() { return 0; }
inline int device_count() { return 1; }
inline void device_synchronize() { adopt::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
}  // namespace c10::cuda
namespace at::cuda {
using namespace c10::cuda;
inline cudaDeviceProp* getCurrentDeviceProperties() {
    static cudaDeviceProp properties;
    static bool known = cudaGetDeviceProperties(&properties, 0) == cudaSuccess;
    return known ? &properties : nullptr;
}
inline cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
inline bool is_available() { return true; }
}  // namespace at::cuda

namespace torch {
using namespace at;
namespace cuda {
using namespace at::cuda;
inline void synchronize(int = -1) { c10::cuda::device_synchronize(); }
}  // namespace cuda
}  // namespace torch
using at::device_of;

// ---- macros -----------------------------------------------------------------------------------
#define TORCH_CHECK(condition, ...)                                                               \
    do {                                                                                          \
        if (!(condition)) throw ::c10::Error(::adopt::message(#condition, ##__VA_ARGS__));        \
    } while (false)
namespace adopt {
template <typename... A>
std::string message(const char* condition, const A&... parts) {
    if constexpr (sizeof...(parts) == 0) return c10::str("Expected ", condition, " to be true, but got false.");
    else return c10::str(parts...);
}
}  // namespace adopt
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT TORCH_CHECK
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_CHECK_EQ(a, b) TORCH_CHECK((a) == (b))
#define TORCH_CHECK_VALUE TORCH_CHECK
#define AT_ERROR(...) throw ::c10::Error(::c10::str(__VA_ARGS__))
#define TORCH_WARN(...) (std::cerr << ::c10::str(__VA_ARGS__) << "\n")
#define C10_CUDA_CHECK(call) ::adopt::check((call), #call)
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_CHECK_WARN(call) (void)(call)

#define ADOPT_CASE(number, type, ...)                                                             \
    case number: {                                                                                \
        using scalar_t = type;                                                                    \
        return __VA_ARGS__();                                                                     \
    }
#define ADOPT_SWITCH(scalar, name, cases)                                                         \
    [&] {                                                                                         \
        const ::c10::ScalarType adopt_type = (scalar);                                            \
        switch (adopt_type) {                                                                     \
            cases default : throw ::c10::Error(::c10::str("\"", name, "\" not implemented for '", \
                                                          adopt_type, "'"));                      \
        }                                                                                         \
    }()
#define ADOPT_FLOATS(...)                                    \
    ADOPT_CASE(::c10::ScalarType::Float, float, __VA_ARGS__) \
    ADOPT_CASE(::c10::ScalarType::Double, double, __VA_ARGS__)
#define ADOPT_HALVES(...)                                         \
    ADOPT_CASE(::c10::ScalarType::Half, ::c10::Half, __VA_ARGS__) \
    ADOPT_CASE(::c10::ScalarType::BFloat16, ::c10::BFloat16, __VA_ARGS__)
#define ADOPT_WHOLE(...)                                      \
    ADOPT_CASE(::c10::ScalarType::Byte, uint8_t, __VA_ARGS__) \
    ADOPT_CASE(::c10::ScalarType::Char, int8_t, __VA_ARGS__)  \
    ADOPT_CASE(::c10::ScalarType::Short, int16_t, __VA_ARGS__) \
    ADOPT_CASE(::c10::ScalarType::Int, int, __VA_ARGS__)      \
    ADOPT_CASE(::c10::ScalarType::Long, int64_t, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) \
    ADOPT_SWITCH(type, name, ADOPT_FLOATS(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) \
    ADOPT_SWITCH(type, name,                                 \
                 ADOPT_FLOATS(__VA_ARGS__) ADOPT_CASE(::c10::ScalarType::Half, ::c10::Half, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(one, type, name, ...) AT_DISPATCH_FLOATING_TYPES_AND2(one, 0, type, name, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(one, two, type, name, ...) \
    ADOPT_SWITCH(type, name, ADOPT_FLOATS(__VA_ARGS__) ADOPT_HALVES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(type, name, ...) ADOPT_SWITCH(type, name, ADOPT_WHOLE(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(type, name, ...) \
    ADOPT_SWITCH(type, name, ADOPT_FLOATS(__VA_ARGS__) ADOPT_WHOLE(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND_HALF(type, name, ...)        \
    ADOPT_SWITCH(type, name,                                   \
                 ADOPT_FLOATS(__VA_ARGS__) ADOPT_WHOLE(__VA_ARGS__) \
                     ADOPT_CASE(::c10::ScalarType::Half, ::c10::Half, __VA_ARGS__))
