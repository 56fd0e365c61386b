#include "cpp/cuda/step_graphs.h"

namespace llmsrv {

StepGraphs::~StepGraphs() {
  for (const auto& [form, graph] : graphs_) {
    if (graph != nullptr) device_.runtime().destroy_graph(graph);
  }
}

void StepGraphs::capture(const StepForm& form, const std::function<void()>& work) {
  const device::RuntimeTable& runtime = device_.runtime();
  device_.check(runtime.begin_capture(stream_.handle()));
  device::Graph graph = nullptr;
  try {
    work();
  } catch (...) {  // the stream must not stay in the capture
    if (runtime.end_capture(stream_.handle(), &graph) == device::Code::kOk) runtime.destroy_graph(graph);
    throw;
  }
  device_.check(runtime.end_capture(stream_.handle(), &graph));
  graphs_.at(form) = graph;
}

void StepGraphs::launch(const StepForm& form) const {
  device_.check(device_.runtime().launch_graph(graphs_.at(form), stream_.handle()));
}

}  // namespace llmsrv
