#include "cuda/library/nvidia_library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <optional>

namespace llmsrv::cuda {
namespace {

constexpr int kMode = RTLD_NOW | RTLD_LOCAL;

struct Opened {
  void* library;
  std::string path;
};

std::string path_of(void* library, const std::string& otherwise) {
  const link_map* map = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  return known ? map->l_name : otherwise;
}

std::optional<Opened> loaded_already(const LibrarySearch& search) {
  void* library = dlopen(search.soname.c_str(), kMode | RTLD_NOLOAD);
  if (library == nullptr) return std::nullopt;
  return Opened{library, path_of(library, search.soname)};
}

// A file that is there and does not load is an error, not a reason to look elsewhere: people would be misled.
std::optional<Opened> from_folders(const LibrarySearch& search) {
  for (const std::string& folder : search.folders) {
    const std::string path = folder + "/" + search.soname;
    if (!std::filesystem::exists(path)) continue;
    void* library = dlopen(path.c_str(), kMode);
    if (library == nullptr) throw LibraryError(path + " does not load: " + dlerror());
    return Opened{library, path};
  }
  return std::nullopt;
}

std::optional<Opened> from_system(const LibrarySearch& search) {
  void* library = dlopen(search.soname.c_str(), kMode);
  if (library == nullptr) return std::nullopt;
  return Opened{library, path_of(library, search.soname)};
}

LibraryError not_found(const LibrarySearch& search) {
  std::string folders;
  for (const std::string& folder : search.folders) folders += (folders.empty() ? "" : ", ") + folder;
  const std::string wheels = folders.empty() ? "no wheel of NVIDIA's is installed" : "it is not in " + folders;
  return LibraryError(search.soname + " was not found: it is not loaded, " + wheels + ", and the system has none; " +
                      search.remedy);
}

}  // namespace

NvidiaLibrary::NvidiaLibrary(const LibrarySearch& search) {
  std::optional<Opened> opened = loaded_already(search);
  if (!opened) opened = from_folders(search);
  if (!opened) opened = from_system(search);
  if (!opened) throw not_found(search);
  library_ = opened->library;
  path_ = opened->path;
}

void* NvidiaLibrary::symbol(const char* name) const {
  void* found = dlsym(library_, name);
  if (found == nullptr) throw LibraryError(path_ + " is too old or too new: it lacks " + name);
  return found;
}

std::vector<std::string> wheel_folders(const std::string& file, const std::string& wheel) {
  const std::filesystem::path site_packages = std::filesystem::absolute(file).parent_path().parent_path();
  const std::filesystem::path folder = site_packages / "nvidia" / wheel / "lib";
  if (!std::filesystem::is_directory(folder)) return {};
  return {folder.string()};
}

}  // namespace llmsrv::cuda
