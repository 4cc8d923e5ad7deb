// Calls a C++ function with arguments from Python, and writes its result: what pybind11 does for an
// extension. A call is a flat list of numbers (simulated.py has the other side):
//   function name, positional arguments, count of named ones, then each with its name.
// A value begins with its tag. The result goes to a buffer, as 8-byte words.
#pragma once

#include <map>

#include "adopt/tensor.h"

namespace adopt {

enum Tag : int64_t { kNone, kWhole, kReal, kTruth, kTensor, kText, kList };

#ifdef CONVLAB_SIMULATOR
using Word = sim::Argument;
#else
struct Word {
    void* pointer;
    double real;
    long long whole;
    int is_real;
};
#endif

struct Value {
    Tag tag = kNone;
    int64_t whole = 0;
    double real = 0;
    std::string text;
    at::Tensor tensor;
    std::vector<Value> list;
};

struct TypeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Reader {
    const Word* at;
    // Of each argument that is a tensor's memory: its storage, by address.
    std::map<void*, std::shared_ptr<c10::Storage>>& storages;

    int64_t whole() { return (at++)->whole; }
    std::string text() {
        std::string all;
        for (int64_t left = whole(); left > 0; --left) all += char(whole());
        return all;
    }
    Value value() {
        Value v;
        v.tag = Tag(whole());
        switch (v.tag) {
            case kNone: break;
            case kWhole:
            case kTruth: v.whole = whole(), v.real = double(v.whole); break;
            case kReal: v.real = (at++)->real; break;
            case kText: v.text = text(); break;
            case kList:
                for (int64_t left = whole(); left > 0; --left) v.list.push_back(value());
                break;
            case kTensor: v.tensor = tensor(); break;
        }
        return v;
    }
    at::Tensor tensor() {
        auto type = c10::ScalarType(whole());
        bool on_gpu = whole();
        int64_t owner = whole(), bytes = whole(), offset = whole(), dims = whole();
        std::vector<int64_t> sizes, strides;
        for (int64_t d = 0; d < dims; ++d) sizes.push_back(whole());
        for (int64_t d = 0; d < dims; ++d) strides.push_back(whole());
        void* memory = (at++)->pointer;
        auto& storage = storages[memory];
        if (!storage) {
            storage = std::make_shared<c10::Storage>();
            storage->bytes = bytes;
            storage->owner = owner;
            storage->on_gpu = on_gpu;
            storage->data = static_cast<char*>(memory);
            if (!on_gpu) {
                storage->data = static_cast<char*>(std::malloc(std::max<int64_t>(bytes, 1)));
                std::memcpy(storage->data, memory, bytes);
            }
        }
        return {storage, sizes, strides, offset, type};
    }
};

// ---- arguments --------------------------------------------------------------------------------
template <typename T, typename = void>
struct From;  // a parameter of a type that is missing here
[[noreturn]] inline void mismatch(const char* wanted) { throw TypeError(wanted); }

template <typename T>
struct From<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
    static T get(const Value& v) {
        if (v.tag != kWhole && v.tag != kTruth) mismatch("int");
        return T(v.whole);
    }
};
template <typename T>
struct From<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static T get(const Value& v) {
        if (v.tag != kReal && v.tag != kWhole && v.tag != kTruth) mismatch("float");
        return T(v.real);
    }
};
template <>
struct From<bool> {
    static bool get(const Value& v) {
        if (v.tag != kTruth) mismatch("bool");
        return v.whole;
    }
};
template <>
struct From<at::Tensor> {
    static at::Tensor get(const Value& v) {
        // None is an undefined tensor.
        if (v.tag != kTensor && v.tag != kNone) mismatch("torch.Tensor");
        return v.tensor;
    }
};
template <>
struct From<std::string> {
    static std::string get(const Value& v) {
        if (v.tag != kText) mismatch("str");
        return v.text;
    }
};
template <>
struct From<c10::Scalar> {
    static c10::Scalar get(const Value& v) {
        if (v.tag == kReal) return v.real;
        if (v.tag != kWhole && v.tag != kTruth) mismatch("Number");
        return v.whole;
    }
};
template <typename T>
struct From<std::optional<T>> {
    static std::optional<T> get(const Value& v) {
        if (v.tag == kNone) return std::nullopt;
        return From<T>::get(v);
    }
};
template <typename T>
struct From<std::vector<T>> {
    static std::vector<T> get(const Value& v) {
        if (v.tag != kList) mismatch("list");
        std::vector<T> all;
        for (const Value& each : v.list) all.push_back(From<T>::get(each));
        return all;
    }
};
template <typename T, size_t N>
struct From<std::array<T, N>> {
    static std::array<T, N> get(const Value& v) {
        std::vector<T> all = From<std::vector<T>>::get(v);
        if (all.size() != N) mismatch("list of another length");
        std::array<T, N> values;
        std::copy(all.begin(), all.end(), values.begin());
        return values;
    }
};
template <typename T>
struct From<c10::ArrayRef<T>> {
    static c10::ArrayRef<T> get(const Value& v) {
        static std::vector<std::vector<T>> kept;
        kept.push_back(From<std::vector<T>>::get(v));
        return kept.back();
    }
};

// An argument of any type, as pybind11's object: None, or a value to cast.
struct Object {
    Value value;
    bool is_none() const { return value.tag == kNone; }
    explicit operator bool() const { return !is_none(); }
    template <typename T>
    T cast() const { return From<T>::get(value); }
};
struct None : Object {};
template <>
struct From<Object> {
    static Object get(const Value& v) { return {v}; }
};

// ---- results ----------------------------------------------------------------------------------
struct Writer {
    char* at;
    char* end;
    int64_t needed = 0;

    void bytes(const void* from, size_t count) {
        size_t padded = (count + 7) / 8 * 8;
        needed += int64_t(padded);
        if (at + padded > end) {
            at = end;
            return;
        }
        std::memcpy(at, from, count);
        at += padded;
    }
    void whole(int64_t value) { bytes(&value, 8); }
    void tag(Tag value) { whole(value); }
    void text(const std::string& value) {
        whole(int64_t(value.size()));
        bytes(value.data(), value.size());
    }

    void put(const at::Tensor& x) {
        if (!x.defined()) return tag(kNone);
        tag(kTensor);
        const auto& storage = x.storage_of();
        whole(int64_t(x.scalar_type()));
        whole(storage->on_gpu);
        whole(storage->owner);
        whole(x.storage_offset());
        whole(x.dim());
        for (int64_t size : x.sizes()) whole(size);
        for (int64_t stride : x.strides()) whole(stride);
#ifdef CONVLAB_SIMULATOR
        bool copied = storage->owner < 0;
#else
        bool copied = !storage->on_gpu;
#endif
        whole(copied ? int64_t(storage->bytes) : 0);
        if (copied) bytes(storage->data, storage->bytes);
    }
    void put(bool value) { tag(kTruth), whole(value); }
    template <typename T>
    std::enable_if_t<std::is_integral_v<T> || std::is_enum_v<T>> put(T value) { tag(kWhole), whole(int64_t(value)); }
    template <typename T>
    std::enable_if_t<std::is_floating_point_v<T>> put(T value) {
        double wide = value;
        tag(kReal), bytes(&wide, 8);
    }
    void put(const std::string& value) { tag(kText), text(value); }
    template <typename T>
    void put(const std::optional<T>& value) {
        if (value) put(*value);
        else tag(kNone);
    }
    template <typename T>
    void put(const std::vector<T>& values) {
        tag(kList), whole(0), whole(int64_t(values.size()));
        for (const T& each : values) put(each);
    }
    template <typename... T>
    void put(const std::tuple<T...>& values) {
        tag(kList), whole(1), whole(sizeof...(T));
        std::apply([&](const auto&... each) { (put(each), ...); }, values);
    }
    template <typename A, typename B>
    void put(const std::pair<A, B>& values) { put(std::tuple<A, B>(values)); }
};

// ---- functions --------------------------------------------------------------------------------
struct Parameter {
    std::string name;
    std::optional<Value> value;
};

struct Function {
    std::string name;
    std::vector<Parameter> parameters;
    size_t count = 0;
    std::function<void(const std::vector<Value>&, Writer&)> call;
};

class Arg {
  public:
    Parameter parameter;
    explicit Arg(const char* name) { parameter.name = name; }
    template <typename T>
    Arg&& operator=(const T& value) && {
        Value held;
        if constexpr (std::is_base_of_v<Object, T>) held = value.value;
        else if constexpr (std::is_same_v<T, bool>) held.tag = kTruth, held.whole = value, held.real = value;
        else if constexpr (std::is_integral_v<T>) held.tag = kWhole, held.whole = value, held.real = double(value);
        else if constexpr (std::is_floating_point_v<T>) held.tag = kReal, held.real = value;
        else if constexpr (std::is_convertible_v<T, std::string>) held.tag = kText, held.text = value;
        parameter.value = held;
        return std::move(*this);
    }
    Arg& noconvert(bool = true) { return *this; }
};

class Module {
  public:
    std::vector<Function> functions;

    template <typename R, typename... P, typename... Extra>
    Module& def(const char* name, R (*function)(P...), Extra&&... extra) {
        return add(name, std::function<R(P...)>(function), std::forward<Extra>(extra)...);
    }
    template <typename F, typename... Extra, typename = decltype(&F::operator())>
    Module& def(const char* name, F function, Extra&&... extra) {
        return add(name, std::function(function), std::forward<Extra>(extra)...);
    }
    const char* doc() const { return ""; }
    const char*& doc() { return doc_; }

    void run(Reader& reader, Writer& writer) const {
        std::string name = reader.text();
        std::vector<Value> values;
        for (int64_t left = reader.whole(); left > 0; --left) values.push_back(reader.value());
        std::map<std::string, Value> named;
        for (int64_t left = reader.whole(); left > 0; --left) {
            std::string key = reader.text();
            named[key] = reader.value();
        }
        std::string why = "no such function";
        for (const Function& function : functions) {
            if (function.name != name) continue;
            std::vector<Value> all;
            why = arranged(function, values, named, all);
            if (!why.empty()) continue;
            try {
                function.call(all, writer);
                return;
            } catch (const TypeError& error) {
                why = error.what();
            }
        }
        throw TypeError(name + "(): incompatible function arguments: " + why);
    }

  private:
    const char* doc_ = "";

    static std::string arranged(const Function& function, const std::vector<Value>& values,
                                std::map<std::string, Value> named, std::vector<Value>& all) {
        all = values;
        for (size_t i = values.size(); i < function.parameters.size(); ++i) {
            const Parameter& parameter = function.parameters[i];
            auto found = named.find(parameter.name);
            if (found != named.end()) {
                all.push_back(found->second);
                named.erase(found);
            } else if (parameter.value) {
                all.push_back(*parameter.value);
            } else {
                return "the argument " + parameter.name + " is missing";
            }
        }
        if (!named.empty()) return "it has no parameter named " + named.begin()->first;
        if (all.size() != function.count)
            return c10::str("it takes ", function.count, " arguments, not ", all.size());
        return "";
    }
    template <typename R, typename... P, typename... Extra>
    Module& add(const char* name, std::function<R(P...)> function, Extra&&... extra) {
        Function added;
        added.name = name;
        added.count = sizeof...(P);
        (note(added, extra), ...);
        added.call = [function](const std::vector<Value>& values, Writer& writer) {
            invoke(function, values, writer, std::index_sequence_for<P...>());
        };
        functions.push_back(added);
        return *this;
    }
    static void note(Function& function, const Arg& arg) { function.parameters.push_back(arg.parameter); }
    template <typename T>
    static void note(Function&, const T&) {}

    template <typename P>
    static std::decay_t<P> argument(const std::vector<Value>& values, size_t i) {
        try {
            return From<std::decay_t<P>>::get(values[i]);
        } catch (const TypeError& error) {
            constexpr const char* names[] = {"None", "an int", "a float", "a bool", "a torch.Tensor", "a str", "a list"};
            throw TypeError(c10::str("argument ", i + 1, " is ", names[values[i].tag], ", and the parameter's type is ",
                                     error.what()));
        }
    }
    template <typename R, typename... P, size_t... i>
    static void invoke(const std::function<R(P...)>& function, const std::vector<Value>& values, Writer& writer,
                       std::index_sequence<i...>) {
        std::tuple<std::decay_t<P>...> arguments(argument<P>(values, i)...);
        if constexpr (std::is_void_v<R>) {
            std::apply(function, arguments);
            writer.tag(kNone);
        } else {
            std::decay_t<R> result = std::apply(function, arguments);
#ifdef CONVLAB_SIMULATOR
            sim_host(nullptr);
#endif
            writer.put(result);
        }
    }
};

// The words: result buffer, its bytes, the current stream, the allocator, then the call. The result
// begins with its status (0: a value follows, 1: c10::Error, 2: TypeError, 3: another exception) and
// the bytes that it needs.
template <typename Bind>
const char* entry(const Word* words, Bind bind) {
    auto* result = static_cast<char*>(words[0].pointer);
    Writer writer{result + 16, result + words[1].whole};
    int64_t status = 0;
    std::string text;
#ifdef CONVLAB_SIMULATOR
    sim_host(cudaStreamLegacy);
#else
    g_stream = reinterpret_cast<cudaStream_t>(words[2].whole);
    g_allocate = reinterpret_cast<Allocate>(words[3].whole);
#endif
    try {
        Module module;
        bind(module);
        std::map<void*, std::shared_ptr<c10::Storage>> storages;
        Reader reader{words + 4, storages};
        module.run(reader, writer);
    } catch (const c10::Error& error) {
        status = 1, text = error.what();
    } catch (const TypeError& error) {
        status = 2, text = error.what();
    } catch (const std::exception& error) {
        status = 3, text = error.what();
    }
#ifdef CONVLAB_SIMULATOR
    sim_host(nullptr);
#endif
    if (status) {
        writer = Writer{result + 16, result + words[1].whole};
        writer.text(text);
    }
    int64_t head[] = {status, writer.needed + 16};
    std::memcpy(result, head, sizeof head);
    return nullptr;
}
}  // namespace adopt

namespace pybind11 {
using module = adopt::Module;
using module_ = adopt::Module;
using arg = adopt::Arg;
inline namespace literals {
inline adopt::Arg operator""_a(const char* name, size_t) { return adopt::Arg(name); }
}  // namespace literals
template <typename T = void>
struct call_guard {};
struct gil_scoped_release {};
using object = adopt::Object;
using handle = adopt::Object;
using none = adopt::None;
template <typename T>
T cast(const object& value) { return value.cast<T>(); }
}  // namespace pybind11
namespace py = pybind11;
#define TORCH_EXTENSION_NAME adopted
#define PYBIND11_MODULE(name, module) static void adopt_bind(::adopt::Module& module)
