// What C++ can do: the floor that the benchmarks compare with.
//
// floor.py builds this as a shared library and calls it in the process that is measured, so that
// both use the same context, and rounds of both can take turns.

#include <chrono>
#include <cstdio>
#include <cuda_runtime.h>

namespace {

char message[256] = "";

bool bad(cudaError_t code, const char* call) {
    if (code == cudaSuccess) return false;
    std::snprintf(message, sizeof message, "%s: %s", call, cudaGetErrorString(code));
    return true;
}

#define TRY(call)                                                                                  \
    if (bad(call, #call)) return nullptr
#define CHECK(call)                                                                                \
    if (bad(call, #call)) return -1.0

__global__ void add_one(float* x) { x[0] += 1.0f; }

__global__ void count(long long* n) { n[0] += 1; }

__global__ void less(bool* out, const long long* n, const long long* limit) {
    out[0] = n[0] < limit[0];
}

__global__ void set(cudaGraphConditionalHandle handle, const bool* predicate) {
    cudaGraphSetConditional(handle, predicate[0]);
}

}  // namespace

extern "C" {

const char* floor_error() { return message; }

// The work of the loop's body: three kernels on the caller's stream.
double floor_body(float* x, long long* n, const long long* limit, bool* predicate, void* stream) {
    auto on = static_cast<cudaStream_t>(stream);
    add_one<<<1, 1, 0, on>>>(x);
    count<<<1, 1, 0, on>>>(n);
    less<<<1, 1, 0, on>>>(predicate, n, limit);
    CHECK(cudaGetLastError());
    return 0.0;
}

// A graph of `nodes` kernels in a row, executable; null where it fails.
void* floor_chain(float* x, int nodes) {
    cudaStream_t stream;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; ++i) add_one<<<1, 1, 0, stream>>>(x);
    cudaGraph_t graph;
    TRY(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable;
    TRY(cudaGraphInstantiate(&executable, graph, 0));
    TRY(cudaGraphDestroy(graph));
    TRY(cudaStreamDestroy(stream));
    return executable;
}

// n = 0; while (n < limit) { floor_body }, executable; null where it fails.
void* floor_while(float* x, long long* n, const long long* limit, bool* predicate) {
    cudaStream_t stream, inner;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY(cudaStreamCreateWithFlags(&inner, cudaStreamNonBlocking));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    TRY(cudaMemsetAsync(n, 0, sizeof *n, stream));
    less<<<1, 1, 0, stream>>>(predicate, n, limit);

    cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    const cudaGraphNode_t* before;
    size_t count_before;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData* edges;
    TRY(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &before, &edges, &count_before));
#else
    TRY(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &before, &count_before));
#endif
    cudaGraphConditionalHandle handle;
    TRY(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
    set<<<1, 1, 0, stream>>>(handle, predicate);
#if CUDART_VERSION >= 13000
    TRY(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &before, &edges, &count_before));
#else
    TRY(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &before, &count_before));
#endif
    cudaGraphNodeParams parameters = {};
    parameters.type = cudaGraphNodeTypeConditional;
    parameters.conditional.handle = handle;
    parameters.conditional.type = cudaGraphCondTypeWhile;
    parameters.conditional.size = 1;
    cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
    TRY(cudaGraphAddNode(&node, graph, before, nullptr, count_before, &parameters));
    TRY(cudaStreamUpdateCaptureDependencies(
        stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
#else
    TRY(cudaGraphAddNode(&node, graph, before, count_before, &parameters));
    TRY(cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies));
#endif
    cudaGraph_t body = parameters.conditional.phGraph_out[0];
    TRY(cudaStreamBeginCaptureToGraph(
        inner, body, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
    if (floor_body(x, n, limit, predicate, inner) != 0.0) return nullptr;
    set<<<1, 1, 0, inner>>>(handle, predicate);
    TRY(cudaStreamEndCapture(inner, &body));
    TRY(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t executable;
    TRY(cudaGraphInstantiate(&executable, graph, 0));
    TRY(cudaStreamDestroy(inner));
    TRY(cudaStreamDestroy(stream));
    return executable;
}

// Host seconds of `launches` launches in a row; -1 where one fails. It does not wait for the device.
double floor_launch(void* executable, void* stream, int launches) {
    auto graph = static_cast<cudaGraphExec_t>(executable);
    auto on = static_cast<cudaStream_t>(stream);
    cudaError_t code = cudaSuccess;
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) {
        code = cudaGraphLaunch(graph, on);
        if (code != cudaSuccess) break;
    }
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    CHECK(code);
    return took.count();
}

}  // extern "C"
