// The outcome of an operation that may be refused. Codes are gRPC's, so that one table maps core -> gRPC -> HTTP.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace llmsrv {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

// gRPC's name of a code: "INVALID_ARGUMENT".
const char* status_code_name(StatusCode code);

// One field of a request that breaks a rule. `field` is its path in the proto, for example "sampling.top_p".
struct Violation {
  std::string field;
  std::string description;
};

class Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message, std::map<std::string, std::string> metadata = {})
      : code_(code), message_(std::move(message)), metadata_(std::move(metadata)) {}

  // INVALID_ARGUMENT that names every violation. REQUIRES: !violations.empty()
  static Status invalid(std::vector<Violation> violations);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::vector<Violation>& violations() const { return violations_; }
  // What a program may read of the message: "needed_blocks" -> "9".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::vector<Violation> violations_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace llmsrv
