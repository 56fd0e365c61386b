// A shared library of NVIDIA's, found and opened at run time.
//
// It is taken, in this order, from what the process has loaded already (torch brings its own), from the folders of
// NVIDIA's wheels, and from the system's path. An opened library stays open: its threads and handles may outlive us.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace llmsrv::cuda {

// A library is absent or unfit; what() is one sentence for people.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LibrarySearch {
  std::string soname;                // "libcublasLt.so.13"
  std::vector<std::string> folders;  // of wheels, searched in this order
  std::string remedy;                // how people get it: "pip install ..."
};

class NvidiaLibrary {
 public:
  // Throws LibraryError.
  explicit NvidiaLibrary(const LibrarySearch& search);

  // The file it was loaded from.
  const std::string& path() const { return path_; }

  // Throws LibraryError when the library lacks it.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }
  // The same, put where it is kept.
  template <typename Function>
  void bind(const char* name, Function*& function) const {
    function = this->function<Function>(name);
  }

 private:
  void* symbol(const char* name) const;

  void* library_ = nullptr;
  std::string path_;
};

// Where pip puts NVIDIA's wheels, when `file` is part of an installed package: site-packages/nvidia/WHEEL/lib, "cu13"
// for most of CUDA 13. Empty when there is none.
std::vector<std::string> wheel_folders(const std::string& file, const std::string& wheel);

}  // namespace llmsrv::cuda
