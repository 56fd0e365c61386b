#include <pybind11/functional.h>

#include "cuda/emulation/bindings.h"
#include "cuda/library/communicator.h"

namespace py = pybind11;

namespace llmsrv::emulation {
namespace {

using cuda::Communicator;
using cuda::CommunicatorError;

cuda::NvidiaLibrary open(const std::string& soname, const std::vector<std::string>& folders) {
  return cuda::NvidiaLibrary({soname, folders, "install it"});
}

// The reason's name stands before the sentence.
[[noreturn]] void rethrow(const CommunicatorError& error) {
  const char* reason = error.reason == CommunicatorError::Reason::kTimedOut ? "timed out"
                       : error.reason == CommunicatorError::Reason::kRemote ? "remote"
                                                                            : "failed";
  throw std::runtime_error(std::string(reason) + ": " + error.what());
}
template <typename F>
auto without_the_interpreter(const F& f) {
  const py::gil_scoped_release release;
  try {
    return f();
  } catch (const CommunicatorError& error) {
    rethrow(error);
  }
}

// One rank of those that know the id.
class TestCommunicator {
 public:
  TestCommunicator(const std::string& soname, const std::vector<std::string>& folders, const std::string& id,
                   const Communicator::Options& options) {
    without_the_interpreter([&] {
      cuda::nccl::Id copied{};
      id.copy(copied.bytes, sizeof copied.bytes);
      communicator_ = std::make_unique<Communicator>(cuda::nccl::Functions(open(soname, folders)), copied, options);
    });
  }
  ~TestCommunicator() { close(); }
  TestCommunicator(const TestCommunicator&) = delete;
  TestCommunicator& operator=(const TestCommunicator&) = delete;

  void close() {
    without_the_interpreter([&] { communicator_.reset(); });
  }
  void all_reduce(const py::array& values) {
    void* memory = in_reach(values);
    const auto count = static_cast<std::size_t>(values.size());
    const Communicator::Element element = element_of(values);
    without_the_interpreter([&] { communicator_->all_reduce(memory, count, element, launch_stream()); });
  }
  void all_gather(const py::array& in, const py::array& out) {
    const void* from = in_reach(in);
    void* to = in_reach(out);
    const auto count = static_cast<std::size_t>(in.size());
    const Communicator::Element element = element_of(in);
    without_the_interpreter([&] { communicator_->all_gather(from, to, count, element, launch_stream()); });
  }
  void wait(const std::function<bool()>& done) {
    without_the_interpreter([&] { communicator_->wait(done); });
  }

 private:
  static Communicator::Element element_of(const py::array& values) {
    return values.itemsize() == 4 ? Communicator::Element::kFloat32 : Communicator::Element::kBfloat16;
  }

  std::unique_ptr<Communicator> communicator_;
};

int version(const std::string& soname, const std::vector<std::string>& folders) {
  int result = 0;
  cuda::nccl::Functions(open(soname, folders)).version(&result);
  return result;
}

py::bytes make_id(const std::string& soname, const std::vector<std::string>& folders) {
  const cuda::nccl::Id id =
      without_the_interpreter([&] { return Communicator::make_id(cuda::nccl::Functions(open(soname, folders))); });
  return {id.bytes, sizeof id.bytes};
}

}  // namespace

void bind_communicator(py::module_& module) {
  module.def("nccl_version", &version, py::arg("soname"), py::arg("folders"));
  module.def("make_communicator_id", &make_id, py::arg("soname"), py::arg("folders"));
  py::class_<TestCommunicator>(module, "Communicator")
      .def(py::init([](const std::string& soname, const std::vector<std::string>& folders, const py::bytes& id,
                       int ranks, int rank, std::int64_t wait_ms_max) {
             return std::make_unique<TestCommunicator>(soname, folders, id,
                                                       Communicator::Options{ranks, rank, wait_ms_max});
           }),
           py::arg("soname"), py::arg("folders"), py::arg("id"), py::arg("ranks"), py::arg("rank"),
           py::arg("wait_ms_max"))
      .def("close", &TestCommunicator::close)
      .def("wait", &TestCommunicator::wait, py::arg("done"));
  module.def(
      "all_reduce", [](TestCommunicator& communicator, const py::array& values) { communicator.all_reduce(values); },
      py::arg("communicator"), py::arg("values"));
  module.def(
      "all_gather",
      [](TestCommunicator& communicator, const py::array& in, const py::array& out) {
        communicator.all_gather(in, out);
      },
      py::arg("communicator"), py::arg("in_"), py::arg("out"));
}

}  // namespace llmsrv::emulation
