// Work on several streams. A correct case has an `expect`; of an incorrect one, `finding` matches the
// kind, the text and the marked line of a finding. `fork` and `join` are the two halves of a correct
// use of another stream.
#include "convlab.cuh"

__global__ void fill(float* y, float value) {
    y[threadIdx.x] = value;  // fill
}
__global__ void add(const float* a, float* y) {
    y[threadIdx.x] = a[threadIdx.x] + 1;  // add
}

struct Other {
    cudaStream_t stream;
    cudaEvent_t event;
    explicit Other(unsigned flags = cudaStreamNonBlocking) {
        cudaStreamCreateWithFlags(&stream, flags);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    ~Other() { cudaEventDestroy(event), cudaStreamDestroy(stream); }
    void wait(cudaStream_t waits, cudaStream_t for_) {
        cudaEventRecord(event, for_);
        cudaStreamWaitEvent(waits, event, 0);
    }
    void fork(cudaStream_t from) { wait(stream, from); }
    void join(cudaStream_t to) { wait(to, stream); }
};

// case joined: Other s; s.fork(stream);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2);
//     s.join(stream); add<<<1, 32, 0, stream>>>((float*)workspace, y);
// k: 32; expect: 3 * torch.ones(32)

// case waited_by_the_host: Other s; cudaStreamSynchronize(stream);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2); cudaStreamSynchronize(s.stream);
//     add<<<1, 32, 0, stream>>>((float*)workspace, y);
// k: 32; expect: 3 * torch.ones(32)

// case whole_device: Other s; cudaDeviceSynchronize(); fill<<<1, 32, 0, s.stream>>>(y, 2);
//     cudaDeviceSynchronize();
// k: 32; expect: 2 * torch.ones(32)

// case event_of_the_host: Other s; s.fork(stream); fill<<<1, 32, 0, s.stream>>>(y, 2);
//     cudaEventRecord(s.event, s.stream); cudaEventSynchronize(s.event);
//     add<<<1, 32, 0, stream>>>(y, y);
// k: 32; expect: 3 * torch.ones(32)

// case apart: Other s, t; s.fork(stream), t.fork(stream);
//     fill<<<1, 16, 0, s.stream>>>(y, 2); fill<<<1, 16, 0, t.stream>>>(y + 16, 2);
//     s.join(stream), t.join(stream);
// k: 32; expect: 2 * torch.ones(32)

// case not_joined: Other s; s.fork(stream);
//     fill<<<1, 32, 0, s.stream>>>(y, 2);
// k: 32; finding: wrong stream: .*conv2d returned, but its stream does not wait for this launch

// case joined_too_early: Other s; s.fork(stream); s.join(stream);
//     fill<<<1, 32, 0, s.stream>>>(y, 2);
// k: 32; finding: wrong stream: .*conv2d returned, but its stream does not wait for this launch

// case not_forked: Other s; fill<<<1, 32, 0, s.stream>>>(y, 2); s.join(stream);
// k: 32; finding: wrong stream: .*it may run before the caller's earlier work

// case default_stream: fill<<<1, 32>>>(y, 2); cudaDeviceSynchronize();
// k: 32; finding: wrong stream: .*on the default stream, but conv2d got another stream

// case event_never_recorded: Other s; s.fork(stream); fill<<<1, 32, 0, s.stream>>>(y, 2);
//     Other t; cudaStreamWaitEvent(stream, t.event, 0);
// k: 32; finding: wrong stream: .*does not wait for this launch

// case read_too_early: Other s; s.fork(stream);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2);
//     add<<<1, 32, 0, stream>>>((float*)workspace, y); s.join(stream);
// k: 32; line: add
// finding: race: load of workspace\[\d+\] and a store by a launch on another stream, with no event

// case overwritten: Other s; fill<<<1, 32, 0, stream>>>((float*)workspace, 2); s.fork(stream);
//     add<<<1, 32, 0, s.stream>>>((float*)workspace, y);
//     fill<<<1, 32, 0, stream>>>((float*)workspace, 3); s.join(stream);
// k: 32; line: fill
// finding: race: store to workspace\[\d+\] and a load by a launch on another stream

// case filled_on_another: Other s; s.fork(stream);
//     cudaMemsetAsync(y, 0, 128, s.stream);
//     fill<<<1, 32, 0, stream>>>(y, 2); s.join(stream);
// k: 32; finding: race: store to y\[.*\] and a store by a fill on another stream

// case copied_on_another: Other s; s.fork(stream);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2);
//     cudaMemcpyAsync(y, workspace, 128, cudaMemcpyDeviceToDevice, stream); s.join(stream);
// k: 32; finding: race: load of workspace\[0\] and a store by a launch on another stream

// case through_the_default_stream: Other s(cudaStreamDefault); cudaStreamSynchronize(stream);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2);
//     add<<<1, 32>>>((float*)workspace, y); cudaDeviceSynchronize();
// k: 32; expect: 3 * torch.ones(32)

// case past_the_default_stream: Other s(cudaStreamNonBlocking); cudaStreamSynchronize(stream);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2);
//     add<<<1, 32>>>((float*)workspace, y); cudaDeviceSynchronize();
// k: 32; line: add; finding: race: load of workspace\[\d+\] and a store by a launch on another stream

// case copied_from_the_host: Other s; s.fork(stream); float h[32] = {};
//     cudaMemcpyAsync(y, h, 128, cudaMemcpyHostToDevice, s.stream);
// k: 32; finding: wrong stream: .*conv2d returned, but its stream does not wait for this copy

// The second kernel may begin before the first one has ended (programmatic dependent launch).
__global__ void dependent(const float* a, float* y, bool waits) {
    if (waits) cudaGridDependencySynchronize();
    y[threadIdx.x] = a[threadIdx.x] + 1;  // dependent
}
void launch_early(cudaStream_t stream, const float* a, float* y, bool waits) {
    cudaLaunchAttribute early[1] = {};
    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 1, config.blockDim = 32, config.stream = stream;
    config.attrs = early, config.numAttrs = 1;
    cudaLaunchKernelEx(&config, dependent, a, y, waits);
}
// case dependent_launch: fill<<<1, 32, 0, stream>>>((float*)workspace, 2);
//     launch_early(stream, (float*)workspace, y, true);
// k: 32; expect: 3 * torch.ones(32)
// case dependent_launch_without_wait: fill<<<1, 32, 0, stream>>>((float*)workspace, 2);
//     launch_early(stream, (float*)workspace, y, false);
// k: 32; line: dependent
// finding: race: load of workspace\[\d+\] and a store by the previous grid, which may still run

// Adds a node for `fill` or `add` to a graph; `after` is null or a node on which it depends.
cudaGraphNode_t node_of(cudaGraph_t graph, cudaGraphNode_t after, float* y, const float* a) {
    float value = 2;
    void* of_fill[] = {&y, &value};
    void* of_add[] = {&a, &y};
    cudaKernelNodeParams params = {};
    if (a) params.func = (void*)add;
    else params.func = reinterpret_cast<void*>(fill);
    params.gridDim = dim3(1), params.blockDim = dim3(32);
    params.kernelParams = a ? of_add : of_fill;
    cudaGraphNode_t node;
    cudaGraphAddKernelNode(&node, graph, &after, after != nullptr, &params);
    return node;
}
void launch(cudaGraph_t graph, cudaStream_t stream, int times = 1) {
    cudaGraphExec_t exec;
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < times; ++i) cudaGraphLaunch(exec, stream);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
}

// case graph_of_nodes: cudaGraph_t graph; cudaGraphCreate(&graph, 0);
//     auto first = node_of(graph, nullptr, (float*)workspace, nullptr);
//     node_of(graph, first, y, (float*)workspace); launch(graph, stream, 2);
// k: 32; expect: 3 * torch.ones(32)

// case graph_without_an_order: cudaGraph_t graph; cudaGraphCreate(&graph, 0);
//     node_of(graph, nullptr, (float*)workspace, nullptr);
//     node_of(graph, nullptr, y, (float*)workspace); launch(graph, stream);
// k: 32; finding: race: load of .*store by a launch on another stream

// case captured: Other s, t; cudaGraph_t graph;
//     cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeGlobal);
//     fill<<<1, 32, 0, s.stream>>>((float*)workspace, 2); t.fork(s.stream);
//     add<<<1, 32, 0, t.stream>>>((float*)workspace, y); t.join(s.stream);
//     cudaMemsetAsync(workspace, 0, 64, s.stream);
//     cudaStreamEndCapture(s.stream, &graph); launch(graph, stream, 2);
// k: 32; expect: 3 * torch.ones(32)

// case captured_and_not_joined: Other s, t; cudaGraph_t graph;
//     cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeGlobal);
//     t.fork(s.stream); fill<<<1, 32, 0, t.stream>>>((float*)workspace, 2); t.join(s.stream);
//     fill<<<1, 32, 0, t.stream>>>((float*)workspace, 4);
//     add<<<1, 32, 0, s.stream>>>((float*)workspace, y);
//     cudaStreamEndCapture(s.stream, &graph); launch(graph, stream);
// k: 32; finding: race: load of .*store by a launch on another stream
