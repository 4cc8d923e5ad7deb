// CUDA graphs: built from nodes, or captured from streams (../runtime/graphs.h). rewrite.py removes a cast
// to void* from a kernel that becomes a node's `func`.
#pragma once

#include "sim_launch.h"
#include "sim_texture.h"

extern "C" {
void* sim_graph(const void* other);
void sim_graph_destroy(void* graph);
size_t sim_graph_nodes(void* graph);
size_t sim_graph_add(void* graph, const size_t* after, size_t count);
void sim_graph_depend(void* graph, size_t from, size_t to);
void sim_graph_record(void* graph, size_t node);
void sim_graph_nest(void* graph, size_t node, void* child);
int sim_graph_update(void* graph, const void* other);
void sim_graph_launch(void* graph, cudaStream_t);
void sim_capture_begin(cudaStream_t);
void* sim_capture_end(cudaStream_t);
int sim_is_captured(cudaStream_t);
}
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUgraphNode_st { size_t number; }* cudaGraphNode_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                             cudaStreamCaptureModeRelaxed };
enum cudaGraphExecUpdateResult { cudaGraphExecUpdateSuccess, cudaGraphExecUpdateError,
                                 cudaGraphExecUpdateErrorTopologyChanged };
struct cudaGraphExecUpdateResultInfo {
    cudaGraphExecUpdateResult result;
    cudaGraphNode_t errorNode, errorFromNode;
};

// ---- parameters of nodes
namespace sim {
struct AnyKernel {  // a kernel, and a function that knows its parameters' types
    const void* kernel;
    void (*launch)(const void* kernel, const Config& config, void** arguments);
    AnyKernel() = default;
    AnyKernel(std::nullptr_t) : kernel(nullptr), launch(nullptr) {}
    template <typename... P>
    AnyKernel(void (*of)(P...)) : kernel(reinterpret_cast<const void*>(of)) {
        launch = [](const void* which, const Config& config, void** arguments) {
            launch_with(reinterpret_cast<void (*)(P...)>(const_cast<void*>(which)), config, arguments,
                        std::make_index_sequence<sizeof...(P)>());
        };
    }
};
}  // namespace sim
struct cudaKernelNodeParams {
    sim::AnyKernel func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void** kernelParams;
    void** extra;
};
struct cudaMemsetParams {
    void* dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
};
typedef void (*cudaHostFn_t)(void*);
struct cudaHostNodeParams { cudaHostFn_t fn; void* userData; };
enum cudaMemAllocationType { cudaMemAllocationTypeInvalid, cudaMemAllocationTypePinned };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone };
enum cudaMemLocationType { cudaMemLocationTypeInvalid, cudaMemLocationTypeDevice };
struct cudaMemLocation { cudaMemLocationType type; int id; };
struct cudaMemPoolProps {
    cudaMemAllocationType allocType;
    cudaMemAllocationHandleType handleTypes;
    cudaMemLocation location;
};
struct cudaMemAllocNodeParams {
    cudaMemPoolProps poolProps;
    const void* accessDescs;
    size_t accessDescCount, bytesize;
    void* dptr;
};
enum cudaGraphMemAttributeType { cudaGraphMemAttrUsedMemCurrent, cudaGraphMemAttrUsedMemHigh,
                                 cudaGraphMemAttrReservedMemCurrent, cudaGraphMemAttrReservedMemHigh };
SIM_NOTHING_TO_DO(cudaDeviceGraphMemTrim, int)
inline cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
    return *static_cast<size_t*>(value) = 0, cudaSuccess;
}

// ---- graphs and nodes
inline cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
    return *graph = cudaGraph_t(sim_graph(nullptr)), cudaSuccess;
}
inline cudaError_t cudaGraphClone(cudaGraph_t* graph, cudaGraph_t from) {
    return *graph = cudaGraph_t(sim_graph(from)), cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return sim_graph_destroy(graph), cudaSuccess;
}
inline cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                         const cudaGraphNode_t* after, size_t count) {
    size_t numbers[64];
    if (count > 64) return sim_error(cudaErrorNotSupported);
    for (size_t i = 0; i < count; ++i) numbers[i] = after[i]->number;
    *node = new CUgraphNode_st{sim_graph_add(graph, numbers, count)};
    return cudaSuccess;
}
inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                            const cudaGraphNode_t* to, size_t count) {
    for (size_t i = 0; i < count; ++i) sim_graph_depend(graph, from[i]->number, to[i]->number);
    return cudaSuccess;
}
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = new CUgraphNode_st{i};
    return *count = sim_graph_nodes(graph), cudaSuccess;
}

namespace sim {
inline cudaError_t node_work(const cudaKernelNodeParams& p) {
    p.func.launch(p.func.kernel, {p.gridDim, p.blockDim, p.sharedMemBytes, nullptr, "a kernel"},
                  p.kernelParams);
    return cudaSuccess;
}
inline cudaError_t node_work(const cudaMemcpy3DParms& p) { return cudaMemcpy3DAsync(&p); }
inline cudaError_t node_work(const cudaMemsetParams& p) {
    if (p.elementSize > 1 && p.value) return sim_error(cudaErrorNotSupported);
    return cudaMemset2DAsync(p.dst, p.pitch, int(p.value), p.width * p.elementSize, p.height);
}
inline cudaError_t node_work(const cudaHostNodeParams& p) {
    return cudaLaunchHostFunc(nullptr, p.fn, p.userData);
}
template <typename P>
cudaError_t set_node(void* graph, cudaGraphNode_t node, const P* params) {
    sim_graph_record(graph, node->number);
    return node_work(*params);
}
template <typename P>
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                     size_t count, const P* params) {
    cudaError_t error = cudaGraphAddEmptyNode(node, graph, after, count);
    return error ? error : set_node(graph, *node, params);
}
}  // namespace sim
// Functions that add a node of a kind, change it in a graph, and in an executable graph.
#define SIM_NODE(kind, Params)                                                                  \
    inline cudaError_t cudaGraphAdd##kind##Node(cudaGraphNode_t* node, cudaGraph_t graph,       \
                                                const cudaGraphNode_t* after, size_t count,     \
                                                const Params* params) {                         \
        return sim::add_node(node, graph, after, count, params);                                \
    }                                                                                           \
    inline cudaError_t cudaGraphExec##kind##NodeSetParams(cudaGraphExec_t graph,                \
                                                          cudaGraphNode_t node,                 \
                                                          const Params* params) {               \
        return sim::set_node(graph, node, params);                                              \
    }
SIM_NODE(Kernel, cudaKernelNodeParams) SIM_NODE(Memcpy, cudaMemcpy3DParms)
SIM_NODE(Host, cudaHostNodeParams) SIM_NODE(Memset, cudaMemsetParams)
inline cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* after, size_t count, void* to,
                                            const void* from, size_t bytes, cudaMemcpyKind kind) {
    cudaError_t error = cudaGraphAddEmptyNode(node, graph, after, count);
    if (error) return error;
    sim_graph_record(graph, (*node)->number);
    return cudaMemcpyAsync(to, from, bytes, kind);
}
inline cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* after, size_t count,
                                              cudaGraph_t child) {
    cudaError_t error = cudaGraphAddEmptyNode(node, graph, after, count);
    return error ? error : (sim_graph_nest(graph, (*node)->number, child), cudaSuccess);
}
// The memory of a graph is allocated when the node is added, and never freed.
inline cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* after, size_t count,
                                            cudaMemAllocNodeParams* params) {
    cudaError_t error = sim_malloc(&params->dptr, params->bytesize, 1);
    return error ? error : cudaGraphAddEmptyNode(node, graph, after, count);
}
inline cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                           const cudaGraphNode_t* after, size_t count, void*) {
    return cudaGraphAddEmptyNode(node, graph, after, count);
}

// ---- launches and captures
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                        unsigned long long = 0) {
    return *exec = cudaGraphExec_t(sim_graph(graph)), cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphNode_t*,
                                        char*, size_t) {
    return cudaGraphInstantiate(exec, graph);
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                 unsigned long long = 0) {
    return cudaGraphInstantiate(exec, graph);
}
SIM_NOTHING_TO_DO(cudaGraphUpload, cudaGraphExec_t, cudaStream_t)
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return sim_graph_destroy(exec), cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return sim_graph_launch(exec, stream), cudaSuccess;
}
inline cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t* node,
                                       cudaGraphExecUpdateResult* result) {
    if (node) *node = nullptr;
    bool same = sim_graph_update(exec, graph);
    *result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    return same ? cudaSuccess : sim_error(cudaErrorUnknown);
}
inline cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                       cudaGraphExecUpdateResultInfo* info) {
    *info = {};
    return cudaGraphExecUpdate(exec, graph, nullptr, &info->result);
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    return sim_capture_begin(stream), cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = cudaGraph_t(sim_capture_end(stream));
    return *graph ? cudaSuccess : sim_error(cudaErrorUnknown);
}
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive,
                               cudaStreamCaptureStatusInvalidated };
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = sim_is_captured(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
