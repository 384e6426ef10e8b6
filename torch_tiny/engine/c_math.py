"""C for float operators: templates, prototypes of libm, helpers with PyTorch's NaN rules."""

from collections.abc import Sequence

from torch_tiny.uops import DType, dtypes

_BUILTINS = ("sqrt", "trunc", "floor", "ceil", "rint", "fabs")
# {0}, {1} are the operands, {f} is the suffix: f for float, nothing for double.
_TEMPLATES = {
    "add": "({0}+{1})",
    "sub": "({0}-{1})",
    "mul": "({0}*{1})",
    "div": "({0}/{1})",
    "neg": "(-{0})",
    "reciprocal": "(1/{0})",
    **{name: f"tt_{name}{{f}}({{0}}, {{1}})" for name in ("maximum", "minimum", "fmax", "fmin")},
    **{name: f"__builtin_{name}{{f}}({{0}})" for name in _BUILTINS},
    "largest_nan": "tt_largest_nan{f}({0})",
    "copysign": "__builtin_copysign{f}({0}, {1})",
}

_UNARY = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp"),
    *("exp2", "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "tan", "tanh"),
)
# How many operands functions of libmvec have: gcc calls their vector variants inside loops.
_VECTOR = {**dict.fromkeys(_UNARY, 1), "atan2": 2, "hypot": 2, "pow": 2}
_ARITY = {**_VECTOR, "lgamma": 1, "fmod": 2, "nextafter": 2}

# One compare more than C's max: NaN wins, as in torch.maximum. `|` keeps it free of branches.
_COMPARISONS = """
{how} {t} tt_maximum{f}({t} a, {t} b) {{ return (a < b) | (b != b) ? b : a; }}
{how} {t} tt_minimum{f}({t} a, {t} b) {{ return (b < a) | (b != b) ? b : a; }}
{how} {t} tt_fmax{f}({t} a, {t} b) {{ return (a < b) | (a != a) ? b : a; }}
{how} {t} tt_fmin{f}({t} a, {t} b) {{ return (b < a) | (a != a) ? b : a; }}
{how} {t} tt_largest_nan{f}({t} a) {{ return a != a ? {nan} : a; }}
"""


def comparisons(how: str, nan: str, double_nan: str) -> str:
    """Declared as `how`; the NaNs are those with the largest bits."""
    floats = _COMPARISONS.format(how=how, t="float", f="f", nan=nan)
    return floats + _COMPARISONS.format(how=how, t="double", f="", nan=double_nan)


# gcc 12 converts _Float16 one by one; written in integers, after Fabian Giesen, loops vectorize.
_HALVES = """
typedef union { uint32_t bits; float value; } tt_bits;
static inline float tt_from_half(uint16_t half) {
  uint32_t shifted = (uint32_t)(half & 0x7fff) << 13, exponent = shifted & 0x0f800000;
  uint32_t normal = shifted + (112u << 23);
  float tiny = (tt_bits){.bits = normal + (1u << 23)}.value - (tt_bits){.bits = 113u << 23}.value;
  uint32_t bits = exponent == 0x0f800000 ? normal + (112u << 23) : normal;
  bits = exponent == 0 ? (tt_bits){.value = tiny}.bits : bits;
  return (tt_bits){.bits = bits | (uint32_t)(half & 0x8000) << 16}.value;
}
static inline uint16_t tt_to_half(float value) {
  uint32_t all = (tt_bits){.value = value}.bits, bits = all & 0x7fffffff;
  uint32_t normal = (bits + 0xc8000fff + (bits >> 13 & 1)) >> 13;
  float tiny = (tt_bits){.bits = bits}.value + (tt_bits){.bits = 126u << 23}.value;
  uint32_t half = bits < 113u << 23 ? (tt_bits){.value = tiny}.bits - (126u << 23) : normal;
  half = bits >= 143u << 23 ? (bits > 255u << 23 ? 0x7e00 : 0x7c00) : half;
  return (uint16_t)(half | all >> 16 & 0x8000);
}
"""
# libmvec's expf leaves what overflows or vanishes to scalar code, and a masked softmax is full of
# exp(-inf). This one has no branches, is as fast, and off by at most 1.01 ulp (libmvec: 2.6).
_EXP = """
#ifdef __FMA__
#define TT_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define TT_FMA(a, b, c) ((a) * (b) + (c))
#endif
static inline float tt_expf(float x) {
  float inside = x < -104.0f ? -104.0f : x;
  inside = inside > 89.0f ? 89.0f : inside;
  float shifted = TT_FMA(inside, 1.44269504f, 12582912.0f), k = shifted - 12582912.0f;
  float r = TT_FMA(k, -1.42860677e-6f, TT_FMA(k, -0.693145752f, inside));
  float p = TT_FMA(1.98756915e-4f, r, 1.39819995e-3f);
  p = TT_FMA(p, r, 8.33345191e-3f);
  p = TT_FMA(p, r, 4.16657959e-2f);
  p = TT_FMA(p, r, 1.66666655e-1f);
  p = TT_FMA(p, r, 5.00000012e-1f);
  p = TT_FMA(p, r * r, r) + 1.0f;
  int32_t n = (int32_t)((tt_bits){.value = shifted}.bits - 0x4b400000u), half = n >> 1;
  float first = (tt_bits){.bits = (uint32_t)(half + 127) << 23}.value;
  return p * first * (tt_bits){.bits = (uint32_t)(n - half + 127) << 23}.value;
}
"""
# A lane of a vector for each matrix: see c_lanes.py.
_VECTORS = """
typedef {f} {v} __attribute__((vector_size(64)));
typedef {i} {w} __attribute__((vector_size(64)));
static inline {v} {v}_pick({w} m, {v} a, {v} b) {{ return ({v})((({w})a & m) | (({w})b & ~m)); }}
static inline {w} {w}_pick({w} m, {w} a, {w} b) {{ return (a & m) | (b & ~m); }}
static inline {v} {v}_sqrt({v} x) {{
  for (int l = 0; l < {n}; l++) x[l] = __builtin_sqrt{s}(x[l]);
  return x;
}}
static inline _Bool {w}_any({w} m) {{
  {i} any = 0;
  for (int l = 0; l < {n}; l++) any |= m[l];
  return any != 0;
}}
static inline {v} {v}_of({w} x) {{ return __builtin_convertvector(x, {v}); }}
"""
_OWN = {("exp", dtypes.float32): "tt_expf"}

# A zero that gcc concludes nothing from: others may write it.
HELPERS = (
    "\nint32_t tt_zero;\n"
    + comparisons("static inline", '__builtin_nanf("0x3fffff")', '__builtin_nan("0x7ffffffffffff")')
    + _HALVES
    + _EXP
    + _VECTORS.format(f="float", i="int32_t", v="tt_f16", w="tt_i16", n=16, s="f")
    + _VECTORS.format(f="double", i="int64_t", v="tt_f8", w="tt_i8", n=8, s="")
)


def suffix(dtype: DType) -> str:
    return "" if dtype == dtypes.float64 else "f"


def expression(name: str, dtype: DType, operands: Sequence[str]) -> str:
    """The C expression for call(name, *operands)."""
    if name in _TEMPLATES:
        return _TEMPLATES[name].format(*operands, f=suffix(dtype))
    return f"{_OWN.get((name, dtype), name + suffix(dtype))}({', '.join(operands)})"


def is_function(name: str | None) -> bool:
    return name in _ARITY


def is_scalar(name: str | None) -> bool:
    """Whether it is a function that works on one number at a time."""
    return is_function(name) and name not in _VECTOR


def prototype(name: str, dtype: DType) -> str:
    """Our own declaration: with it gcc knows of the vector variant and hoists calls."""
    if (name, dtype) in _OWN:
        return ""
    kind = "double" if dtype == dtypes.float64 else "float"
    simd = 'simd("notinbranch"), ' if name in _VECTOR else ""
    arguments = ", ".join([kind] * _ARITY[name])
    return f"__attribute__(({simd}const)) {kind} {name}{suffix(dtype)}({arguments});"
