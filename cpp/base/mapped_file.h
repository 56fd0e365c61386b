// A read-only mapping of one whole file, kept for as long as somebody holds it.
// Thread rule: constant after construction; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace llmsrv {

class MappedFile {
 public:
  // Throws std::system_error when there is no such regular file, or it cannot be mapped. The file must not become
  // shorter while it is mapped: whoever replaces it does so by a rename.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Brings the pages of a range into memory, from the disk if need be, and into the tables of this process. Throws
  // std::system_error when the disk cannot give them. REQUIRES: the range lies in the file
  void populate(std::size_t offset, std::size_t bytes) const;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace llmsrv
