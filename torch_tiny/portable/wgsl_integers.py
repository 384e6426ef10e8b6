"""The text of functions on 64 bits in WGSL: two words, the low one first."""

INTEGERS = """
fn tt_mul_high(a: u32, b: u32) -> u32 {
  let a0 = a & 0xffffu; let a1 = a >> 16u;
  let b0 = b & 0xffffu; let b1 = b >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  return a1 * b1 + (middle >> 16u) + (other >> 16u);
}
fn tt_sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn tt_neg64(a: vec2<u32>) -> vec2<u32> { return tt_sub64(vec2<u32>(0u, 0u), a); }
fn tt_abs64(a: vec2<u32>) -> vec2<u32> { return select(a, tt_neg64(a), (a.y >> 31u) != 0u); }
fn tt_divmod64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if (a.y == 0u && b.y == 0u && b.x != 0u) {
    return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u);
  }
  var q = vec2<u32>(0u, 0u);
  var r = vec2<u32>(0u, 0u);
  for (var i = 63; i >= 0; i--) {
    let word = select(a.x, a.y, i >= 32);
    let bit = (word >> u32(i & 31)) & 1u;
    r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
    if (r.y > b.y || (r.y == b.y && r.x >= b.x)) {
      r = tt_sub64(r, b);
      let one = 1u << u32(i & 31);
      q = select(vec2<u32>(q.x | one, q.y), vec2<u32>(q.x, q.y | one), i >= 32);
    }
  }
  return vec4<u32>(q, r);
}
fn tt_udiv(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
  return tt_divmod64(vec2<u32>(a, b), vec2<u32>(c, d)).xy;
}
fn tt_umod(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
  return tt_divmod64(vec2<u32>(a, b), vec2<u32>(c, d)).zw;
}
fn tt_div(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
  let q = tt_divmod64(tt_abs64(vec2<u32>(a, b)), tt_abs64(vec2<u32>(c, d))).xy;
  return select(q, tt_neg64(q), ((b ^ d) >> 31u) != 0u);
}
fn tt_mod(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
  let r = tt_divmod64(tt_abs64(vec2<u32>(a, b)), tt_abs64(vec2<u32>(c, d))).zw;
  return select(r, tt_neg64(r), (b >> 31u) != 0u);
}
fn tt_long(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let e = i32((bits >> 23u) & 0xffu) - 150;
  if (e < -23) { return vec2<u32>(0u, 0u); }
  if (e > 39) { return vec2<u32>(0u, 0x80000000u); }
  let m = (bits & 0x7fffffu) | 0x800000u;
  var r = vec2<u32>(0u, 0u);
  if (e <= 0) {
    r.x = m >> u32(-e);
  } else if (e < 32) {
    r = vec2<u32>(m << u32(e), (m >> 1u) >> u32(31 - e));
  } else {
    r.y = m << u32(e - 32);
  }
  return select(r, tt_neg64(r), (bits >> 31u) != 0u);
}
fn tt_ufloat(low: u32, high: u32) -> f32 {
  var zeros = countLeadingZeros(high);
  if (high == 0u) { zeros = 32u + countLeadingZeros(low); }
  if (zeros >= 40u) { return f32(low); }
  var top = high;
  var rest = low;
  if (zeros >= 32u) {
    top = low << (zeros - 32u);
    rest = 0u;
  } else if (zeros > 0u) {
    top = (high << zeros) | (low >> (32u - zeros));
    rest = low << zeros;
  }
  let m = top >> 8u;
  let cut = top & 0xffu;
  let up = cut > 128u || (cut == 128u && (rest != 0u || (m & 1u) != 0u));
  return f32(m + select(0u, 1u, up)) * bitcast<f32>((167u - zeros) << 23u);
}
fn tt_float(low: u32, high: u32) -> f32 {
  let m = tt_abs64(vec2<u32>(low, high));
  let r = tt_ufloat(m.x, m.y);
  return select(r, -r, (high >> 31u) != 0u);
}
"""
