// The memory that a container may use.
#pragma once

#include <cstddef>
#include <string>

namespace tiny {

// The lowest limit on the way from this process's group, named in the file `groups`, up to the
// folder `root`, in the files of either version of cgroups. SIZE_MAX if there is none.
size_t memory_limit_of_groups(const std::string& groups, const std::string& root);

}  // namespace tiny
