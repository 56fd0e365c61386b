#include "cpp/base/status.h"

namespace llmsrv {

Status Status::invalid(std::vector<Violation> violations) {
  std::string message;
  for (const Violation& violation : violations) {
    if (!message.empty()) message += "; ";
    message += violation.field + ": " + violation.description;
  }
  Status status(StatusCode::kInvalidArgument, std::move(message));
  status.violations_ = std::move(violations);
  return status;
}

}  // namespace llmsrv
