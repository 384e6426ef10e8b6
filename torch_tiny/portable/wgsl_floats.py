"""The text of float functions in WGSL, within a few units in the last place.

wgsl.py writes polynomial(x: a, b, c) out.
"""

FLOATS = """
fn tt_hide(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) ^ (bitcast<u32>(INFINITY) ^ 0x7f800000u));
}
fn tt_apart(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) ^ (bitcast<u32>(INFINITY) & 1u));
}
fn tt_upper(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
fn tt_left(x: f32, a: f32, b: f32) -> f32 {
  let au = tt_upper(a);
  let bu = tt_upper(b);
  let al = a - au;
  let bl = b - bu;
  return tt_hide(tt_hide(tt_hide(x - au * bu) - au * bl) - al * bu) - al * bl;
}
fn tt_better(r: f32, change: f32) -> f32 {
  return select(r, tt_hide(r) + change, abs(change) < abs(r) * 2.38418579e-7);
}
fn tt_divide(a: f32, b: f32) -> f32 {
  let scale = select(1.0, 0.25, abs(b) > 4.25352959e37);
  let x = tt_hide(a) * scale;
  let y = tt_apart(b) * scale;
  let q = tt_hide(x / y);
  return tt_better(q, tt_left(x, q, y) / y);
}
fn tt_sqrt(x: f32) -> f32 {
  let r = tt_hide(sqrt(x));
  return tt_better(r, 0.5 * tt_left(x, r, r) / r);
}
fn tt_round_bfloat(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let r = (bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u;
  return bitcast<f32>(select(r, bits, (bits & 0x7fffffffu) > 0x7f800000u));
}
fn tt_round_half(x: f32) -> f32 {
  let size = bitcast<u32>(x) & 0x7fffffffu;
  let normal = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
  let small = bitcast<u32>(tt_hide(tt_hide(bitcast<f32>(size)) + 0.5) - 0.5);
  var r = select(normal, small, size < 0x38800000u);
  r = select(r, 0x7f800000u, size >= 0x477ff000u);
  r = select(r, size, size > 0x7f800000u);
  return bitcast<f32>(r | (bitcast<u32>(x) & 0x80000000u));
}
fn tt_neg(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u); }
fn tt_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn tt_isinf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn tt_maximum(a: f32, b: f32) -> f32 { return select(a, b, (a < b) || tt_isnan(b)); }
fn tt_minimum(a: f32, b: f32) -> f32 { return select(a, b, (b < a) || tt_isnan(b)); }
fn tt_fmax(a: f32, b: f32) -> f32 { return select(a, b, (a < b) || tt_isnan(a)); }
fn tt_fmin(a: f32, b: f32) -> f32 { return select(a, b, (b < a) || tt_isnan(a)); }
fn tt_largest_nan(x: f32) -> f32 {
  return bitcast<f32>(select(bitcast<u32>(x), 0x7fffffffu, tt_isnan(x)));
}
fn tt_copysign(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}
fn tt_nan() -> f32 { return bitcast<f32>(bitcast<u32>(INFINITY) | 0x400000u); }
fn tt_exp(x: f32) -> f32 {
  let low = select(x, -104.0, x < -104.0);
  let inside = select(low, 89.0, low > 89.0);
  let k = round(inside * 1.44269504);
  let r = (inside - k * 0.693145752) - k * 1.42860677e-6;
  var p = polynomial(r: 1.98756915e-4, 1.39819995e-3, 8.33345191e-3, 4.16657959e-2, 1.66666655e-1,
    5.00000012e-1);
  p = (p * (r * r) + r) + 1.0;
  return select(tt_scaled(p, i32(k)), x, tt_isnan(x));
}
fn tt_scaled(p: f32, n: i32) -> f32 {
  let halved = n >> 1u;
  let first = bitcast<f32>(bitcast<u32>(halved + 127) << 23u);
  return p * first * bitcast<f32>(bitcast<u32>(n - halved + 127) << 23u);
}
fn tt_exp2(x: f32) -> f32 {
  let low = select(x, -151.0, x < -151.0);
  let inside = select(low, 129.0, low > 129.0);
  let k = round(inside);
  let p = tt_exp((inside - k) * 0.6931471805599453);
  return select(tt_scaled(p, i32(k)), x, tt_isnan(x));
}
fn tt_expm1(x: f32) -> f32 {
  if (abs(x) > 0.5) { return tt_exp(x) - 1.0; }
  var p = polynomial(x: 2.75573192e-6, 2.48015873e-5, 1.98412698e-4, 1.38888889e-3, 8.33333333e-3,
    4.16666667e-2, 1.66666667e-1, 0.5);
  return select(p * (x * x) + x, x, x == 0.0);
}
fn tt_log_parts(x: f32) -> vec2<f32> {
  let small = x < 1.17549435e-38;
  let a = select(x, x * 16777216.0, small);
  let bits = bitcast<i32>(a);
  let e = (bits - 0x3f350000) & -8388608;
  let m = bitcast<f32>(bits - e);
  return vec2<f32>(m, f32(e) * 1.1920929e-7 - select(0.0, 24.0, small));
}
fn tt_log_special(x: f32, r: f32) -> f32 {
  let zero = select(r, -INFINITY, (bitcast<u32>(x) & 0x7fffffffu) == 0u);
  let negative = select(zero, tt_nan(), x < 0.0);
  return select(negative, x, tt_isnan(x) || bitcast<u32>(x) == 0x7f800000u);
}
fn tt_log_near(x: f32) -> f32 {
  let z = x * x;
  var p = polynomial(x: 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1,
    1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1);
  return p * x * z;
}
fn tt_log(x: f32) -> f32 {
  let parts = tt_log_parts(x);
  let f = parts.x - 1.0;
  let z = f * f;
  let y = tt_log_near(f) - 2.12194440e-4 * parts.y - 0.5 * z;
  return tt_log_special(x, (f + y) + 0.693359375 * parts.y);
}
fn tt_log2(x: f32) -> f32 {
  let parts = tt_log_parts(x);
  let f = parts.x - 1.0;
  let y = tt_log_near(f) - 0.5 * (f * f);
  let r = ((y * 0.44269504 + f * 0.44269504) + y) + f;
  return tt_log_special(x, r + parts.y);
}
fn tt_log10(x: f32) -> f32 {
  let parts = tt_log_parts(x);
  let f = parts.x - 1.0;
  let y = tt_log_near(f) - 0.5 * (f * f);
  let r = (f + y) * 7.00731903e-4 + y * 4.33593750e-1 + f * 4.33593750e-1;
  return tt_log_special(x, (r + parts.y * 2.48745663e-4) + parts.y * 3.00781250e-1);
}
fn tt_log1p(x: f32) -> f32 {
  if (abs(x) < 0.25) {
    return select(x + (tt_log_near(x) - 0.5 * (x * x)), x, x == 0.0);
  }
  let u = tt_hide(1.0 + x);
  let rest = select(x - (u - 1.0), 1.0 - (u - x), x > 1.0);
  let r = tt_log(u) + rest / u;
  return select(r, u, tt_isinf(u) || u <= 0.0) + select(0.0, tt_log(u), u <= 0.0);
}
fn tt_two_over_pi(i: i32) -> u32 {
  switch (i) {
    case 0: { return 0x28be60dbu; }
    case 1: { return 0x9391054au; }
    case 2: { return 0x7f09d5f4u; }
    case 3: { return 0x7d4d3770u; }
    case 4: { return 0x36d8a566u; }
    case 5: { return 0x4f10e410u; }
    default: { return 0u; }
  }
}
fn tt_reduce(x: f32) -> vec2<f32> {
  if (!(abs(x) > 8192.0)) {
    let k = round(x * 0.6366197723675814);
    var r = x - k * 1.5703125;
    r = r - k * 4.837512969970703125e-4;
    r = r - k * 7.54978995489188216e-8;
    return vec2<f32>(r, f32(i32(k) & 3));
  }
  let bits = bitcast<u32>(x);
  let m = (bits << 8u) | 0x80000000u;
  let e = i32((bits >> 23u) & 0xffu) - 126;
  let i = e >> 5u;
  let s = u32(e & 31);
  let t = tt_two_over_pi(i + 2);
  var hi = tt_two_over_pi(i - 1);
  var mid = tt_two_over_pi(i);
  var lo = tt_two_over_pi(i + 1);
  if (s != 0u) {
    hi = (hi << s) | (mid >> (32u - s));
    mid = (mid << s) | (lo >> (32u - s));
    lo = (lo << s) | (t >> (32u - s));
  }
  let first = tt_mul_high(m, lo);
  var low = m * mid + first;
  var high = tt_mul_high(m, mid) + select(0u, 1u, low < first) + m * hi;
  var q = i32(high >> 30u);
  high = high & 0x3fffffffu;
  if ((high & 0x20000000u) != 0u) {
    high = high - 0x40000000u;
    q = q + 1;
  }
  var r = f32(bitcast<i32>(high)) * 1.4629180792671596e-9 + f32(low) * 3.4061215800304e-19;
  if ((bits & 0x80000000u) != 0u) {
    r = -r;
    q = -q;
  }
  return vec2<f32>(r, f32(q & 3));
}
fn tt_sin_near(r: f32) -> f32 {
  let s = r * r;
  var p = polynomial(s: 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1);
  return p * (s * r) + r;
}
fn tt_cos_near(r: f32) -> f32 {
  let s = r * r;
  return polynomial(s: 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0);
}
fn tt_wave(x: f32, shift: i32) -> f32 {
  if (tt_isnan(x) || tt_isinf(x)) { return tt_nan(); }
  let reduced = tt_reduce(x);
  let q = i32(reduced.y) + shift;
  let v = select(tt_sin_near(reduced.x), tt_cos_near(reduced.x), (q & 1) != 0);
  return select(v, -v, (q & 2) != 0);
}
fn tt_sin(x: f32) -> f32 { return select(tt_wave(x, 0), x, abs(x) < 1e-4); }
fn tt_cos(x: f32) -> f32 { return tt_wave(x, 1); }
fn tt_tan(x: f32) -> f32 { return select(tt_wave(x, 0) / tt_wave(x, 1), x, abs(x) < 1e-4); }
fn tt_sinh(x: f32) -> f32 {
  let a = abs(x);
  if (a < 1.0) {
    let s = x * x;
    return x + x * s * (1.66667160e-1 + s * (8.33028376e-3 + s * 2.03721912e-4));
  }
  let e = tt_exp(0.5 * a);
  let r = select((0.5 * e) * e - 0.5 / (e * e), (0.5 * e) * e, a > 15.0);
  return select(tt_copysign(r, x), x, tt_isnan(x));
}
fn tt_cosh(x: f32) -> f32 {
  let e = tt_exp(0.5 * abs(x));
  return (0.5 * e) * e + select(0.5 / (e * e), 0.0, abs(x) > 15.0);
}
fn tt_tanh(x: f32) -> f32 {
  let a = abs(x);
  if (a < 0.625) {
    let s = x * x;
    var p = polynomial(s: -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2,
      1.33314422036e-1, -3.33332819422e-1);
    return tt_copysign(p * s * x + x, x);
  }
  let r = select(1.0 - 2.0 / (tt_exp(2.0 * a) + 1.0), 1.0, a > 10.0);
  return select(tt_copysign(r, x), x, tt_isnan(x));
}
fn tt_asin_near(x: f32) -> f32 {
  let z = x * x;
  var p = polynomial(z: 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2,
    1.6666752422e-1);
  return p * z * x + x;
}
fn tt_asin(x: f32) -> f32 {
  let a = abs(x);
  if (a > 1.0) { return tt_nan(); }
  if (a <= 0.5) { return tt_asin_near(x); }
  let r = 1.57079632679 - 2.0 * tt_asin_near(sqrt(0.5 * (1.0 - a)));
  return select(tt_copysign(r, x), x, tt_isnan(x));
}
fn tt_acos(x: f32) -> f32 {
  if (abs(x) > 1.0) { return tt_nan(); }
  if (x < -0.5) { return 3.14159265359 - 2.0 * tt_asin_near(sqrt(0.5 * (1.0 + x))); }
  if (x > 0.5) { return 2.0 * tt_asin_near(sqrt(0.5 * (1.0 - x))); }
  return 1.57079632679 - tt_asin_near(x);
}
fn tt_atan_near(x: f32) -> f32 {
  let z = x * x;
  var p = polynomial(z: 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1);
  return p * z * x + x;
}
fn tt_atan(x: f32) -> f32 {
  let a = abs(x);
  var r = 0.0;
  if (a > 2.414213562373095) {
    r = 1.57079632679 - tt_atan_near(1.0 / a);
  } else if (a > 0.4142135623730950) {
    r = 0.785398163397 + tt_atan_near((a - 1.0) / (a + 1.0));
  } else {
    r = tt_atan_near(a);
  }
  return select(tt_copysign(r, x), x, tt_isnan(x));
}
fn tt_atan2(y: f32, x: f32) -> f32 {
  if (tt_isnan(x) || tt_isnan(y)) { return tt_nan(); }
  let ay = abs(y);
  let ax = abs(x);
  var r = 0.0;
  if (ay == ax) {
    r = select(0.785398163397, 0.0, ay == 0.0);
  } else if (ay > ax) {
    r = 1.57079632679 - tt_atan(tt_divide(ax, ay));
  } else {
    r = tt_atan(tt_divide(ay, ax));
  }
  let left = (bitcast<u32>(x) & 0x80000000u) != 0u;
  return tt_copysign(select(r, 3.14159265359 - r, left), y);
}
fn tt_asinh(x: f32) -> f32 {
  let a = abs(x);
  if (a > 1e9) { return tt_copysign(tt_log(a) + 0.69314718056, x); }
  let r = tt_log1p(a + a * a / (1.0 + sqrt(a * a + 1.0)));
  return select(tt_copysign(r, x), x, tt_isnan(x));
}
fn tt_acosh(x: f32) -> f32 {
  if (x < 1.0) { return tt_nan(); }
  if (x > 1e9) { return tt_log(x) + 0.69314718056; }
  let t = x - 1.0;
  return tt_log1p(t + sqrt(2.0 * t + t * t));
}
fn tt_atanh(x: f32) -> f32 {
  let a = abs(x);
  let r = 0.5 * tt_log1p(2.0 * a / (1.0 - a));
  return select(select(tt_copysign(r, x), tt_nan(), a > 1.0), x, tt_isnan(x));
}
fn tt_erf(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  if (t > 0.927734375) {
    var r = -1.72853470e-5 * t + 3.83197126e-4;
    let u = -3.88396438e-3 * t + 2.42546219e-2;
    r = r * s + u;
    r = r * t - 1.06777877e-1;
    r = r * t - 6.34846687e-1;
    r = r * t - 1.28717512e-1;
    r = r * t - t;
    return tt_copysign(select(1.0 - tt_exp(r), 1.0, t > 4.0), x);
  }
  var r = polynomial(s: -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1,
    -3.76125336e-1, 1.28379166e-1);
  return r * x + x;
}
fn tt_erfc(x: f32) -> f32 {
  if (x < 0.5 || tt_isnan(x)) { return 1.0 - tt_erf(x); }
  if (x > 10.5) { return 0.0; }
  let high = bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
  let rest = (high - x) * (high + x);
  let t = 1.0 / (1.0 + 0.5 * x);
  var p = polynomial(t: 0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806,
    0.09678418, 0.37409196, 1.00002368, -1.26551223);
  return t * tt_exp(-high * high) * tt_exp(rest + p);
}
fn tt_product(a: f32, b: f32) -> vec2<f32> {
  let ah = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
  let bh = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
  let al = tt_hide(a - ah);
  let bl = tt_hide(b - bh);
  let p = tt_hide(a * b);
  return vec2<f32>(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl);
}
fn tt_pow_positive(x: f32, y: f32) -> f32 {
  let parts = tt_log_parts(x);
  let f = parts.x - 1.0;
  let d = tt_hide(parts.x + 1.0);
  let q = tt_hide(f / d);
  let back = tt_product(q, d);
  let ql = (((f - back.x) - back.y) - q * (parts.x - (d - 1.0))) / d;
  let s = q * q;
  let seventh = 0.142857143 + s * (0.111111111 + s * 0.0909090909);
  let tail = s * (0.333333333 + s * (0.2 + s * seventh));
  let hi = 2.0 * q;
  let a = parts.y * 0.693359375;
  let sum = tt_hide(a + hi);
  let back_hi = tt_hide(sum - a);
  let lost = (hi - back_hi) + (a - tt_hide(sum - back_hi));
  let lo = 2.0 * (ql + q * tail) - 2.12194440e-4 * parts.y + lost;
  let top = tt_hide(sum + lo);
  let bottom = lo - tt_hide(top - sum);
  let limit = y * top;
  if (limit > 89.0) { return INFINITY; }
  if (limit < -105.0) { return 0.0; }
  let p = tt_product(y, top);
  let rest = p.y + y * bottom;
  let e = tt_exp(p.x);
  return e + e * rest;
}
fn tt_pow(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (tt_isnan(x) || tt_isnan(y)) { return tt_nan(); }
  let a = abs(x);
  let is_integer = trunc(y) == y;
  let odd = is_integer && abs(y) < 16777216.0 && trunc(y * 0.5) * 2.0 != y;
  let negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
  var r = 0.0;
  if (tt_isinf(y)) {
    if (a == 1.0) { return 1.0; }
    return select(0.0, INFINITY, (a > 1.0) == (y > 0.0));
  }
  if (a == 0.0 || tt_isinf(x)) {
    r = select(0.0, INFINITY, (a != 0.0) == (y > 0.0));
  } else {
    if (negative && !is_integer) { return tt_nan(); }
    r = tt_pow_positive(a, y);
  }
  return select(r, tt_neg(r), negative && odd);
}
fn tt_hypot(x: f32, y: f32) -> f32 {
  if (tt_isinf(x) || tt_isinf(y)) { return INFINITY; }
  let a = select(abs(x), abs(y), abs(y) > abs(x));
  let b = select(abs(y), abs(x), abs(y) > abs(x));
  if (tt_isnan(x) || tt_isnan(y)) { return tt_nan(); }
  if (a == 0.0) { return 0.0; }
  let r = tt_divide(b, a);
  return a * sqrt(1.0 + r * r);
}
fn tt_fmod(x: f32, y: f32) -> f32 {
  if (tt_isnan(x) || tt_isnan(y) || tt_isinf(x) || y == 0.0) { return tt_nan(); }
  let a = abs(x);
  let b = abs(y);
  if (a < b) { return x; }
  var rest = a;
  for (var i = 0; i < 300 && rest >= b; i++) {
    let apart = i32(bitcast<u32>(rest) >> 23u) - i32(bitcast<u32>(b) >> 23u);
    var part = bitcast<f32>(bitcast<u32>(b) + (bitcast<u32>(apart) << 23u));
    if (part > rest) { part = part * 0.5; }
    rest = tt_hide(rest - part);
  }
  return tt_copysign(rest, x);
}
fn tt_nextafter(x: f32, y: f32) -> f32 {
  if (tt_isnan(x) || tt_isnan(y)) { return tt_nan(); }
  if (x == y) { return y; }
  if (x == 0.0) { return tt_copysign(bitcast<f32>(1u), y); }
  let up = (y > x) == (x > 0.0);
  return bitcast<f32>(bitcast<u32>(x) + select(0xffffffffu, 1u, up));
}
fn tt_lgamma_near_one(t: f32) -> f32 {
  var p = polynomial(t: 0.17742838, -0.178384647, 0.0362746827, -0.0500305034, 0.10988377,
    -0.118890867, 0.124456055, -0.143355653, 0.169614464, -0.207415447, 0.270579457, -0.400685161,
    0.822467029);
  return select((p * t - 0.577215672) * t, 0.0, t == 0.0);
}
fn tt_lgamma_near_two(t: f32) -> f32 {
  var p = polynomial(t: 4.46598206e-5, -2.10086597e-4, 5.3706154e-4, -1.20916544e-3,
    2.88714166e-3, -7.38215446e-3, 2.05808673e-2, -6.7352511e-2, 3.22467029e-1);
  return select((p * t + 4.22784328e-1) * t, 0.0, t == 0.0);
}
fn tt_lgamma_positive(x: f32) -> f32 {
  if (x < 0.5) { return tt_lgamma_near_one(x) - tt_log(x); }
  if (x < 1.5) { return tt_lgamma_near_one(x - 1.0); }
  if (x < 3.0) { return tt_lgamma_near_two(x - 2.0); }
  if (x < 8.0) {
    var y = x;
    var product = 1.0;
    for (var i = 0; i < 5 && y >= 3.0; i++) {
      y = y - 1.0;
      product = product * y;
    }
    return tt_log(product) + tt_lgamma_near_two(y - 2.0);
  }
  let s = 1.0 / x;
  let z = s * s;
  let rest = 0.418938533 + s * (8.33333333e-2 + z * (7.93650794e-4 * z - 2.77777778e-3));
  return (x - 0.5) * (tt_log(x) - 1.0) + rest;
}
fn tt_lgamma(x: f32) -> f32 {
  if (tt_isnan(x)) { return x; }
  if (tt_isinf(x)) { return INFINITY; }
  if (x >= 0.5) { return tt_lgamma_positive(x); }
  let a = abs(x);
  if (a < 1e-10) { return -tt_log(a); }
  if (x > 0.0) { return tt_lgamma_positive(x); }
  let apart = abs(a - round(a));
  if (apart == 0.0) { return INFINITY; }
  return tt_log(3.14159265359 / (a * tt_sin(3.14159265359 * apart))) - tt_lgamma_positive(a);
}
"""
