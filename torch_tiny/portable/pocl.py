"""What kernels need of OpenCL C's functions, for PoCL.

PoCL reads 18,000 declarations before every program, which takes longer than all that follows.
"""

from torch_tiny.portable.kind import C_BINARY, C_UNARY

OPTION = "-D_OPENCL_H_"  # as if its header had been read

_TYPES = {
    **{name: name for name in ("char", "short", "int", "long", "float", "double")},
    "uchar": "unsigned char",
    "ushort": "unsigned short",
    "uint": "unsigned int",
    "ulong": "unsigned long",
}
_WIDTHS = (2, 4, 8, 16)


def declarations() -> str:
    """The head of a program that is built with OPTION."""
    return "\n".join([*_types(), *_WORK_ITEMS, *_functions("float"), _DOUBLE, ""])


def _types() -> list[str]:
    lines = [f"typedef {c} {name};" for name, c in _TYPES.items() if name != c]
    for name in _TYPES:
        is_double = name == "double"
        lines += ["#ifdef cl_khr_fp64"] * is_double
        lines.append(f"#define as_{name}(x) __builtin_astype((x), {name})")
        for n in _WIDTHS:
            lines.append(f"typedef {name} {name}{n} __attribute__((ext_vector_type({n})));")
            lines.append(f"#define as_{name}{n}(x) __builtin_astype((x), {name}{n})")
        lines += ["#endif"] * is_double
    return lines


def _functions(dtype: str) -> list[str]:
    arguments = dict.fromkeys(C_UNARY, dtype) | dict.fromkeys(C_BINARY, f"{dtype}, {dtype}")
    return [f"TT_CONST {dtype} {name}({given});" for name, given in arguments.items()]


_WORK_ITEMS = (
    "typedef __SIZE_TYPE__ size_t;",
    "#define TT_CONST __attribute__((overloadable, const))",
    *(f"TT_CONST size_t get_{which}_id(uint);" for which in ("global", "local", "group")),
    "#define CLK_LOCAL_MEM_FENCE 1",
    "#define CLK_GLOBAL_MEM_FENCE 2",
    "__attribute__((overloadable, convergent)) void barrier(uint);",
    "__attribute__((overloadable, pure)) float vload_half(size_t, const __private half *);",
    "__attribute__((overloadable)) void vstore_half_rte(float, size_t, __private half *);",
    "#define INFINITY (__builtin_inff())",
    "#define NAN as_float(0x7fffffff)",
)
_DOUBLE = "\n".join(["#ifdef cl_khr_fp64", *_functions("double"), "#endif"])
