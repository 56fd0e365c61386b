#include "cuda/plugin/runtime.h"

#include <cuda_runtime.h>

#include <cstring>

#include "cuda/plugin/last_error.h"

namespace llmsrv::cuda {
namespace {

using device::Code;

cudaStream_t stream_of(device::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(device::Event event) { return static_cast<cudaEvent_t>(event); }

Code code_of(cudaError_t error) {
  if (error == cudaSuccess) return Code::kOk;
  // An error that is not taken would be reported again by the next launch.
  cudaGetLastError();
  return failed(error == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kFailed,
                std::string("CUDA: ") + cudaGetErrorString(error));
}

Code select(std::int32_t index) { return code_of(cudaSetDevice(index)); }

Code properties(std::int32_t index, device::Properties* result) {
  cudaDeviceProp found{};
  const Code code = code_of(cudaGetDeviceProperties(&found, index));
  if (code != Code::kOk) return code;
  std::strncpy(result->name, found.name, sizeof result->name - 1);
  result->name[sizeof result->name - 1] = '\0';
  result->major = found.major;
  result->minor = found.minor;
  result->multiprocessors = found.multiProcessorCount;
  return code_of(cudaMemGetInfo(&result->free_bytes, &result->memory_bytes));
}

Code allocate(std::size_t bytes, void** memory) { return code_of(cudaMalloc(memory, bytes)); }
Code release(void* memory) { return code_of(cudaFree(memory)); }
Code allocate_pinned(std::size_t bytes, void** memory) {
  return code_of(cudaHostAlloc(memory, bytes, cudaHostAllocDefault));
}
Code release_pinned(void* memory) { return code_of(cudaFreeHost(memory)); }

Code create_stream(device::Stream* stream) {
  return code_of(cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking));
}
Code destroy_stream(device::Stream stream) { return code_of(cudaStreamDestroy(stream_of(stream))); }
Code create_event(device::Event* event) {
  return code_of(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming));
}
Code create_timed_event(device::Event* event) {
  return code_of(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)));
}
Code destroy_event(device::Event event) { return code_of(cudaEventDestroy(event_of(event))); }
Code record(device::Event event, device::Stream stream) {
  return code_of(cudaEventRecord(event_of(event), stream_of(stream)));
}
Code wait(device::Stream stream, device::Event event) {
  return code_of(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}
Code synchronize_event(device::Event event) { return code_of(cudaEventSynchronize(event_of(event))); }
Code elapsed_s(device::Event from, device::Event to, double* seconds) {
  float milliseconds = 0.0f;
  const Code code = code_of(cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to)));
  *seconds = 1e-3 * static_cast<double>(milliseconds);
  return code;
}
Code synchronize(device::Stream stream) { return code_of(cudaStreamSynchronize(stream_of(stream))); }

Code copy(void* to, const void* from, std::size_t bytes, device::Stream stream) {
  return code_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
}
Code fill(void* to, std::int32_t byte, std::size_t bytes, device::Stream stream) {
  return code_of(cudaMemsetAsync(to, byte, bytes, stream_of(stream)));
}

Code begin_capture(device::Stream stream) {
  return code_of(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
}
Code end_capture(device::Stream stream, device::Graph* graph) {
  cudaGraph_t captured = nullptr;
  const Code code = code_of(cudaStreamEndCapture(stream_of(stream), &captured));
  if (code != Code::kOk) return code;
  const Code made = code_of(cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t*>(graph), captured, 0));
  cudaGraphDestroy(captured);
  return made;
}
Code launch_graph(device::Graph graph, device::Stream stream) {
  return code_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
}
Code destroy_graph(device::Graph graph) { return code_of(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph))); }

}  // namespace

const device::RuntimeTable& runtime_table() {
  static constexpr device::RuntimeTable kTable{
      .select = &select,
      .properties = &properties,
      .allocate = &allocate,
      .release = &release,
      .allocate_pinned = &allocate_pinned,
      .release_pinned = &release_pinned,
      .create_stream = &create_stream,
      .destroy_stream = &destroy_stream,
      .create_event = &create_event,
      .create_timed_event = &create_timed_event,
      .destroy_event = &destroy_event,
      .record = &record,
      .wait = &wait,
      .synchronize_event = &synchronize_event,
      .elapsed_s = &elapsed_s,
      .synchronize = &synchronize,
      .copy = &copy,
      .fill = &fill,
      .begin_capture = &begin_capture,
      .end_capture = &end_capture,
      .launch_graph = &launch_graph,
      .destroy_graph = &destroy_graph,
  };
  return kTable;
}

}  // namespace llmsrv::cuda
