// Prints kernel_digests() of the table named, a line each: the hash and what it is of.
#include <cstdio>
#include <string>

#include "python/bindings/testing/kernel_digests.h"

int main(int argc, char** argv) {
  for (const auto& [name, hash] : llmsrv::testing::kernel_digests(argc > 1 ? argv[1] : "scalar")) {
    std::puts((std::to_string(hash) + " " + name).c_str());
  }
}
