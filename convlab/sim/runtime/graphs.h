// CUDA graphs. A node is a launch, a copy, a fill or a call of the host, with its arguments. A graph
// gets its nodes one by one, or by the capture of a stream. A launch of a graph performs them in the
// order in which they were added: each on a stream of its own, after the nodes on which it depends.
// So two nodes that nothing orders are a race if they access the same data (streams.h).
#pragma once
#include "streams.h"

#include <functional>
#include <map>

namespace {
using Work = std::function<void(cudaStream_t)>;
struct Node {
    std::vector<size_t> after;  // the nodes of the graph on which it depends
    Work work;                  // empty for a node that only orders others
};
struct Graph {
    std::vector<Node> nodes;
    std::vector<cudaStream_t> streams;  // of the nodes, from the first launch on
};
using Last = std::vector<size_t>;  // the nodes on which a stream's next node depends
struct Capture {
    Graph* graph = nullptr;
    std::map<cudaStream_t, Last> streams;
    std::map<unsigned, Last> events;
};
Capture g_capture;
Node* g_recorded = nullptr;  // the node that gets the next operation as its work

// Returns whether an operation becomes a node, because its stream is captured or a node is recorded.
bool recorded(cudaStream_t stream, const Work& work) {
    if (g_recorded) {
        std::exchange(g_recorded, nullptr)->work = work;
        return true;
    }
    auto found = g_capture.streams.find(stream);
    if (found == g_capture.streams.end()) return false;
    g_capture.graph->nodes.push_back({found->second, work});
    found->second = {g_capture.graph->nodes.size() - 1};
    return true;
}
void add_all(Last& to, const Last& nodes) {
    for (size_t node : nodes)
        if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
}
extern "C" void sim_graph_launch(void* graph, cudaStream_t stream);
Graph& graph_at(void* graph) { return *static_cast<Graph*>(graph); }
}  // namespace

extern "C" {
void* sim_graph(const void* other) {
    return other ? new Graph{static_cast<const Graph*>(other)->nodes, {}} : new Graph;
}
void sim_graph_destroy(void* graph) { delete static_cast<Graph*>(graph); }
size_t sim_graph_nodes(void* graph) { return graph_at(graph).nodes.size(); }
// Adds a node without work; returns its number.
size_t sim_graph_add(void* graph, const size_t* after, size_t count) {
    graph_at(graph).nodes.push_back({{after, after + count}, {}});
    return graph_at(graph).nodes.size() - 1;
}
void sim_graph_depend(void* graph, size_t from, size_t to) {
    add_all(graph_at(graph).nodes[to].after, {from});
}
// The next operation on any stream becomes the work of a node, and is not performed.
void sim_graph_record(void* graph, size_t node) { g_recorded = &graph_at(graph).nodes[node]; }
// The work of a node is a launch of another graph.
void sim_graph_nest(void* graph, size_t node, void* child) {
    auto* copy = static_cast<Graph*>(sim_graph(child));
    graph_at(graph).nodes[node].work = [copy](cudaStream_t stream) { sim_graph_launch(copy, stream); };
}
// Replaces the nodes by those of another graph; returns whether both have as many.
int sim_graph_update(void* graph, const void* other) {
    const auto& nodes = static_cast<const Graph*>(other)->nodes;
    if (nodes.size() != graph_at(graph).nodes.size()) return 0;
    graph_at(graph).nodes = nodes;
    return 1;
}
void sim_graph_launch(void* graph, cudaStream_t stream) {
    if (recorded(stream, [graph](cudaStream_t s) { sim_graph_launch(graph, s); })) return;
    Graph& g = graph_at(graph);
    while (g.streams.size() < g.nodes.size()) g.streams.push_back(sim_stream(1));
    unsigned begin = sim_event_record(stream);
    std::vector<unsigned> done;
    for (size_t i = 0; i < g.nodes.size(); ++i) {
        sim_stream_wait(g.streams[i], begin);
        for (size_t node : g.nodes[i].after) sim_stream_wait(g.streams[i], done[node]);
        if (g.nodes[i].work) g.nodes[i].work(g.streams[i]);
        done.push_back(sim_event_record(g.streams[i]));
    }
    for (unsigned event : done) sim_stream_wait(stream, event);
}

void sim_capture_begin(cudaStream_t stream) {
    g_capture = {new Graph, {{stream, {}}}, {}};
}
// Ends the capture that began on a stream; returns its graph, or null.
void* sim_capture_end(cudaStream_t stream) {
    if (!g_capture.streams.count(stream)) return nullptr;
    return std::exchange(g_capture, {}).graph;
}
int sim_is_captured(cudaStream_t stream) { return int(g_capture.streams.count(stream)); }
// Returns whether the event is one of the capture.
int sim_capture_event(cudaStream_t stream, unsigned* event) {
    auto found = g_capture.streams.find(stream);
    if (found == g_capture.streams.end()) return 0;
    g_events.emplace_back();
    *event = unsigned(g_events.size() - 1);
    g_capture.events[*event] = found->second;
    return 1;
}
int sim_capture_wait(cudaStream_t stream, unsigned event) {
    auto found = g_capture.events.find(event);
    if (found == g_capture.events.end()) return 0;
    add_all(g_capture.streams[stream], found->second);
    return 1;
}
void sim_host_call(cudaStream_t stream, void (*call)(void*), void* with) {
    if (!recorded(stream, [=](cudaStream_t) { call(with); })) call(with);
}
void sim_free_async(void* pointer, cudaStream_t stream) {
    // The memory of a graph stays until the process ends.
    if (!recorded(stream, {})) cudaFree(pointer);
}
}
