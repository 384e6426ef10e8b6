"""The text of the logarithm of the gamma function in WGSL; see wgsl_floats."""

GAMMA = """
fn tt_lgamma_near_one(t: f32) -> f32 {
  var p = 0.17742838 * t - 0.178384647;
  p = p * t + 0.0362746827;
  p = p * t - 0.0500305034;
  p = p * t + 0.10988377;
  p = p * t - 0.118890867;
  p = p * t + 0.124456055;
  p = p * t - 0.143355653;
  p = p * t + 0.169614464;
  p = p * t - 0.207415447;
  p = p * t + 0.270579457;
  p = p * t - 0.400685161;
  p = p * t + 0.822467029;
  return select((p * t - 0.577215672) * t, 0.0, t == 0.0);
}
fn tt_lgamma_near_two(t: f32) -> f32 {
  var p = 4.46598206e-5 * t - 2.10086597e-4;
  p = p * t + 5.3706154e-4;
  p = p * t - 1.20916544e-3;
  p = p * t + 2.88714166e-3;
  p = p * t - 7.38215446e-3;
  p = p * t + 2.05808673e-2;
  p = p * t - 6.7352511e-2;
  p = p * t + 3.22467029e-1;
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
