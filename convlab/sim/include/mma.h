// nvcuda::wmma. The layout of a fragment is CUDA's own; here lane l holds elements l, l + 32, ... of
// the matrix, row by row, so that only code that relies on an undocumented layout sees a difference.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" void sim_partial_wmma(const char* operation, unsigned participants);
namespace nvcuda {
namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator;
struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; struct u4; struct s4; struct b1; }
namespace sim_detail {
template <typename T> struct Storage { using type = T; };
template <> struct Storage<precision::tf32> { using type = float; };
template <typename Use, int m, int n, int k> struct Shape;
template <int m, int n, int k> struct Shape<matrix_a, m, n, k> { static constexpr int rows = m, columns = k; };
template <int m, int n, int k> struct Shape<matrix_b, m, n, k> { static constexpr int rows = k, columns = n; };
template <int m, int n, int k> struct Shape<accumulator, m, n, k> { static constexpr int rows = m, columns = n; };
template <typename T> T tf32(T value) { return value; }
}  // namespace sim_detail
template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
    static_assert((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32) || (m == 8 && n == 8),
                  "wmma: shapes are 16 x 16, 32 x 8, 8 x 32");
    using element_type = T;
    using storage_element_type = typename sim_detail::Storage<T>::type;
    static constexpr int rows = sim_detail::Shape<Use, m, n, k>::rows,
                         columns = sim_detail::Shape<Use, m, n, k>::columns,
                         num_elements = rows * columns / 32, num_storage_elements = num_elements;
    storage_element_type x[num_elements];
};
template <typename Use, int m, int n, int k, typename T, typename L, typename V>
__forceinline__ void fill_fragment(fragment<Use, m, n, k, T, L>& f, const V& value) {
    using S = typename fragment<Use, m, n, k, T, L>::storage_element_type;
    for (auto& x : f.x) x = S(value);
}
__forceinline__ float __float_to_tf32(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;
    return __uint_as_float((bits + 0x1000) & 0xffffe000);
}
namespace sim_detail {
template <typename F, typename P>
__forceinline__ void load(F& f, const P* from, unsigned ld, bool by_rows) {
    __syncwarp();
    for (int e = 0; e < F::num_elements; ++e) {
        int i = e * 32 + int(sim_lane()), row = i / F::columns, column = i % F::columns;
        f.x[e] = typename F::storage_element_type(by_rows ? from[row * ld + column] : from[column * ld + row]);
    }
    __syncwarp();
}
}  // namespace sim_detail
template <typename Use, int m, int n, int k, typename T, typename L, typename P>
__forceinline__ void load_matrix_sync(fragment<Use, m, n, k, T, L>& f, const P* from, unsigned ld) {
    sim_detail::load(f, from, ld, std::is_same_v<L, row_major>);
}
template <int m, int n, int k, typename T, typename L, typename P>
__forceinline__ void load_matrix_sync(fragment<accumulator, m, n, k, T, L>& f, const P* from,
                                      unsigned ld, layout_t layout) {
    sim_detail::load(f, from, ld, layout == mem_row_major);
}
template <int m, int n, int k, typename T, typename L, typename P>
__forceinline__ void store_matrix_sync(P* to, const fragment<accumulator, m, n, k, T, L>& f,
                                       unsigned ld, layout_t layout) {
    using F = fragment<accumulator, m, n, k, T, L>;
    __syncwarp();
    for (int e = 0; e < F::num_elements; ++e) {
        int i = e * 32 + int(sim_lane()), row = i / F::columns, column = i % F::columns;
        (layout == mem_row_major ? to[row * ld + column] : to[column * ld + row]) = P(f.x[e]);
    }
    __syncwarp();
}
namespace sim_detail {
template <typename A, typename B, typename C, typename D>
struct Product {
    const A* a;
    const B* b;
    const C* c;
    D* d;
    unsigned participants;
};
template <typename S, typename T>
SIM_UNSEEN float number(S value) {
    if constexpr (std::is_same_v<T, precision::tf32>) {  // as a tensor core reads it
        unsigned bits;
        std::memcpy(&bits, &value, 4);
        bits &= 0xffffe000;
        std::memcpy(&value, &bits, 4);
        return value;
    } else if constexpr (std::is_same_v<T, __half>) {
        return sim::Half::widen(value.raw);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        return sim::Bfloat16::widen(value.raw);
    } else {
        return float(value);
    }
}
template <typename S>
SIM_UNSEEN S narrowed(double value) {
    S to;
    if constexpr (std::is_same_v<S, __half>) to.raw = sim::Half::narrow(float(value));
    else to = S(value);
    return to;
}
template <typename A, typename B, typename C, typename D, int m, int n, int k>
SIM_UNSEEN void product_step(void** arguments, unsigned participants) {
    using P = Product<A, B, C, D>;
    auto lane = [&](int l) SIM_UNSEEN -> P& { return *static_cast<P*>(arguments[l]); };
    for (int l = 0; l < 32; ++l)
        if (participants >> l & 1) lane(l).participants = participants;
    if (~participants) return;
    double sums[m * n / 32][32];
    for (int i = 0; i < m * n; ++i) {
        double sum = double(number<typename C::storage_element_type, typename C::element_type>(lane(i % 32).c->x[i / 32]));
        for (int l = 0; l < k; ++l) {
            int at_a = i / n * k + l, at_b = l * n + i % n;
            sum += double(number<typename A::storage_element_type, typename A::element_type>(lane(at_a % 32).a->x[at_a / 32])) *
                   double(number<typename B::storage_element_type, typename B::element_type>(lane(at_b % 32).b->x[at_b / 32]));
        }
        sums[i / 32][i % 32] = sum;
    }
    for (int i = 0; i < m * n; ++i)
        lane(i % 32).d->x[i / 32] = narrowed<typename D::storage_element_type>(sums[i / 32][i % 32]);
}
}  // namespace sim_detail
template <int m, int n, int k, typename T, typename LA, typename LB, typename TC, typename TD>
__forceinline__ void mma_sync(fragment<accumulator, m, n, k, TD>& d,
                              const fragment<matrix_a, m, n, k, T, LA>& a,
                              const fragment<matrix_b, m, n, k, T, LB>& b,
                              const fragment<accumulator, m, n, k, TC>& c, bool = false) {
    using A = fragment<matrix_a, m, n, k, T, LA>;
    using B = fragment<matrix_b, m, n, k, T, LB>;
    using C = fragment<accumulator, m, n, k, TC>;
    using D = fragment<accumulator, m, n, k, TD>;
    sim_detail::Product<A, B, C, D> mine{&a, &b, &c, &d, 0};
    sim_collective(0xffffffffu, sim_detail::product_step<A, B, C, D, m, n, k>, &mine);
    if (~mine.participants) sim_partial_wmma("wmma::mma_sync", mine.participants);
}
}  // namespace wmma
}  // namespace nvcuda
