#include "cpp/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cpp/base/check.h"

namespace llmsrv {
namespace {

#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;  // the system may know it although the headers do not
#endif

std::system_error error_of(int code, const std::string& path) {
  return std::system_error(code, std::generic_category(), path);
}

// Closes a file at the end of a scope.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ < 0) throw error_of(errno, path);
  }
  ~OpenFile() { close(number_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const OpenFile file(path);
  struct stat status;
  if (fstat(file.number(), &status) != 0) throw error_of(errno, path);
  if (!S_ISREG(status.st_mode) || status.st_size == 0) throw error_of(EINVAL, path);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) throw error_of(errno, path);
  bytes_ = {static_cast<const std::byte*>(memory), bytes};
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void MappedFile::populate(std::size_t offset, std::size_t bytes) const {
  LLMSRV_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = offset / page * page;
  void* memory = const_cast<std::byte*>(bytes_.data()) + begin;
  const std::size_t length = offset + bytes - begin;
  if (length == 0 || madvise(memory, length, MADV_POPULATE_READ) == 0) return;
  if (errno != EINVAL) throw std::system_error(errno, std::generic_category(), "mapped file");
  madvise(memory, length, MADV_WILLNEED);  // an older system: only a hint
}

}  // namespace llmsrv
