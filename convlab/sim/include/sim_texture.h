// Textures, surfaces and CUDA arrays. An array is plain device memory, row by row. A texture's texels
// are read by ordinary loads, so that they are checked and counted as such.
#pragma once

#include <cmath>

#include "sim_api.h"

enum cudaChannelFormatKind { cudaChannelFormatKindSigned, cudaChannelFormatKindUnsigned,
                             cudaChannelFormatKindFloat, cudaChannelFormatKindNone };
struct cudaChannelFormatDesc {
    int x, y, z, w;  // bits of each channel
    cudaChannelFormatKind f;
};
enum cudaTextureAddressMode { cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror,
                              cudaAddressModeBorder };
enum cudaTextureFilterMode { cudaFilterModePoint, cudaFilterModeLinear };
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };
enum cudaResourceType { cudaResourceTypeArray, cudaResourceTypeMipmappedArray,
                        cudaResourceTypeLinear, cudaResourceTypePitch2D };
enum { cudaArrayDefault = 0, cudaArrayLayered = 1, cudaArraySurfaceLoadStore = 2,
       cudaArrayCubemap = 4, cudaArrayTextureGather = 8 };
struct cudaExtent { size_t width, height, depth; };
struct cudaPos { size_t x, y, z; };
struct cudaPitchedPtr { void* ptr; size_t pitch, xsize, ysize; };
inline cudaExtent make_cudaExtent(size_t w, size_t h, size_t d) { return {w, h, d}; }
inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return {x, y, z}; }
inline cudaPitchedPtr make_cudaPitchedPtr(void* p, size_t pitch, size_t x, size_t y) {
    return {p, pitch, x, y};
}
struct cudaArray {
    cudaChannelFormatDesc channels;
    cudaExtent extent;  // in elements; unused extents are 0
    unsigned flags;
    char* data;
    size_t element() const { return size_t(channels.x + channels.y + channels.z + channels.w) / 8; }
    size_t rows() const { return extent.height ? extent.height : 1; }
    size_t slices() const { return extent.depth ? extent.depth : 1; }
    size_t pitch() const { return extent.width * element(); }
};
typedef cudaArray* cudaArray_t;
typedef const cudaArray* cudaArray_const_t;
typedef struct cudaMipmappedArray* cudaMipmappedArray_t;
struct cudaResourceDesc {
    cudaResourceType resType;
    union {
        struct { cudaArray_t array; } array;
        struct { cudaMipmappedArray_t mipmap; } mipmap;
        struct { void* devPtr; cudaChannelFormatDesc desc; size_t sizeInBytes; } linear;
        struct {
            void* devPtr;
            cudaChannelFormatDesc desc;
            size_t width, height, pitchInBytes;
        } pitch2D;
    } res;
};
struct cudaTextureDesc {
    cudaTextureAddressMode addressMode[3];
    cudaTextureFilterMode filterMode;
    cudaTextureReadMode readMode;
    int sRGB;
    float borderColor[4];
    int normalizedCoords;
    unsigned maxAnisotropy;
    cudaTextureFilterMode mipmapFilterMode;
    float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp;
    int disableTrilinearOptimization, seamlessCubemap;
};
struct cudaResourceViewDesc { int format; size_t width, height, depth; };
typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;

namespace sim {
template <typename T>
constexpr cudaChannelFormatKind channel_kind() {
    return std::is_floating_point_v<T> ? cudaChannelFormatKindFloat
           : std::is_signed_v<T> ? cudaChannelFormatKindSigned : cudaChannelFormatKindUnsigned;
}
// The type of a vector's elements, and their number.
template <typename T> struct Channels { using type = T; static constexpr int n = 1; };
#define SIM_CHANNELS(T, name)                                                                   \
    template <> struct Channels<name##1> { using type = T; static constexpr int n = 1; };       \
    template <> struct Channels<name##2> { using type = T; static constexpr int n = 2; };       \
    template <> struct Channels<name##3> { using type = T; static constexpr int n = 3; };       \
    template <> struct Channels<name##4> { using type = T; static constexpr int n = 4; };
SIM_CHANNELS(float, float) SIM_CHANNELS(int, int) SIM_CHANNELS(unsigned, uint)
SIM_CHANNELS(short, short) SIM_CHANNELS(unsigned short, ushort) SIM_CHANNELS(signed char, char)
SIM_CHANNELS(unsigned char, uchar)

struct Texture {
    const char* data;
    size_t pitch, slice;
    long width, height, depth;
    cudaChannelFormatDesc channels;
    cudaTextureDesc how;
    int element() const { return (channels.x + channels.y + channels.z + channels.w) / 8; }
};
inline const Texture& texture(unsigned long long object) {
    return *reinterpret_cast<const Texture*>(object);
}
// Returns the index of a texel after the address mode; -1: the border's colour.
inline long texel(long i, long n, cudaTextureAddressMode mode, bool normalized) {
    if (i >= 0 && i < n) return i;
    if (mode == cudaAddressModeBorder) return -1;
    if (mode == cudaAddressModeClamp || !normalized) return i < 0 ? 0 : n - 1;
    long turn = (i % n + n) % n;
    bool mirrored = mode == cudaAddressModeMirror && ((i - turn) / n & 1);
    return mirrored ? n - 1 - turn : turn;
}
// Reads one texel as up to four numbers of the type that the texture returns.
template <typename E, typename S>
__forceinline__ void read_channels(const Texture& t, const char* at, int n, E* to) {
    for (int c = 0; c < n; ++c) {
        S value = reinterpret_cast<const S*>(at)[c];
        if (t.how.readMode == cudaReadModeNormalizedFloat && !std::is_floating_point_v<S>) {
            float scaled = float(value) / (sizeof(S) == 1 ? (std::is_signed_v<S> ? 127.f : 255.f)
                                                          : std::is_signed_v<S> ? 32767.f : 65535.f);
            to[c] = E(scaled < -1 ? -1 : scaled);
        } else {
            to[c] = E(value);
        }
    }
}
template <typename E>
__forceinline__ void read_texel(const Texture& t, long x, long y, long z, E* to) {
    int n = (t.channels.x > 0) + (t.channels.y > 0) + (t.channels.z > 0) + (t.channels.w > 0);
    if (x < 0 || y < 0 || z < 0) {
        for (int c = 0; c < 4; ++c) to[c] = E(t.how.borderColor[c]);
        return;
    }
    const char* at = t.data + size_t(z) * t.slice + size_t(y) * t.pitch + size_t(x) * t.element();
    bool is_signed = t.channels.f == cudaChannelFormatKindSigned;
    if (t.channels.f == cudaChannelFormatKindFloat) read_channels<E, float>(t, at, n, to);
    else if (t.channels.x == 8 && is_signed) read_channels<E, signed char>(t, at, n, to);
    else if (t.channels.x == 8) read_channels<E, unsigned char>(t, at, n, to);
    else if (t.channels.x == 16 && is_signed) read_channels<E, short>(t, at, n, to);
    else if (t.channels.x == 16) read_channels<E, unsigned short>(t, at, n, to);
    else if (is_signed) read_channels<E, int>(t, at, n, to);
    else read_channels<E, unsigned>(t, at, n, to);
}
// Filters along up to three axes; z of a layer is not filtered. The weights have 8 bits.
template <typename T>
__forceinline__ T sample(const Texture& t, float x, float y, float z, int axes) {
    using E = typename Channels<T>::type;
    constexpr int n = Channels<T>::n;
    float at[3] = {x, y, z};
    long size[3] = {t.width, t.height, t.depth};
    E result[4] = {};
    bool normalized = t.how.normalizedCoords;
    for (int a = 0; a < axes && normalized; ++a) at[a] *= float(size[a]);
    auto index = [&](int a, long i) { return texel(i, size[a], t.how.addressMode[a], normalized); };
    if (t.how.filterMode == cudaFilterModePoint) {
        long i[3] = {0, 0, long(z)};
        for (int a = 0; a < axes; ++a) i[a] = index(a, long(std::floor(at[a])));
        read_texel(t, i[0], i[1], i[2], result);
    } else {
        long low[3] = {0, 0, long(z)};
        float part[3] = {};
        for (int a = 0; a < axes; ++a) {
            float shifted = at[a] - 0.5f;
            low[a] = long(std::floor(shifted));
            part[a] = std::nearbyint((shifted - float(low[a])) * 256) / 256;
        }
        float sum[4] = {};
        for (int corner = 0; corner < 1 << axes; ++corner) {
            float weight = 1;
            long i[3] = {low[0], low[1], low[2]};
            for (int a = 0; a < axes; ++a) {
                int up = corner >> a & 1;
                weight *= up ? part[a] : 1 - part[a];
                i[a] = index(a, low[a] + up);
            }
            if (weight == 0) continue;
            float one[4] = {};
            read_texel(t, i[0], i[1], i[2], one);
            for (int c = 0; c < n; ++c) sum[c] += weight * one[c];
        }
        for (int c = 0; c < n; ++c) result[c] = E(sum[c]);
    }
    T value;
    E* to = reinterpret_cast<E*>(&value);
    for (int c = 0; c < n; ++c) to[c] = result[c];
    return value;
}
}  // namespace sim

template <typename T>
cudaChannelFormatDesc cudaCreateChannelDesc() {
    int n = sim::Channels<T>::n, bits = int(sizeof(typename sim::Channels<T>::type)) * 8;
    return {bits, n > 1 ? bits : 0, n > 2 ? bits : 0, n > 3 ? bits : 0,
            sim::channel_kind<typename sim::Channels<T>::type>()};
}
inline cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                   cudaChannelFormatKind f) {
    return {x, y, z, w, f};
}

// ---- reads in kernels ----------------------------------------------------------------------
#define SIM_TEX(name, parameters, x, y, z, axes)                                                \
    template <typename T>                                                                       \
    __forceinline__ T name parameters {                                                         \
        return sim::sample<T>(sim::texture(object), float(x), float(y), float(z), axes);        \
    }
#define SIM_OBJECT cudaTextureObject_t object
SIM_TEX(tex1D, (SIM_OBJECT, float x), x, 0, 0, 1)
SIM_TEX(tex2D, (SIM_OBJECT, float x, float y), x, y, 0, 2)
SIM_TEX(tex3D, (SIM_OBJECT, float x, float y, float z), x, y, z, 3)
SIM_TEX(tex1DLod, (SIM_OBJECT, float x, float), x, 0, 0, 1)
SIM_TEX(tex2DLod, (SIM_OBJECT, float x, float y, float), x, y, 0, 2)
SIM_TEX(tex1DLayered, (SIM_OBJECT, float x, int layer), x, 0, layer, 1)
SIM_TEX(tex2DLayered, (SIM_OBJECT, float x, float y, int layer), x, y, layer, 2)
template <typename T>
__forceinline__ T tex1Dfetch(cudaTextureObject_t object, int x) {
    const sim::Texture& t = sim::texture(object);
    if (x < 0 || x >= t.width) return T{};  // a GPU returns zeros
    using E = typename sim::Channels<T>::type;
    E all[4] = {};
    sim::read_texel(t, x, 0, 0, all);
    T value;
    std::memcpy(&value, all, sizeof value);
    return value;
}
// The face of a cube that a direction meets, and the place on it (the layout of CUDA's cubemaps).
template <typename T>
__forceinline__ T texCubemap(cudaTextureObject_t object, float x, float y, float z) {
    float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z), m, s, t;
    int face;
    if (ax >= ay && ax >= az) face = x >= 0 ? 0 : 1, m = ax, s = x >= 0 ? -z : z, t = -y;
    else if (ay >= az) face = y >= 0 ? 2 : 3, m = ay, s = x, t = y >= 0 ? z : -z;
    else face = z >= 0 ? 4 : 5, m = az, s = z >= 0 ? x : -x, t = -y;
    const sim::Texture& texture = sim::texture(object);
    float u = (s / m + 1) / 2, v = (t / m + 1) / 2;
    if (!texture.how.normalizedCoords) u *= float(texture.width), v *= float(texture.height);
    return sim::sample<T>(texture, u, v, float(face), 2);
}
// The four texels around a place, anticlockwise from below on the left: one channel of each.
template <typename T>
__forceinline__ T tex2Dgather(cudaTextureObject_t object, float x, float y, int channel = 0) {
    sim::Texture t = sim::texture(object);
    t.how.filterMode = cudaFilterModePoint;
    using E = typename sim::Channels<T>::type;
    float across = t.how.normalizedCoords ? 0.5f / float(t.width) : 0.5f;
    float down = t.how.normalizedCoords ? 0.5f / float(t.height) : 0.5f;
    auto one = [&](float u, float v) {
        T value = sim::sample<T>(t, u, v, 0, 2);
        return reinterpret_cast<E*>(&value)[channel];
    };
    return T{one(x - across, y + down), one(x + across, y + down), one(x + across, y - down),
             one(x - across, y - down)};
}
#define SIM_TEX_TO(name, parameters, arguments)                                                 \
    template <typename T>                                                                       \
    __forceinline__ void name parameters { *to = name<T> arguments; }
SIM_TEX_TO(tex1D, (T* to, SIM_OBJECT, float x), (object, x))
SIM_TEX_TO(tex2D, (T* to, SIM_OBJECT, float x, float y), (object, x, y))
SIM_TEX_TO(tex3D, (T* to, SIM_OBJECT, float x, float y, float z), (object, x, y, z))
SIM_TEX_TO(tex1Dfetch, (T* to, SIM_OBJECT, int x), (object, x))
// Surfaces: x is in bytes.
namespace sim {
template <typename T>
__forceinline__ T* surface_at(cudaSurfaceObject_t object, int x, int y, int z,
                              cudaSurfaceBoundaryMode mode) {
    const Texture& t = texture(object);
    long column = x / long(sizeof(T)), row = y, slice = z;
    bool inside = column >= 0 && column < t.width && row >= 0 && row < t.height && slice >= 0 &&
                  slice < t.depth;
    if (!inside && mode == cudaBoundaryModeTrap) sim_trap();
    if (!inside && mode == cudaBoundaryModeZero) return nullptr;
    column = column < 0 ? 0 : column >= t.width ? t.width - 1 : column;
    row = row < 0 ? 0 : row >= t.height ? t.height - 1 : row;
    return (T*)(t.data + size_t(slice) * t.slice + size_t(row) * t.pitch) + column;
}
}  // namespace sim
#define SIM_SURFACE(name, parameters, y, z)                                                     \
    template <typename T>                                                                       \
    __forceinline__ void name##write(T value, SIM_SURFACE_OBJECT, int x parameters,             \
                                     cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {     \
        if (T* at = sim::surface_at<T>(object, x, y, z, mode)) *at = value;                     \
    }                                                                                           \
    template <typename T>                                                                       \
    __forceinline__ T name##read(SIM_SURFACE_OBJECT, int x parameters,                          \
                                 cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {         \
        T* at = sim::surface_at<T>(object, x, y, z, mode);                                      \
        return at ? *at : T{};                                                                  \
    }                                                                                           \
    template <typename T>                                                                       \
    __forceinline__ void name##read(T* to, SIM_SURFACE_OBJECT, int x parameters,                \
                                    cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {      \
        T* at = sim::surface_at<T>(object, x, y, z, mode);                                      \
        *to = at ? *at : T{};                                                                   \
    }
#define SIM_SURFACE_OBJECT cudaSurfaceObject_t object
#define SIM_AND ,
SIM_SURFACE(surf1D, , 0, 0)
SIM_SURFACE(surf2D, SIM_AND int y, y, 0)
SIM_SURFACE(surf3D, SIM_AND int y SIM_AND int z, y, z)
SIM_SURFACE(surf2DLayered, SIM_AND int y SIM_AND int z, y, z)
SIM_SURFACE(surfCubemap, SIM_AND int y SIM_AND int z, y, z)

// ---- the host's functions ------------------------------------------------------------------
inline cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* channels,
                                     cudaExtent extent, unsigned flags = 0) {
    auto* made = new cudaArray{*channels, extent, flags, nullptr};
    size_t bytes = made->pitch() * made->rows() * made->slices();
    *array = made;
    return sim_malloc(reinterpret_cast<void**>(&made->data), bytes, 1);
}
inline cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* channels,
                                   size_t width, size_t height = 0, unsigned flags = 0) {
    return cudaMalloc3DArray(array, channels, {width, height, 0}, flags);
}
inline cudaError_t cudaFreeArray(cudaArray_t array) {
    if (!array) return cudaSuccess;
    cudaError_t error = cudaFree(array->data);
    return delete array, error;
}
inline cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* channels, cudaExtent* extent,
                                    unsigned* flags, cudaArray_t array) {
    if (channels) *channels = array->channels;
    if (extent) *extent = array->extent;
    if (flags) *flags = array->flags;
    return cudaSuccess;
}
inline cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* channels, cudaArray_const_t array) {
    return *channels = array->channels, cudaSuccess;
}
SIM_COPY cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch,
                             size_t width, size_t height, cudaMemcpyKind) {
    return sim_copy(to->data + y * to->pitch() + x, to->pitch(), from, pitch, width, height, nullptr,
                    1);
}
SIM_COPY cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from,
                                  size_t pitch, size_t width, size_t height, cudaMemcpyKind,
                                  cudaStream_t stream = nullptr) {
    return sim_copy(to->data + y * to->pitch() + x, to->pitch(), from, pitch, width, height, stream);
}
SIM_COPY cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y,
                               size_t width, size_t height, cudaMemcpyKind) {
    return sim_copy(to, pitch, from->data + y * from->pitch() + x, from->pitch(), width, height,
                    nullptr, 1);
}
SIM_COPY cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t bytes,
                           cudaMemcpyKind) {
    return sim_copy(to->data + y * to->pitch() + x, 0, from, 0, bytes, 1, nullptr, 1);
}
SIM_COPY cudaMemcpyFromArray(void* to, cudaArray_const_t from, size_t x, size_t y, size_t bytes,
                             cudaMemcpyKind) {
    return sim_copy(to, 0, from->data + y * from->pitch() + x, 0, bytes, 1, nullptr, 1);
}
struct cudaMemcpy3DParms {
    cudaArray_t srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    cudaArray_t dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    cudaExtent extent;
    cudaMemcpyKind kind;
};
SIM_COPY cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream = nullptr) {
    cudaArray_t array = p->srcArray ? p->srcArray : p->dstArray;
    size_t element = array ? array->element() : 1;
    auto at = [](cudaArray_t array, const cudaPitchedPtr& pointer, const cudaPos& pos, size_t element,
                 size_t slice) {
        size_t pitch = array ? array->pitch() : pointer.pitch;
        size_t rows = array ? array->rows() : pointer.ysize ? pointer.ysize : 1;
        char* start = array ? array->data : static_cast<char*>(pointer.ptr);
        return start + (pos.z + slice) * rows * pitch + pos.y * pitch + pos.x * element;
    };
    size_t depth = p->extent.depth ? p->extent.depth : 1, rows = p->extent.height ? p->extent.height : 1;
    cudaError_t error = cudaSuccess;
    for (size_t z = 0; z < depth; ++z)
        error = sim_copy(at(p->dstArray, p->dstPtr, p->dstPos, element, z),
                         p->dstArray ? p->dstArray->pitch() : p->dstPtr.pitch,
                         at(p->srcArray, p->srcPtr, p->srcPos, element, z),
                         p->srcArray ? p->srcArray->pitch() : p->srcPtr.pitch,
                         p->extent.width * element, rows, stream);
    return error;
}
SIM_COPY cudaMemcpy3D(const cudaMemcpy3DParms* p) {
    cudaError_t error = cudaMemcpy3DAsync(p);
    return sim_stream_synchronize(nullptr), error;
}
inline cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
    size_t pitch = (extent.width + 511) / 512 * 512;
    *pointer = {nullptr, pitch, extent.width, extent.height};
    return sim_malloc(&pointer->ptr, pitch * extent.height * extent.depth, 1);
}
SIM_COPY cudaMemset3D(cudaPitchedPtr pointer, int value, cudaExtent extent) {
    return sim_fill(pointer.ptr, pointer.pitch, value, extent.width, extent.height * extent.depth,
                    nullptr);
}
inline cudaError_t cudaCreateTextureObject(cudaTextureObject_t* object, const cudaResourceDesc* from,
                                           const cudaTextureDesc* how,
                                           const cudaResourceViewDesc* = nullptr) {
    auto* t = new sim::Texture{};
    if (how) t->how = *how;
    if (from->resType == cudaResourceTypeArray) {
        const cudaArray& a = *from->res.array.array;
        size_t depth = a.slices();
        *t = {a.data, a.pitch(), a.pitch() * a.rows(), long(a.extent.width), long(a.rows()),
              long(depth), a.channels, t->how};
    } else if (from->resType == cudaResourceTypeLinear) {
        auto& l = from->res.linear;
        *t = {static_cast<char*>(l.devPtr), l.sizeInBytes, l.sizeInBytes, 0, 1, 1, l.desc, t->how};
        t->width = long(l.sizeInBytes) / t->element();
    } else if (from->resType == cudaResourceTypePitch2D) {
        auto& p = from->res.pitch2D;
        *t = {static_cast<char*>(p.devPtr), p.pitchInBytes, p.pitchInBytes * p.height, long(p.width),
              long(p.height), 1, p.desc, t->how};
    } else {
        return delete t, sim_error(cudaErrorNotSupported);
    }
    return *object = reinterpret_cast<unsigned long long>(t), cudaSuccess;
}
inline cudaError_t cudaDestroyTextureObject(cudaTextureObject_t object) {
    return delete reinterpret_cast<sim::Texture*>(object), cudaSuccess;
}
inline cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* object,
                                           const cudaResourceDesc* from) {
    return cudaCreateTextureObject(object, from, nullptr);
}
inline cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t object) {
    return cudaDestroyTextureObject(object);
}
