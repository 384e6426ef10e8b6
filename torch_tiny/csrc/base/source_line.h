// The line of the user's program that is running, taken without the GIL.
#pragma once

#include <compare>
#include <string>

struct PyCodeObject;

namespace tiny {

struct SourceLine {
  PyCodeObject* code = nullptr;  // kept alive forever once seen
  int instruction = 0;           // byte offset into the code
  const char* node = nullptr;    // in backward: the name of the autograd node

  auto operator<=>(const SourceLine&) const = default;
};

// Frames of files that start with this are not the user's.
void add_library_folder(std::string folder);

// The innermost frame of this thread that is not inside torch or torch_tiny.
SourceLine source_line();

// "file.py:12", or "backward of AddBackward0". Takes the GIL.
std::string text_of(const SourceLine& where);

}  // namespace tiny
