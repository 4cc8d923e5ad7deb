// Interprets inline PTX. The text of an asm statement is parsed once, and then executed by each
// thread, instruction by instruction. Registers have 64 bits; an instruction's type says which of
// them it reads. An instruction that is not in `instructions()` is reported as "not simulated".
#pragma once
#include "cublas.h"
#include "meet.h"

#include <charconv>
#include <functional>
#include <optional>

namespace {
struct PtxArgument {
    enum What { value, constant, memory, vector, special, sink } what = sink;
    int slot = -1;          // of a value, or of the register in an address
    bool negated = false;   // of a predicate: !p
    uint64_t number = 0;    // of a constant; the offset of an address
    int second = -1;        // the slot of q in p|q
    std::string name;       // of a special register
    std::vector<PtxArgument> elements;
};
// A part of an opcode, such as "shared::cta". A number stands for its first 32 characters, so that each thread
// compares numbers. There is no loop, so that the compiler computes those of literals.
struct PtxWord {
    uint64_t number;
    template <size_t n>
    __attribute__((always_inline)) constexpr PtxWord(const char (&text)[n]) : PtxWord(text, n - 1) {}
    explicit PtxWord(const std::string& text) : PtxWord(text.data(), text.size()) {}
    constexpr bool operator==(PtxWord other) const { return number == other.number; }
    constexpr bool operator!=(PtxWord other) const { return number != other.number; }

private:
    __attribute__((always_inline)) constexpr PtxWord(const char* text, size_t n)
        : number(n + eight(text, 0, n) + eight(text, 8, n) * 0x9e3779b97f4a7c15 +
                 eight(text, 16, n) * 0xbf58476d1ce4e5b9 + eight(text, 24, n) * 0x94d049bb133111eb) {}
    __attribute__((always_inline)) static constexpr uint64_t one(const char* text, size_t at, size_t n) {
        return at < n ? uint64_t(uint8_t(text[at])) << at % 8 * 8 : 0;
    }
    __attribute__((always_inline)) static constexpr uint64_t eight(const char* text, size_t at, size_t n) {
        return one(text, at, n) | one(text, at + 1, n) | one(text, at + 2, n) | one(text, at + 3, n) |
               one(text, at + 4, n) | one(text, at + 5, n) | one(text, at + 6, n) | one(text, at + 7, n);
    }
};
struct PtxType {
    PtxWord name = "b32";
    unsigned bits = 32;
    bool is_real = false, is_signed = false;
    bool is_pair = false;  // f16x2 and bf16x2
    bool operator==(PtxWord other) const { return name == other; }
    bool operator!=(PtxWord other) const { return name != other; }
    PtxType half() const {  // the type of one number of a pair
        return {name == "bf16x2" ? PtxWord("bf16") : PtxWord("f16"), 16, true, false, false};
    }
};
struct PtxThread;
struct PtxInstruction {
    std::vector<std::string> parts;  // the opcode, split at its dots
    std::vector<PtxWord> words;      // the same
    std::vector<PtxType> types;      // those parts that are types, from the last one to the first
    int m = 0, n = 0, k = 0;         // of a product of matrices
    std::vector<PtxArgument> arguments;
    int guard = -1;                  // the slot of @p
    bool guard_negated = false;
    int target = -1;                 // of a branch
    void (*run)(PtxThread&, const PtxInstruction&) = nullptr;
    bool has(PtxWord part) const {
        for (PtxWord word : words)
            if (word == part) return true;
        return false;
    }
    const PtxType& type(size_t from_the_end = 0) const {
        static const PtxType none;
        return from_the_end < types.size() ? types[from_the_end] : none;
    }
    std::string opcode() const {
        std::string all;
        for (auto& p : parts) all += (all.empty() ? "" : ".") + p;
        return all;
    }
};
struct PtxProgram {
    std::vector<PtxInstruction> instructions;
    int slots = 0;
    std::string error;  // why the text cannot be parsed
};
struct PtxThread {
    const PtxProgram& program;
    uint64_t* slots;  // operands first, then registers
    uintptr_t pc;
    int next = 0;
    Worker& worker = *t_worker;
};

// Returns a part of an opcode as a type if it is one.
std::optional<PtxType> ptx_type(const std::string& part) {
    static const std::set<std::string> types{
        "b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64",
        "f16", "bf16", "f16x2", "bf16x2", "tf32", "f32", "f64", "pred"};
    if (!types.count(part)) return {};
    PtxType type;
    type.name = PtxWord(part);
    type.is_pair = part == "f16x2" || part == "bf16x2";
    type.is_real = part[0] == 'f' || !part.rfind("bf", 0);
    type.is_signed = part[0] == 's';
    type.bits = type.is_pair || part == "tf32" ? 32 : part == "pred" ? 1
                : unsigned(atoi(part.c_str() + part.find_first_of("0123456789")));
    return type;
}

// ---- parsing ------------------------------------------------------------------------------
struct PtxParser {
    PtxProgram program;
    std::unordered_map<std::string, int> registers, labels;
    int operands;

    static std::string trimmed(std::string s) {
        size_t from = s.find_first_not_of(" \t\r\n"), to = s.find_last_not_of(" \t\r\n");
        return from == std::string::npos ? "" : s.substr(from, to - from + 1);
    }
    static std::vector<std::string> split(const std::string& s) {
        std::vector<std::string> all(1);
        int depth = 0;
        for (char c : s) {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (c == ',' && !depth) all.emplace_back();
            else all.back() += c;
        }
        for (auto& each : all) each = trimmed(each);
        if (all.size() == 1 && all[0].empty()) all.clear();
        return all;
    }
    static bool is_name(char c) { return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.'; }

    int slot_of(const std::string& name) {
        if (name[0] == '%' && name.size() > 1 && isdigit(name[1]) &&
            name.find_first_not_of("0123456789", 1) == std::string::npos)
            return atoi(name.c_str() + 1) < operands ? atoi(name.c_str() + 1) : -1;
        auto found = registers.find(name);
        return found == registers.end() ? -1 : found->second;
    }
    static bool number(const std::string& s, uint64_t& value) {
        if (s.empty() || !(isdigit(s[0]) || ((s[0] == '-' || s[0] == '+') && s.size() > 1)))
            return false;
        if (s[0] == '0' && s.size() > 2 && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd' ||
                                            s[1] == 'D')) {
            value = strtoull(s.c_str() + 2, nullptr, 16);
            return true;
        }
        if (s.find('.') != std::string::npos) {
            value = sim::bits<uint32_t>(float(atof(s.c_str())));
            return true;
        }
        value = s[0] == '-' ? uint64_t(strtoll(s.c_str(), nullptr, 0))
                            : strtoull(s.c_str(), nullptr, 0);
        return true;
    }
    PtxArgument argument(std::string s) {
        PtxArgument a;
        if (s.empty() || s == "_") return a;
        if (s[0] == '{') {
            a.what = PtxArgument::vector;
            for (auto& each : split(s.substr(1, s.rfind('}') - 1)))
                a.elements.push_back(argument(each));
            return a;
        }
        if (s[0] == '[') {
            a.what = PtxArgument::memory;
            std::string inside = trimmed(s.substr(1, s.rfind(']') - 1));
            size_t plus = inside.find_first_of("+-", 1);
            std::string base = trimmed(inside.substr(0, plus));
            a.slot = slot_of(base);
            if (plus != std::string::npos) {
                std::string rest = trimmed(inside.substr(plus + 1));
                uint64_t by = 0;
                if (int slot = slot_of(rest); slot >= 0) a.second = slot;
                else if (!number(rest, by)) program.error = "the address [" + inside + "]";
                a.number = inside[plus] == '-' ? -by : by;
            }
            if (a.slot < 0) program.error = "the address [" + inside + "]";
            return a;
        }
        if (s[0] == '!') {
            a = argument(trimmed(s.substr(1)));
            a.negated = true;
            return a;
        }
        if (size_t bar = s.find('|'); bar != std::string::npos) {
            a = argument(trimmed(s.substr(0, bar)));
            a.second = slot_of(trimmed(s.substr(bar + 1)));
            return a;
        }
        a.slot = slot_of(s);
        a.what = PtxArgument::value;
        if (a.slot >= 0) return a;
        a.what = PtxArgument::constant;
        if (number(s, a.number)) return a;
        a.what = PtxArgument::special;
        a.name = s;
        if (s == "WARP_SZ") a.what = PtxArgument::constant, a.number = 32;
        return a;
    }
    void declare(const std::string& statement) {  // .reg .b32 a, b<4>;
        std::string rest = trimmed(statement.substr(4));
        for (size_t dot; rest[0] == '.'; rest = trimmed(rest.substr(dot))) {
            dot = rest.find_first_of(" \t\n");
            if (dot == std::string::npos) return;
        }
        for (auto& name : split(rest)) {
            size_t open = name.find('<');
            if (open == std::string::npos) {
                registers[name] = program.slots++;
                continue;
            }
            int many = atoi(name.c_str() + open + 1);
            for (int i = 0; i < many; ++i)
                registers[trimmed(name.substr(0, open)) + std::to_string(i)] = program.slots++;
        }
    }
    void instruction(std::string s);

    PtxProgram parse(const char* raw, int count) {
        operands = program.slots = count;
        std::string source;
        for (const char* c = raw; *c; ++c) {  // without comments; %% is %
            if (c[0] == '/' && c[1] == '/') {
                while (c[1] && c[1] != '\n') ++c;
                continue;
            }
            if (c[0] == '/' && c[1] == '*') {
                const char* end = strstr(c, "*/");
                c = end ? end + 1 : c + strlen(c) - 1;
                continue;
            }
            if (c[0] == '%' && c[1] == '%') ++c;
            if (c[0] == '%' && c[1] == '=') { ++c; continue; }
            source += *c;
        }
        std::vector<std::string> statements(1);
        bool fresh = true;  // at the start of a statement, braces are scopes
        int depth = 0;
        char before = 0;
        for (size_t at = 0; at < source.size(); before = source[at++]) {
            char c = source[at], after = at + 1 < source.size() ? source[at + 1] : 0;
            if (fresh && (c == '{' || c == '}')) continue;
            if (c == ';' || (c == ':' && !depth && after != ':' && before != ':')) {
                if (c == ':') statements.back() += ':';
                statements.emplace_back();
                fresh = true;
                continue;
            }
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            statements.back() += c;
            fresh = fresh && isspace(c);
        }
        for (auto& statement : statements) {
            statement = trimmed(statement);
            if (statement.empty()) continue;
            if (!statement.rfind(".reg", 0)) declare(statement);
        }
        for (auto& statement : statements) {
            if (statement.empty() || !statement.rfind(".reg", 0)) continue;
            if (statement.back() == ':')
                labels[trimmed(statement.substr(0, statement.size() - 1))] =
                    int(program.instructions.size());
            else
                instruction(statement);
        }
        for (auto& i : program.instructions)
            if (i.words[0] == "bra") {
                auto found = labels.find(i.arguments.empty() ? "" : i.arguments[0].name);
                if (found == labels.end()) program.error = "a branch to an unknown label";
                else i.target = found->second;
            }
        return program;
    }
};

// ---- values -------------------------------------------------------------------------------
uint64_t masked(uint64_t value, unsigned bits) {
    return bits >= 64 ? value : value & ((uint64_t(1) << bits) - 1);
}
int64_t extended(uint64_t value, unsigned bits) {
    return bits >= 64 ? int64_t(value) : int64_t(value << (64 - bits)) >> (64 - bits);
}
uint64_t special_register(PtxThread& t, const std::string& name) {
    Worker& w = t.worker;
    unsigned lane = unsigned(w.current % 32);
    auto part = [&](const char* of, const auto& v, uint64_t& to) {
        size_t n = strlen(of);
        if (name.compare(0, n, of) || name.size() != n + 1) return false;
        to = name[n] == 'x' ? v.x : name[n] == 'y' ? v.y : v.z;
        return true;
    };
    uint64_t value = 0;
    if (part("%tid.", threadIdx, value) || part("%ntid.", blockDim, value) ||
        part("%ctaid.", blockIdx, value) || part("%nctaid.", gridDim, value) ||
        part("%clusterid.", cluster_of(*w.launch), value) ||
        part("%cluster_ctaid.", place_in_cluster(*w.launch), value) ||
        part("%cluster_nctaid.", cluster_shape(*w.launch), value) ||
        part("%nclusterid.", clusters_of(*w.launch), value))
        return value;
    if (name == "%laneid") return lane;
    if (name == "%warpid") return unsigned(w.current / 32);
    if (name == "%nwarpid") return w.warps.size();
    if (name == "%cluster_ctarank") {
        uint3 p = place_in_cluster(*w.launch), n = cluster_shape(*w.launch);
        return p.x + n.x * (p.y + n.y * p.z);
    }
    if (name == "%smid" || name == "%envreg0") return 0;
    if (name == "%nsmid") return unsigned(g_device.sms);
    if (name == "%cluster_nctarank") return w.launch->cluster_blocks();
    if (name == "%gridid") return w.launch->number;
    if (name == "%lanemask_eq") return 1u << lane;
    if (name == "%lanemask_lt") return (1u << lane) - 1;
    if (name == "%lanemask_le") return (2ull << lane) - 1;
    if (name == "%lanemask_gt") return uint32_t(~((2ull << lane) - 1));
    if (name == "%lanemask_ge") return uint32_t(~((1ull << lane) - 1));
    if (name == "%clock" || name == "%clock64" || name == "%clock_hi") return 0;
    if (name == "%globaltimer" || name == "%globaltimer_lo" || name == "%globaltimer_hi") return 0;
    if (name == "%dynamic_smem_size") return w.launch->shared_bytes;
    if (name == "%total_smem_size")
        return w.launch->shared_bytes + w.launch->static_bytes.load();
    not_simulated(t.pc, "the PTX register " + name);
}
uint64_t get(PtxThread& t, const PtxArgument& a) {
    switch (a.what) {
        case PtxArgument::value: {
            uint64_t value = t.slots[a.slot];
            return a.negated ? !value : value;
        }
        case PtxArgument::constant: return a.number;
        case PtxArgument::special: return special_register(t, a.name);
        case PtxArgument::vector: {  // packs its elements
            uint64_t value = 0;
            unsigned bits = 64 / unsigned(std::max<size_t>(a.elements.size(), 1));
            for (size_t i = 0; i < a.elements.size(); ++i)
                value |= masked(get(t, a.elements[i]), bits) << (bits * i);
            return value;
        }
        default: return 0;
    }
}
void put(PtxThread& t, const PtxArgument& a, uint64_t value) {
    if (a.what == PtxArgument::value) t.slots[a.slot] = value;
}
uint64_t get(PtxThread& t, const PtxInstruction& i, size_t n, unsigned bits) {
    return n < i.arguments.size() ? masked(get(t, i.arguments[n]), bits) : 0;
}

double real_of(uint64_t value, const PtxType& type) {
    if (type == "f64") return sim::unbits<double>(value);
    if (type == "f16") return sim::Half::widen(uint16_t(value));
    if (type == "bf16") return sim::Bfloat16::widen(uint16_t(value));
    return sim::unbits<float>(value);
}
uint64_t of_real(double value, const PtxType& type) {
    if (type == "f64") return sim::bits<uint64_t>(value);
    if (type == "f16") return sim::Half::narrow(float(value));
    if (type == "bf16") return sim::Bfloat16::narrow(float(value));
    return sim::bits<uint64_t>(float(value));
}

// Applies a function to numbers of a type; to both halves of a pair.
template <typename F>
void with_reals(PtxThread& t, const PtxInstruction& i, size_t inputs, F f) {
    const bool pair = i.type().is_pair;
    const PtxType type = pair ? i.type().half() : i.type();
    uint64_t result = 0;
    for (unsigned half = 0; half < (pair ? 2u : 1u); ++half) {
        double in[3] = {};
        for (size_t n = 0; n < inputs; ++n) {
            uint64_t bits = get(t, i, n + 1, 64);
            in[n] = real_of(pair ? bits >> 16 * half & 0xffff : bits, type);
        }
        double out = f(in);
        if (i.has("sat")) out = out != out ? 0 : std::min(1.0, std::max(0.0, out));
        if (i.has("relu") && out < 0) out = 0;
        result |= of_real(out, type) << 16 * half;
    }
    put(t, i.arguments[0], result);
}

using PtxRun = void (*)(PtxThread&, const PtxInstruction&);
#define PTX [](PtxThread & t, const PtxInstruction& i)

// Arithmetic with two inputs: whole numbers or reals.
template <typename Whole, typename Real>
void arithmetic(PtxThread& t, const PtxInstruction& i, Whole whole, Real real) {
    const PtxType& type = i.type();
    if (type.is_real) return with_reals(t, i, 2, [&](double* x) { return real(x[0], x[1]); });
    unsigned bits = type.bits;
    uint64_t a = get(t, i, 1, bits), b = get(t, i, 2, bits);
    bool is_signed = type.is_signed;
    if (is_signed) a = uint64_t(extended(a, bits)), b = uint64_t(extended(b, bits));
    put(t, i.arguments[0], masked(whole(a, b, is_signed, bits), bits));
}
uint64_t product(const PtxInstruction& i, uint64_t a, uint64_t b, bool is_signed, unsigned bits) {
    unsigned __int128 all = is_signed ? (unsigned __int128)((__int128)(int64_t)a * (int64_t)b)
                                      : (unsigned __int128)a * b;
    return i.has("hi") ? uint64_t(all >> bits) : uint64_t(all);
}
void multiply_add(PtxThread& t, const PtxInstruction& i) {
    const PtxType& type = i.type();
    bool adds = i.words[0] != "mul";
    if (adds && type == "f32")
        return with_reals(t, i, 3, [](double* x) {
            return double(std::fma(float(x[0]), float(x[1]), float(x[2])));
        });
    if (type.is_real)
        return with_reals(t, i, adds ? 3 : 2, [&](double* x) { return x[0] * x[1] + (adds ? x[2] : 0); });
    unsigned bits = type.bits, wide = i.has("wide") ? 2 * bits : bits;
    bool is_signed = type.is_signed;
    uint64_t a = get(t, i, 1, bits), b = get(t, i, 2, bits);
    if (is_signed) a = uint64_t(extended(a, bits)), b = uint64_t(extended(b, bits));
    uint64_t sum = product(i, a, b, is_signed, bits) + (adds ? get(t, i, 3, wide) : 0);
    put(t, i.arguments[0], masked(sum, wide));
}
template <typename F>
void bitwise(PtxThread& t, const PtxInstruction& i, F f) {
    unsigned bits = i.type().bits;
    put(t, i.arguments[0], masked(f(get(t, i, 1, bits), get(t, i, 2, bits), bits), bits));
}
void convert(PtxThread& t, const PtxInstruction& i) {
    const PtxType &to = i.type(1), &from = i.type(0);
    if (to.is_pair) {  // two floats: the first one is the upper half
        const PtxType one = to.half();
        double high = real_of(get(t, i, 1, 64), from), low = real_of(get(t, i, 2, 64), from);
        if (i.has("relu")) high = std::max(high, 0.0), low = std::max(low, 0.0);
        return put(t, i.arguments[0], of_real(high, one) << 16 | of_real(low, one));
    }
    unsigned from_bits = from.bits, to_bits = to.bits;
    uint64_t value = get(t, i, 1, from_bits);
    if (to == "tf32")
        return put(t, i.arguments[0],
                   sim::bits<uint64_t>(rounded(float(real_of(value, from)), Rounds::tf32)));
    if (from.is_real) {
        double x = real_of(value, from);
        auto whole = [&](double v) {
            return i.has("rni") || i.has("rn") ? std::nearbyint(v)
                   : i.has("rmi") || i.has("rm") ? std::floor(v)
                   : i.has("rpi") || i.has("rp") ? std::ceil(v) : std::trunc(v);
        };
        if (to.is_real) {
            if (i.has("rni") || i.has("rzi") || i.has("rmi") || i.has("rpi")) x = whole(x);
            if (i.has("rz") && to == "f32") {
                float f = float(x);
                if (std::fabs(double(f)) > std::fabs(x)) f = std::nextafterf(f, 0);
                x = f;
            }
            if (i.has("sat")) x = x != x ? 0 : std::min(1.0, std::max(0.0, x));
            if (i.has("relu")) x = std::max(x, 0.0);
            return put(t, i.arguments[0], of_real(x, to));
        }
        x = x != x ? 0 : whole(x);
        bool is_signed = to.is_signed;
        double most = std::ldexp(1.0, int(to_bits - is_signed)), least = is_signed ? -most : 0;
        uint64_t result = x >= most ? masked(~uint64_t(0), to_bits - is_signed)
                          : x <= least ? (is_signed ? uint64_t(1) << (to_bits - 1) : 0)
                          : is_signed ? uint64_t(int64_t(x)) : uint64_t(x);
        return put(t, i.arguments[0], masked(result, to_bits));
    }
    bool is_signed = from.is_signed;
    if (is_signed) value = uint64_t(extended(value, from_bits));
    if (to.is_real)
        return put(t, i.arguments[0],
                   of_real(is_signed ? double(int64_t(value)) : double(value), to));
    if (i.has("sat")) {
        int64_t v = int64_t(value), most = int64_t(masked(~uint64_t(0), to_bits - (to.is_signed)));
        int64_t least = to.is_signed ? -most - 1 : 0;
        value = uint64_t(std::min(most, std::max(least, v)));
    }
    put(t, i.arguments[0], masked(value, to_bits));
}
bool compare(const std::string& how, double a, double b) {
    bool unordered = a != a || b != b;
    if (how == "num") return !unordered;
    if (how == "nan") return unordered;
    bool also = how.size() == 3 && how.back() == 'u';
    std::string base = also ? how.substr(0, 2) : how;
    if (unordered) return also || base == "ne";
    return base == "eq" ? a == b : base == "ne" ? a != b : base == "lt" || base == "lo" ? a < b
           : base == "le" || base == "ls" ? a <= b : base == "gt" || base == "hi" ? a > b : a >= b;
}
void set_predicate(PtxThread& t, const PtxInstruction& i) {
    const PtxType& type = i.type();
    const PtxWord how = i.words[1];
    bool result;
    if (type.is_real) {
        result = compare(i.parts[1], real_of(get(t, i, 1, 64), type), real_of(get(t, i, 2, 64), type));
    } else {
        unsigned bits = type.bits;
        uint64_t a = get(t, i, 1, bits), b = get(t, i, 2, bits);
        if (type.is_signed) {
            int64_t x = extended(a, bits), y = extended(b, bits);
            result = how == "eq" ? x == y : how == "ne" ? x != y : how == "lt" ? x < y
                     : how == "le" ? x <= y : how == "gt" ? x > y : x >= y;
        } else {
            result = how == "eq" ? a == b : how == "ne" ? a != b : how == "lt" || how == "lo" ? a < b
                     : how == "le" || how == "ls" ? a <= b : how == "gt" || how == "hi" ? a > b
                     : a >= b;
        }
    }
    bool other = !result;
    if (i.arguments.size() > 3) {
        bool p = get(t, i.arguments[3]) & 1;
        auto with = [&](bool r) { return i.has("and") ? r && p : i.has("or") ? r || p : r != p; };
        result = with(result), other = with(other);
    }
    if (i.words[0] == "set")
        return put(t, i.arguments[0], result ? (i.type(1) == "f32" ? 0x3f800000 : 0xffffffff) : 0);
    put(t, i.arguments[0], result);
    if (i.arguments[0].second >= 0) t.slots[i.arguments[0].second] = other;
}

// ---- memory -------------------------------------------------------------------------------
bool in_shared_space(const PtxInstruction& i) {
    return i.has("shared") || i.has("shared::cta") || i.has("shared::cluster");
}
// Returns the generic address of [a]; `shared` if the address is in shared memory's own space.
uintptr_t address_of(PtxThread& t, const PtxArgument& a, bool shared) {
    uint64_t address = t.slots[a.slot] + a.number + (a.second >= 0 ? t.slots[a.second] : 0);
    uintptr_t base = uintptr_t(t.worker.shared);
    if (address - base < kSharedSpan) return address;  // a generic address, also where PTX has a space
    if (shared && address >> 20 & 0xfff)
        return uintptr_t(sim_map_shared(t.worker.shared + (address & (kSharedSpan - 1)),
                                        unsigned(address >> 20 & 0xfff) - 1));
    if (shared) return base + uint32_t(address);
    return address < kSharedSpan ? base + address : address;
}
// Adds to the flags of an atomic what .release, .acquire and .cta say.
unsigned order_of(const PtxInstruction& i, unsigned how) {
    if (i.has("release") || i.has("acq_rel")) how |= sim::kReleases;
    if (i.has("acquire") || i.has("acq_rel")) how |= sim::kAcquires;
    return i.has("cta") ? how | sim::kOfBlock : how;
}
void load(PtxThread& t, const PtxInstruction& i) {
    unsigned bytes = std::max(1u, i.type().bits / 8);
    const PtxArgument& to = i.arguments[0];
    size_t n = to.what == PtxArgument::vector ? to.elements.size() : 1;
    uintptr_t at = address_of(t, i.arguments[1], in_shared_space(i));
    bool polls = i.has("volatile") || i.has("relaxed") || i.has("acquire") || i.has("mmio");
    if (polls) t.worker.spin(at);
    if (i.has("acquire") || i.has("relaxed"))
        atomic_access(reinterpret_cast<void*>(at), unsigned(bytes * n), order_of(i, sim::kLoads),
                      t.pc);
    else
        t.worker.access(at, unsigned(bytes * n), Kind::load, t.pc, true, polls ? kVolatile : 0);
    if (i.has("nc")) sim_read_only(reinterpret_cast<void*>(at), unsigned(bytes * n));
    for (size_t e = 0; e < n; ++e) {
        uint64_t value = 0;
        std::memcpy(&value, reinterpret_cast<void*>(at + e * bytes), bytes);
        if (i.type().is_signed) value = uint64_t(extended(value, bytes * 8));
        put(t, to.what == PtxArgument::vector ? to.elements[e] : to, value);
    }
}
void store(PtxThread& t, const PtxInstruction& i) {
    unsigned bytes = std::max(1u, i.type().bits / 8);
    const PtxArgument& from = i.arguments[1];
    size_t n = from.what == PtxArgument::vector ? from.elements.size() : 1;
    uintptr_t at = address_of(t, i.arguments[0], in_shared_space(i));
    if (i.has("release") || i.has("relaxed"))
        atomic_access(reinterpret_cast<void*>(at), unsigned(bytes * n), order_of(i, sim::kReplaces),
                      t.pc - 1);
    else
        t.worker.access(at, unsigned(bytes * n), Kind::store, t.pc - 1, true,
                        i.has("volatile") ? kVolatile : 0);
    for (size_t e = 0; e < n; ++e) {
        uint64_t value = get(t, from.what == PtxArgument::vector ? from.elements[e] : from);
        std::memcpy(reinterpret_cast<void*>(at + e * bytes), &value, bytes);
    }
    t.worker.resolve_pending();
}
uint64_t combined(PtxThread& t, const PtxInstruction& i, uint64_t old, uint64_t b, uint64_t c) {
    const PtxType& type = i.type();
    unsigned bits = type.bits;
    bool is_signed = type.is_signed;
    if (i.has("add")) {
        if (type.is_pair) {
            const PtxType half = type.half();
            uint64_t low = of_real(real_of(old & 0xffff, half) + real_of(b & 0xffff, half), half);
            return low | of_real(real_of(old >> 16, half) + real_of(b >> 16, half), half) << 16;
        }
        return type.is_real ? of_real(real_of(old, type) + real_of(b, type), type) : old + b;
    }
    auto less = [&](uint64_t x, uint64_t y) {
        return type.is_real ? real_of(x, type) < real_of(y, type)
               : is_signed ? extended(x, bits) < extended(y, bits) : x < y;
    };
    if (i.has("min")) return less(b, old) ? b : old;
    if (i.has("max")) return less(old, b) ? b : old;
    if (i.has("exch")) return b;
    if (i.has("cas")) return old == masked(b, bits) ? c : old;
    if (i.has("and")) return old & b;
    if (i.has("or")) return old | b;
    if (i.has("xor")) return old ^ b;
    if (i.has("inc")) return old >= b ? 0 : old + 1;
    if (i.has("dec")) return old == 0 || old > b ? b : old - 1;
    not_simulated(t.pc, "the PTX instruction " + i.opcode());
}
void atomic(PtxThread& t, const PtxInstruction& i) {
    bool returns = i.words[0] == "atom";
    unsigned bits = i.type().bits;
    const PtxArgument& where = i.arguments[returns];
    uintptr_t at = address_of(t, where, in_shared_space(i));
    unsigned how = i.has("exch") ? sim::kReplaces : i.has("cas") ? sim::kSwaps : 0;
    atomic_access(reinterpret_cast<void*>(at), bits / 8, order_of(i, how), t.pc - 2);
    const PtxArgument& values = i.arguments[returns + 1];
    size_t n = values.what == PtxArgument::vector ? values.elements.size() : 1;
    uint64_t old = 0;
    for (size_t e = 0; e < n; ++e) {
        uint64_t b = masked(get(t, n > 1 ? values.elements[e] : values), bits);
        uint64_t c = get(t, i, size_t(returns) + 2, bits);
        auto update = [&](auto word) {
            using T = decltype(word);
            auto* p = reinterpret_cast<T*>(at + e * sizeof(T));
            T before = __atomic_load_n(p, __ATOMIC_RELAXED), next;
            do next = T(combined(t, i, before, b, c));
            while (!__atomic_compare_exchange_n(p, &before, next, false, __ATOMIC_RELAXED,
                                                __ATOMIC_RELAXED));
            old = before;
        };
        bits == 64 ? update(uint64_t()) : bits == 16 ? update(uint16_t()) : update(uint32_t());
        if (returns && n > 1) put(t, i.arguments[0].elements[e], old);
        if (i.has("cas") && old != b) t.worker.spin(0);
    }
    if (returns && n == 1) put(t, i.arguments[0], old);
}

// ---- warps --------------------------------------------------------------------------------
void exchange(PtxThread& t, unsigned mask, void (*step)(void**, unsigned), void* argument) {
    t.worker.collective(mask, step, argument, t.pc);
}
void shuffle(PtxThread& t, const PtxInstruction& i) {
    unsigned lane = unsigned(t.worker.current % 32);
    auto b = unsigned(get(t, i, 2, 32)), c = unsigned(get(t, i, 3, 32));
    auto mask = unsigned(get(t, i, 4, 32));
    unsigned clamp = c & 31, segment = c >> 8 & 31, most = (lane & segment) | (clamp & ~segment);
    unsigned least = lane & segment, from = 0;
    bool inside;
    if (i.has("up")) from = lane - (b & 31), inside = int(from) >= int(most);
    else if (i.has("down")) from = lane + (b & 31), inside = from <= most;
    else if (i.has("bfly")) from = lane ^ (b & 31), inside = from <= most;
    else from = least | (b & 31 & ~segment), inside = from <= most;
    if (!inside) from = lane;
    sim::Exchange e{get(t, i, 1, 32), 0, int(from & 31), 0};
    exchange(t, mask, sim::shuffle_step, &e);
    if (!(e.participants >> e.source & 1)) sim_stray_shuffle(e.source, e.participants);
    put(t, i.arguments[0], e.result);
    if (i.arguments[0].second >= 0) t.slots[i.arguments[0].second] = inside;
}
void vote(PtxThread& t, const PtxInstruction& i) {
    bool p = get(t, i.arguments[1]) & 1;
    auto mask = unsigned(get(t, i, 2, 32));
    bool all = i.has("all");
    sim::Exchange yes{all ? !p : p, 0, 0, 0};
    exchange(t, mask, sim::ballot_step, &yes);
    if (i.has("ballot")) return put(t, i.arguments[0], uint32_t(yes.result));
    if (i.has("uni"))
        return put(t, i.arguments[0], !yes.result || uint32_t(yes.result) == mask);
    put(t, i.arguments[0], all ? !yes.result : yes.result != 0);
}
void match_lanes(PtxThread& t, const PtxInstruction& i) {
    auto mask = unsigned(get(t, i, 2, 32));
    sim::Exchange e{get(t, i, 1, i.type().bits), 0, 0, 0};
    exchange(t, mask, sim::match_step, &e);
    bool same = uint32_t(e.result) == mask;
    put(t, i.arguments[0], i.has("all") && !same ? 0 : uint32_t(e.result));
    if (i.arguments[0].second >= 0) t.slots[i.arguments[0].second] = same;
}
void reduce_lanes(PtxThread& t, const PtxInstruction& i) {
    struct Mine {
        const PtxInstruction* i;
        PtxThread* t;
        uint64_t value, total;
    } mine{&i, &t, get(t, i, 1, 32), 0};
    auto step = [](void** arguments, unsigned lanes) {
        Mine* first = nullptr;
        uint64_t total = 0;
        for (int l = 0; l < 32; ++l) {
            if (!(lanes >> l & 1)) continue;
            auto* m = static_cast<Mine*>(arguments[l]);
            total = first ? masked(combined(*m->t, *m->i, total, m->value, 0), 32) : m->value;
            first = m;
        }
        for (int l = 0; l < 32; ++l)
            if (lanes >> l & 1) static_cast<Mine*>(arguments[l])->total = total;
    };
    exchange(t, unsigned(get(t, i, 2, 32)), step, &mine);
    put(t, i.arguments[0], mine.total);
}

// ---- matrices -----------------------------------------------------------------------------
struct PtxMatrices {  // a lane's part of ldmatrix, stmatrix or mma
    uintptr_t row;
    uint32_t registers[32];
    unsigned participants;
    int count;
    bool transposed;
    const PtxInstruction* mma;
};
void whole_warp(PtxThread& t, const PtxInstruction& i, PtxMatrices& mine,
                void (*step)(void**, unsigned)) {
    t.worker.collective(0xffffffffu, step, &mine, t.pc);
    if (~mine.participants) partial_warp(i.opcode().c_str(), mine.participants, t.pc);
}
PtxMatrices& lane_of(void** arguments, int lane) {
    return *static_cast<PtxMatrices*>(arguments[lane]);
}
bool all_take_part(void** arguments, unsigned participants) {
    for (int l = 0; l < 32; ++l)
        if (participants >> l & 1) lane_of(arguments, l).participants = participants;
    return !~participants;
}
int matrices_of(const PtxInstruction& i) { return i.has("x4") ? 4 : i.has("x2") ? 2 : 1; }
void load_matrix(PtxThread& t, const PtxInstruction& i) {
    if (!i.has("m8n8") || i.type() != "b16")
        not_simulated(t.pc, "the PTX instruction " + i.opcode());
    PtxMatrices mine{address_of(t, i.arguments[1], true), {}, 0, matrices_of(i), i.has("trans"), nullptr};
    if (t.worker.current % 32 < 8 * mine.count)
        t.worker.access(mine.row, 16, Kind::load, t.pc);
    whole_warp(t, i, mine, [](void** arguments, unsigned participants) {
        if (!all_take_part(arguments, participants)) return;
        for (int l = 0; l < 32; ++l) {
            PtxMatrices& m = lane_of(arguments, l);
            auto element = [&](int matrix, int row, int column) {
                auto* at = reinterpret_cast<uint16_t*>(lane_of(arguments, 8 * matrix + row).row);
                return uint32_t(at[column]);
            };
            int g = l / 4, two = l % 4 * 2;
            for (int k = 0; k < m.count; ++k)
                m.registers[k] = m.transposed
                    ? element(k, two, g) | element(k, two + 1, g) << 16
                    : element(k, g, two) | element(k, g, two + 1) << 16;
        }
    });
    const PtxArgument& to = i.arguments[0];
    if (to.what != PtxArgument::vector) return put(t, to, mine.registers[0]);
    for (size_t k = 0; k < to.elements.size(); ++k) put(t, to.elements[k], mine.registers[k]);
}
void store_matrix(PtxThread& t, const PtxInstruction& i) {
    PtxMatrices mine{address_of(t, i.arguments[0], true), {}, 0, matrices_of(i), i.has("trans"), nullptr};
    const PtxArgument& from = i.arguments[1];
    for (int k = 0; k < mine.count; ++k)
        mine.registers[k] = uint32_t(
            get(t, from.what == PtxArgument::vector ? from.elements[size_t(k)] : from));
    // Registers 4 to 7 get the row that the lane then stores.
    whole_warp(t, i, mine, [](void** arguments, unsigned participants) {
        if (!all_take_part(arguments, participants)) return;
        for (int l = 0; l < 8 * lane_of(arguments, 0).count; ++l) {
            PtxMatrices& m = lane_of(arguments, l);
            auto* row = reinterpret_cast<uint16_t*>(&m.registers[4]);
            for (int c = 0; c < 8; ++c) {
                int g = m.transposed ? c : l % 8, column = m.transposed ? l % 8 : c;
                uint32_t pair = lane_of(arguments, 4 * g + column / 2).registers[l / 8];
                row[c] = uint16_t(pair >> 16 * (column % 2));
            }
        }
    });
    if (t.worker.current % 32 >= 8 * mine.count) return;
    t.worker.access(mine.row, 16, Kind::store, t.pc - 1);
    std::memcpy(reinterpret_cast<void*>(mine.row), &mine.registers[4], 16);
    t.worker.resolve_pending();
}
// mma.sync.aligned.mMnNkK.row.col.D.A.B.C: rows g = lane / 4, columns by t = lane % 4.
void multiply_matrices(PtxThread& t, const PtxInstruction& i) {
    t.worker.note("mma.sync", t.pc);
    const int m = i.m, n = i.n, k = i.k;
    // The types, in order: D, A, B, C.
    const PtxType &of_c = i.type(0), &of_b = i.type(1), &of_a = i.type(2);
    bool whole = of_a == "s8" || of_a == "u8";
    bool known = n == 8 && (m == 16 || (m == 8 && (whole || of_a == "f64"))) && i.has("row") &&
                 i.has("col") && (of_a == "f16" || of_a == "bf16" || of_a == "tf32" || whole ||
                                  of_a == "f64") && !(of_a == "f64" && m == 16);
    if (!known) not_simulated(t.pc, "the PTX instruction " + i.opcode());
    unsigned bits = of_a == "tf32" ? 32 : of_a.bits, per = bits == 64 ? 1 : 32 / bits;
    int of_lane_a = m * k / 32 / int(per), of_lane_b = n * k / 32 / int(per);
    struct Part {
        uint64_t a[8], b[8], c[4];
        unsigned participants;
        double sum[4];
        int m, k, regs_a, regs_b;
        unsigned per, bits;
        const PtxType *of_a, *of_b, *of_c;
    } mine{{}, {}, {}, 0, {}, m, k, of_lane_a, of_lane_b, per, bits, &of_a, &of_b, &of_c};
    auto read = [&](const PtxArgument& from, uint64_t* to) {
        if (from.what != PtxArgument::vector) to[0] = get(t, from);
        else for (size_t e = 0; e < from.elements.size() && e < 8; ++e) to[e] = get(t, from.elements[e]);
    };
    read(i.arguments[1], mine.a), read(i.arguments[2], mine.b);
    bool packed = of_c == "f16";
    int sums = m / 4;
    uint64_t c[8] = {};
    read(i.arguments[3], c);
    for (int e = 0; e < sums; ++e)
        mine.sum[e] = packed ? sim::Half::widen(uint16_t(c[e / 2] >> 16 * (e % 2)))
                      : of_c == "s32" ? double(int32_t(c[e])) : real_of(c[e], of_c);
    t.worker.collective(0xffffffffu, [](void** arguments, unsigned participants) {
        auto lane = [&](int l) -> Part& { return *static_cast<Part*>(arguments[l]); };
        for (int l = 0; l < 32; ++l)
            if (participants >> l & 1) lane(l).participants = participants;
        if (~participants) return;
        const Part& p = lane(0);
        double a[16][32] = {}, b[32][8] = {};
        auto element = [&](uint64_t word, unsigned e, const PtxType& type) {
            uint64_t value = p.bits == 64 ? word : word >> p.bits * e & ((uint64_t(1) << p.bits) - 1);
            if (type == "s8") return double(int8_t(value));
            if (type == "u8") return double(value);
            if (type == "tf32") return double(seen_as_tf32(sim::unbits<float>(value)));
            return real_of(value, type);
        };
        int step = 4 * int(p.per), rows = p.m / 8;
        for (int l = 0; l < 32; ++l) {
            int g = l / 4, t = l % 4 * int(p.per);
            for (int r = 0; r < p.regs_a; ++r)
                for (unsigned e = 0; e < p.per; ++e)
                    a[g + 8 * (r % rows)][r / rows * step + t + int(e)] = element(lane(l).a[r], e, *p.of_a);
            for (int r = 0; r < p.regs_b; ++r)
                for (unsigned e = 0; e < p.per; ++e)
                    b[r * step + t + int(e)][g] = element(lane(l).b[r], e, *p.of_b);
        }
        for (int row = 0; row < p.m; ++row) {
            double sums[8];
            for (int column = 0; column < 8; ++column)
                sums[column] = lane(row % 8 * 4 + column / 2).sum[row / 8 * 2 + column % 2];
            for (int k = 0; k < p.k; ++k)
                for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
            for (int column = 0; column < 8; ++column)
                lane(row % 8 * 4 + column / 2).sum[row / 8 * 2 + column % 2] = sums[column];
        }
    }, &mine, t.pc);
    if (~mine.participants) partial_warp("mma.sync", mine.participants, t.pc);
    auto& to = i.arguments[0].elements;
    for (int e = 0; e < sums && to.size(); ++e) {
        if (packed) {
            if (e % 2) continue;
            uint64_t low = sim::Half::narrow(float(mine.sum[e]));
            put(t, to[size_t(e) / 2], low | uint64_t(sim::Half::narrow(float(mine.sum[e + 1]))) << 16);
        } else {
            put(t, to[size_t(e)], of_c == "s32" ? uint32_t(int64_t(mine.sum[e])) : of_real(mine.sum[e], of_c));
        }
    }
}

// ---- barriers, copies ---------------------------------------------------------------------
void barrier(PtxThread& t, const PtxInstruction& i) {
    Worker& w = t.worker;
    if (i.has("warp")) return exchange(t, unsigned(get(t, i, 0, 32)), nullptr, nullptr);
    if (i.has("red")) not_simulated(t.pc, "the PTX instruction " + i.opcode());
    if (i.has("cluster")) {  // it meets at the wait, so that an arrival alone does not block
        if (i.has("wait")) sim_cluster_sync();
        return;
    }
    int id = i.arguments.empty() ? 0 : int(get(t, i, 0, 32));
    int count = i.arguments.size() > 1 ? int(get(t, i, 1, 32)) : -1;
    bool waits = !i.has("arrive");
    if (id == 0 && waits && (count < 0 || count >= w.threads)) {
        w.note("__syncthreads", t.pc);
        ++w.waiting;
        return w.wait_as(State::at_barrier, t.pc);
    }
    if (id > 15) fault("divergent barrier", t.pc, "named barrier %d: numbers are 0 to 15", id);
    w.named_barrier(id, count < 0 ? (w.threads + 31) / 32 * 32 : count, waits, t.pc);
}
void mbarrier(PtxThread& t, const PtxInstruction& i) {
    Worker& w = t.worker;
    size_t at = 0;
    while (at < i.arguments.size() && i.arguments[at].what != PtxArgument::memory) ++at;
    if (at == i.arguments.size()) not_simulated(t.pc, "the PTX instruction " + i.opcode());
    uintptr_t address = address_of(t, i.arguments[at], in_shared_space(i));
    const PtxWord what = i.words[1];
    if (what == "init") return w.mbarrier_init(address, int(get(t, i, 1, 32)), t.pc);
    if (what == "inval") return void(w.mbarrier_at(address, t.pc));
    if (what == "expect_tx") return w.mbarrier_expect(address, int(get(t, i, 1, 32)), t.pc);
    if (what == "complete_tx") return w.mbarrier_expect(address, -int(get(t, i, 1, 32)), t.pc);
    if (what == "arrive" || what == "arrive_drop") {
        uint64_t phase = w.mbarrier_at(address, t.pc).phase;
        bool expects = i.has("expect_tx");
        int times = !expects && i.arguments.size() > at + 1 ? int(get(t, i, at + 1, 32)) : 1;
        if (expects) w.mbarrier_arrive(address, int(get(t, i, at + 1, 32)), t.pc);
        else while (times-- > 0) w.mbarrier_arrive(address, 0, t.pc);
        if (at) put(t, i.arguments[0], phase);
        return;
    }
    if (what == "try_wait" || what == "test_wait") {
        uint64_t token = get(t, i, at + 1, 64);
        int parity = int(token & 1);
        if (what == "test_wait" && w.mbarrier_at(address, t.pc).phase % 2 == unsigned(parity)) {
            put(t, i.arguments[0], 0);
            return w.spin(address);
        }
        w.mbarrier_wait(address, i.has("parity") ? int(token) : parity, t.pc);
        return put(t, i.arguments[0], 1);
    }
    not_simulated(t.pc, "the PTX instruction " + i.opcode());
}
void copy(PtxThread& t, const PtxInstruction& i) {  // cp.async...
    Worker& w = t.worker;
    if (i.has("commit_group")) return i.has("bulk") ? w.bulk_commit(t.pc) : copy_commit(t.pc);
    if (i.has("wait_group"))
        return i.has("bulk") ? w.bulk_wait_read(unsigned(get(t, i, 0, 32)), t.pc)
                             : copy_wait(unsigned(get(t, i, 0, 32)), t.pc);
    if (i.has("wait_all")) return copy_commit(t.pc), copy_wait(0, t.pc);
    if (i.has("mbarrier") && i.has("arrive")) {  // cp.async.mbarrier.arrive
        copy_commit(t.pc), copy_wait(0, t.pc);
        if (i.has("noinc")) w.mbarrier_arrive(address_of(t, i.arguments[0], true), 0, t.pc);
        return;
    }
    if (i.parts.size() > 2 && i.words[2] == "bulk") {
        bool loads = i.has("mbarrier::complete_tx::bytes") && i.has("global") && !i.has("tensor");
        bool stores = i.has("bulk_group") && !i.has("tensor") && i.words[3] == "global";
        int bytes = int(get(t, i, 2, 32));
        auto pointer = [&](size_t n, bool shared) {
            return reinterpret_cast<char*>(address_of(t, i.arguments[n], shared));
        };
        if (loads && !i.has("multicast::cluster"))
            return w.bulk_load(pointer(0, true), pointer(1, false), bytes,
                               address_of(t, i.arguments[3], true), t.pc);
        if (stores) return w.bulk_store(pointer(0, false), pointer(1, true), bytes, t.pc);
        not_simulated(t.pc, "the PTX instruction " + i.opcode());
    }
    unsigned bytes = unsigned(get(t, i, 2, 32)), zeros = 0;
    if (i.arguments.size() > 3 && !i.has("L2::cache_hint"))
        zeros = bytes - std::min(bytes, unsigned(get(t, i, 3, 32)));
    if ((bytes != 4 && bytes != 8 && bytes != 16) || (i.has("cg") && bytes != 16))
        fault("misaligned access", t.pc, "cp.async of %u bytes: it copies 4, 8 or 16 bytes, and "
              "with .cg only 16", bytes);
    copy_async(reinterpret_cast<void*>(address_of(t, i.arguments[0], true)),
               reinterpret_cast<void*>(address_of(t, i.arguments[1], false)), bytes, zeros, t.pc);
}
void move(PtxThread& t, const PtxInstruction& i) {
    const PtxArgument &to = i.arguments[0], &from = i.arguments[1];
    unsigned bits = i.type().bits;
    if (from.what == PtxArgument::vector) {
        unsigned each = bits / unsigned(from.elements.size());
        uint64_t value = 0;
        for (size_t e = 0; e < from.elements.size(); ++e)
            value |= masked(get(t, from.elements[e]), each) << (each * e);
        return put(t, to, value);
    }
    uint64_t value = get(t, from);
    if (to.what != PtxArgument::vector) return put(t, to, masked(value, bits));
    unsigned each = bits / unsigned(to.elements.size());
    for (size_t e = 0; e < to.elements.size(); ++e)
        put(t, to.elements[e], masked(value >> (each * e), each));
}
uint64_t shifted(uint64_t a, uint64_t by, unsigned bits, bool left, bool is_signed) {
    if (left) return by >= bits ? 0 : a << by;
    if (is_signed) return uint64_t(extended(a, bits) >> std::min<uint64_t>(by, bits - 1));
    return by >= bits ? 0 : a >> by;
}

const std::unordered_map<std::string, PtxRun>& instructions() {
    static const std::unordered_map<std::string, PtxRun> all{
        {"mov", move},
        {"cvt", convert},
        {"cvta", PTX {
            uint64_t a = get(t, i, 1, 64);
            if (!i.has("shared")) return put(t, i.arguments[0], a);
            put(t, i.arguments[0], i.has("to") ? sim_to_shared(reinterpret_cast<void*>(a))
                                               : uint64_t(sim_from_shared(a)));
        }},
        {"add", PTX { arithmetic(t, i, [](auto a, auto b, bool, unsigned) { return a + b; },
                                 [](double a, double b) { return a + b; }); }},
        {"sub", PTX { arithmetic(t, i, [](auto a, auto b, bool, unsigned) { return a - b; },
                                 [](double a, double b) { return a - b; }); }},
        {"div", PTX { arithmetic(t, i, [&](uint64_t a, uint64_t b, bool is_signed, unsigned) {
                          if (!b) fault("arithmetic", t.pc, "integer division by zero");
                          return is_signed ? uint64_t(int64_t(a) / int64_t(b)) : a / b;
                      }, [](double a, double b) { return a / b; }); }},
        {"rem", PTX { arithmetic(t, i, [&](uint64_t a, uint64_t b, bool is_signed, unsigned) {
                          if (!b) fault("arithmetic", t.pc, "integer division by zero");
                          return is_signed ? uint64_t(int64_t(a) % int64_t(b)) : a % b;
                      }, [](double a, double b) { return std::fmod(a, b); }); }},
        {"min", PTX { arithmetic(t, i, [](uint64_t a, uint64_t b, bool is_signed, unsigned) {
                          return is_signed ? uint64_t(std::min(int64_t(a), int64_t(b))) : std::min(a, b);
                      }, [&](double a, double b) {
                          if (i.has("NaN") && (a != a || b != b)) return std::nan("");
                          return std::fmin(a, b);
                      }); }},
        {"max", PTX { arithmetic(t, i, [](uint64_t a, uint64_t b, bool is_signed, unsigned) {
                          return is_signed ? uint64_t(std::max(int64_t(a), int64_t(b))) : std::max(a, b);
                      }, [&](double a, double b) {
                          if (i.has("NaN") && (a != a || b != b)) return std::nan("");
                          return std::fmax(a, b);
                      }); }},
        {"mul", multiply_add}, {"mad", multiply_add}, {"fma", multiply_add},
        {"abs", PTX {
            if (i.type().is_real) return with_reals(t, i, 1, [](double* x) { return std::fabs(x[0]); });
            unsigned bits = i.type().bits;
            int64_t a = extended(get(t, i, 1, bits), bits);
            put(t, i.arguments[0], masked(uint64_t(a < 0 ? -a : a), bits));
        }},
        {"neg", PTX {
            if (i.type().is_real) return with_reals(t, i, 1, [](double* x) { return -x[0]; });
            put(t, i.arguments[0], masked(-get(t, i, 1, 64), i.type().bits));
        }},
        {"rcp", PTX { with_reals(t, i, 1, [](double* x) { return 1 / x[0]; }); }},
        {"sqrt", PTX { with_reals(t, i, 1, [](double* x) { return std::sqrt(x[0]); }); }},
        {"rsqrt", PTX { with_reals(t, i, 1, [](double* x) { return 1 / std::sqrt(x[0]); }); }},
        {"ex2", PTX { with_reals(t, i, 1, [](double* x) { return std::exp2(x[0]); }); }},
        {"lg2", PTX { with_reals(t, i, 1, [](double* x) { return std::log2(x[0]); }); }},
        {"sin", PTX { with_reals(t, i, 1, [](double* x) { return std::sin(x[0]); }); }},
        {"cos", PTX { with_reals(t, i, 1, [](double* x) { return std::cos(x[0]); }); }},
        {"tanh", PTX { with_reals(t, i, 1, [](double* x) { return std::tanh(x[0]); }); }},
        {"and", PTX { bitwise(t, i, [](auto a, auto b, unsigned) { return a & b; }); }},
        {"or", PTX { bitwise(t, i, [](auto a, auto b, unsigned) { return a | b; }); }},
        {"xor", PTX { bitwise(t, i, [](auto a, auto b, unsigned) { return a ^ b; }); }},
        {"not", PTX { bitwise(t, i, [](auto a, auto, unsigned bits) {
                          return bits == 1 ? uint64_t(!a) : ~a; }); }},
        {"shl", PTX { put(t, i.arguments[0],
                          masked(shifted(get(t, i, 1, i.type().bits), get(t, i, 2, 32),
                                         i.type().bits, true, false), i.type().bits)); }},
        {"shr", PTX { put(t, i.arguments[0],
                          masked(shifted(get(t, i, 1, i.type().bits), get(t, i, 2, 32),
                                         i.type().bits, false, i.type().is_signed),
                                 i.type().bits)); }},
        {"shf", PTX {
            uint64_t both = get(t, i, 2, 32) << 32 | get(t, i, 1, 32);
            auto by = unsigned(get(t, i, 3, 32));
            by = i.has("wrap") ? by & 31 : std::min(by, 32u);
            put(t, i.arguments[0], uint32_t(i.has("l") ? (by == 32 ? both : both << by >> 32)
                                                       : both >> by));
            if (i.has("l") && by == 32) put(t, i.arguments[0], uint32_t(both));
        }},
        {"lop3", PTX {
            auto a = uint32_t(get(t, i, 1, 32)), b = uint32_t(get(t, i, 2, 32)),
                 c = uint32_t(get(t, i, 3, 32)), table = uint32_t(get(t, i, 4, 32)), r = 0u;
            for (int bit = 0; bit < 8; ++bit)
                if (table >> bit & 1)
                    r |= (bit & 4 ? a : ~a) & (bit & 2 ? b : ~b) & (bit & 1 ? c : ~c);
            put(t, i.arguments[0], r);
        }},
        {"prmt", PTX {
            auto a = unsigned(get(t, i, 1, 32)), b = unsigned(get(t, i, 2, 32));
            if (i.parts.size() > 2) not_simulated(t.pc, "the PTX instruction " + i.opcode());
            put(t, i.arguments[0], __byte_perm(a, b, unsigned(get(t, i, 3, 32))));
        }},
        {"bfe", PTX {
            unsigned bits = i.type().bits;
            auto from = unsigned(get(t, i, 2, 8)), length = unsigned(get(t, i, 3, 8));
            uint64_t field = from >= bits ? 0 : get(t, i, 1, bits) >> from;
            length = std::min(length, bits);
            field = length ? masked(field, length) : 0;
            if (i.type().is_signed && length) field = uint64_t(extended(field, length));
            put(t, i.arguments[0], masked(field, bits));
        }},
        {"bfi", PTX {
            unsigned bits = i.type().bits;
            auto at = unsigned(get(t, i, 3, 8)), length = std::min(unsigned(get(t, i, 4, 8)), bits);
            uint64_t field = at >= bits || !length ? 0 : masked(masked(~uint64_t(0), length) << at, bits);
            uint64_t value = at >= bits ? 0 : get(t, i, 1, bits) << at;
            put(t, i.arguments[0], (get(t, i, 2, bits) & ~field) | (value & field));
        }},
        {"brev", PTX {
            unsigned bits = i.type().bits;
            uint64_t a = get(t, i, 1, bits), r = 0;
            for (unsigned b = 0; b < bits; ++b) r |= (a >> b & 1) << (bits - 1 - b);
            put(t, i.arguments[0], r);
        }},
        {"popc", PTX { put(t, i.arguments[0], uint64_t(__builtin_popcountll(get(t, i, 1, i.type().bits)))); }},
        {"clz", PTX {
            unsigned bits = i.type().bits;
            uint64_t a = get(t, i, 1, bits);
            put(t, i.arguments[0], a ? uint64_t(__builtin_clzll(a)) - (64 - bits) : bits);
        }},
        {"bfind", PTX {
            uint64_t a = get(t, i, 1, i.type().bits);
            put(t, i.arguments[0], a ? uint64_t(63 - __builtin_clzll(a)) : 0xffffffffu);
        }},
        {"dp4a", PTX {
            auto a = uint32_t(get(t, i, 1, 32)), b = uint32_t(get(t, i, 2, 32));
            int64_t sum = int32_t(get(t, i, 3, 32));
            for (int k = 0; k < 32; k += 8)
                sum += (i.type(1).is_signed ? int8_t(a >> k) : int(uint8_t(a >> k))) *
                       (i.type(0).is_signed ? int8_t(b >> k) : int(uint8_t(b >> k)));
            put(t, i.arguments[0], uint32_t(sum));
        }},
        {"setp", set_predicate}, {"set", set_predicate},
        {"selp", PTX { put(t, i.arguments[0], get(t, i, get(t, i.arguments[3]) & 1 ? 1 : 2, 64)); }},
        {"ld", load}, {"ldu", load}, {"st", store}, {"atom", atomic}, {"red", atomic},
        {"shfl", shuffle}, {"vote", vote}, {"match", match_lanes}, {"redux", reduce_lanes},
        {"activemask", PTX {
            t.worker.wait_as(State::at_activemask, t.pc);
            put(t, i.arguments[0], t.worker.fibers[t.worker.current].active);
        }},
        {"elect", PTX {
            auto mask = unsigned(get(t, i, 1, 32));
            exchange(t, mask, nullptr, nullptr);
            unsigned leader = unsigned(__builtin_ffs(int(mask)) - 1);
            put(t, i.arguments[0], leader);
            if (i.arguments[0].second >= 0)
                t.slots[i.arguments[0].second] = unsigned(t.worker.current % 32) == leader;
        }},
        {"ldmatrix", load_matrix}, {"stmatrix", store_matrix}, {"mma", multiply_matrices},
        {"bar", barrier}, {"barrier", barrier}, {"mbarrier", mbarrier}, {"cp", copy},
        {"membar", PTX { t.worker.fence(i.has("cta")); }},
        {"fence", PTX { i.has("proxy") ? sim_fence_proxy_async() : t.worker.fence(i.has("cta")); }},
        {"griddepcontrol", PTX {
            if (i.has("wait")) t.worker.waits_for_previous();
            else t.worker.lets_next_start();
        }},
        {"setmaxnreg", PTX {
            auto step = [](void**, unsigned) {};
            t.worker.warp_collective(step, nullptr, t.pc);
            if (t.worker.current % 32 == 0)
                t.worker.warpgroup_step({t.pc, "setmaxnreg", get(t, i, 0, 32), 0});
        }},
        {"wgmma", PTX {
            if (i.words[1] == "fence") return t.worker.wgmma_fence(t.pc);
            if (i.words[1] == "commit_group") return t.worker.wgmma_commit(t.pc);
            if (i.words[1] == "wait_group")
                return t.worker.wgmma_wait(unsigned(get(t, i, 0, 32)), t.pc);
            not_simulated(t.pc, "the PTX instruction " + i.opcode());
        }},
        {"mapa", PTX {  // the address in the cluster's window has the rank + 1 in its upper bits
            uint64_t a = get(t, i, 1, 64), rank = get(t, i, 2, 32);
            uintptr_t at = address_of(t, PtxArgument{PtxArgument::memory, i.arguments[1].slot}, true);
            if (!in_shared_space(i))
                return put(t, i.arguments[0], uint64_t(sim_map_shared(reinterpret_cast<void*>(at), unsigned(rank))));
            put(t, i.arguments[0], (a & (kSharedSpan - 1)) | (rank + 1) << 20);
        }},
        {"isspacep", PTX {
            bool shared = sim_is_shared(reinterpret_cast<void*>(get(t, i, 1, 64)));
            put(t, i.arguments[0], i.has("shared") ? shared : i.has("global") && !shared);
        }},
        {"prefetch", PTX { (void)t, (void)i; }}, {"prefetchu", PTX { (void)t, (void)i; }},
        {"discard", PTX { (void)t, (void)i; }}, {"applypriority", PTX { (void)t, (void)i; }},
        {"createpolicy", PTX { put(t, i.arguments[0], 0); }},
        {"pragma", PTX { (void)t, (void)i; }}, {"nop", PTX { (void)t, (void)i; }},
        {"nanosleep", PTX { (void)i; t.worker.spin(0); }},
        {"trap", PTX { (void)i; fault("trap", t.pc, "PTX `trap` was executed"); }},
        {"exit", PTX { (void)i; t.worker.leave(false); }},
        {"ret", PTX { t.next = int(t.program.instructions.size()); (void)i; }},
        {"bra", PTX { t.next = i.target; }},
    };
    return all;
}
#undef PTX

void PtxParser::instruction(std::string s) {
    PtxInstruction i;
    if (s[0] == '@') {
        size_t space = s.find_first_of(" \t\n");
        std::string guard = s.substr(1, space - 1);
        i.guard_negated = guard[0] == '!';
        i.guard = slot_of(guard.substr(i.guard_negated));
        if (i.guard < 0) program.error = "the guard @" + guard;
        s = trimmed(s.substr(space));
    }
    size_t end = s.find_first_of(" \t\n");
    std::string opcode = s.substr(0, end), rest = end == std::string::npos ? "" : s.substr(end);
    for (size_t from = 0; from <= opcode.size();) {
        size_t dot = std::min(opcode.find('.', from), opcode.size());
        i.parts.push_back(opcode.substr(from, dot - from));
        from = dot + 1;
    }
    if (i.parts[0].empty()) i.parts.erase(i.parts.begin());  // .pragma
    for (auto& part : i.parts) {
        i.words.emplace_back(part);
        int m, n, k;
        if (sscanf(part.c_str(), "m%dn%dk%d", &m, &n, &k) == 3) i.m = m, i.n = n, i.k = k;
    }
    for (size_t at = i.parts.size(); at-- > 1;)
        if (auto type = ptx_type(i.parts[at])) i.types.push_back(*type);
    auto found = instructions().find(i.parts.empty() ? "" : i.parts[0]);
    if (found == instructions().end()) {
        program.error = "the PTX instruction " + opcode;
        return;
    }
    i.run = found->second;
    for (auto& each : split(rest)) i.arguments.push_back(argument(each));
    program.instructions.push_back(std::move(i));
}
}  // namespace

extern "C" {
void sim_ptx(const char* text, SimPtxOperand* operands, int count) {
    uintptr_t pc = CALLER;
    if (!t_worker) not_simulated(pc, "inline PTX in host code");
    static thread_local std::unordered_map<const char*, PtxProgram> programs;
    static thread_local const char* last_text = nullptr;
    static thread_local const PtxProgram* last = nullptr;
    if (text != last_text) {
        auto found = programs.find(text);
        if (found == programs.end())
            found = programs.emplace(text, PtxParser().parse(text, count)).first;
        last_text = text, last = &found->second;
    }
    const PtxProgram& program = *last;
    if (!program.error.empty()) not_simulated(pc, program.error + " in inline PTX");
    uint64_t slots[160];
    if (program.slots > 160) not_simulated(pc, "inline PTX with more than 160 registers");
    std::fill_n(slots, program.slots, 0);
    for (int i = 0; i < count; ++i) slots[i] = operands[i].bits;
    PtxThread t{program, slots, pc};
    for (int at = 0; at < int(program.instructions.size()); at = t.next) {
        const PtxInstruction& i = program.instructions[size_t(at)];
        t.next = at + 1;
        if (i.guard >= 0 && bool(slots[i.guard] & 1) == i.guard_negated) continue;
        i.run(t, i);
    }
    for (int i = 0; i < count; ++i) operands[i].bits = slots[i];
}
size_t sim_to_shared(const void* pointer) {
    uintptr_t at = uintptr_t(pointer) - uintptr_t(t_worker->shared);
    if (at >= kSharedSpan)
        fault("illegal address", CALLER, "the address is not in shared memory, as it must be here");
    return at;
}
void* sim_from_shared(size_t address) { return t_worker->shared + uint32_t(address); }
int sim_is_shared(const void* pointer) {
    return t_worker && uintptr_t(pointer) - uintptr_t(t_worker->shared) < kSharedSpan;
}
}
