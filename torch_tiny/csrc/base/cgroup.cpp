#include "base/cgroup.h"

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace tiny {
namespace {

// "max" or no file mean that there is no limit.
size_t limit_in(const std::string& file) {
  std::ifstream in(file);
  size_t bytes = 0;
  return in >> bytes ? bytes : SIZE_MAX;
}

size_t lowest_limit(const std::string& root, std::string group, const std::string& file) {
  size_t lowest = limit_in(root + "/" + file);
  while (group.size() > 1) {
    lowest = std::min(lowest, limit_in(root + group + "/" + file));
    group.resize(group.rfind('/'));
  }
  return lowest;
}

}  // namespace

// A line is hierarchy:controllers:group; version 2 is hierarchy 0 without controllers.
size_t memory_limit_of_groups(const std::string& groups, const std::string& root) {
  size_t lowest = SIZE_MAX;
  std::ifstream in(groups);
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) {
      continue;
    }
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const auto group = line.substr(second + 1);
    if (controllers == ",,") {
      lowest = std::min(lowest, lowest_limit(root, group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      lowest = std::min(lowest, lowest_limit(root + "/memory", group, "memory.limit_in_bytes"));
    }
  }
  return lowest;
}

}  // namespace tiny
