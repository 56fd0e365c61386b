#include "cuda/plugin/last_error.h"

namespace llmsrv::cuda {
namespace {

thread_local std::string text_of_last_error;

}  // namespace

device::Code failed(device::Code code, const std::string& text) {
  text_of_last_error = text;
  return code;
}

const char* last_error() { return text_of_last_error.c_str(); }

}  // namespace llmsrv::cuda
