// Exponentials, and loops over arrays of any length, in the vectors of the file that includes it.
#pragma once

namespace llmsrv::cpu::LLMSRV_ISA {
namespace {

// e^x = power (1 + r s)
struct Exponential {
  Vec::F power;
  Vec::F r;
  Vec::F s;
};

// REQUIRES: every x is NaN or in [-87.33, 89]
Exponential split_exp(Vec::F x) {
  using F = Vec::F;
  const F round_bias = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const F biased = Vec::fma(x, Vec::set1(1.44269504f), round_bias);
  const F n = Vec::sub(biased, round_bias);
  // ln 2 in two parts; n times the first is exact.
  const F r = Vec::fnma(n, Vec::set1(-2.12194440e-4f), Vec::fnma(n, Vec::set1(0.693359375f), x));
  F p = Vec::set1(1.0f / 5040);  // Taylor: |r| <= ln(2) / 2, so the next term is below 6e-9
  p = Vec::fma(p, r, Vec::set1(1.0f / 720));
  p = Vec::fma(p, r, Vec::set1(1.0f / 120));
  p = Vec::fma(p, r, Vec::set1(1.0f / 24));
  p = Vec::fma(p, r, Vec::set1(1.0f / 6));
  p = Vec::fma(p, r, Vec::set1(0.5f));
  p = Vec::fma(p, r, Vec::set1(1.0f));
  return {Vec::power_of_two(biased), r, p};
}

// e^x, relative error about 1e-7; 0 below the smallest normal float, infinity above 2^127.5, NaN stays.
Vec::F exp(Vec::F x) {
  const Vec::F lowest = Vec::set1(-87.336544f);  // ln 2^-126
  const Exponential parts = split_exp(Vec::max(lowest, Vec::min(Vec::set1(89.0f), x)));
  const Vec::F p = Vec::fma(parts.s, parts.r, Vec::set1(1.0f));
  return Vec::zero_if_less(x, lowest, Vec::mul(p, parts.power));
}

// tanh x = (e^2x - 1) / (e^2x + 1), relative error about 2e-7, also near 0: e^2x - 1 is never formed from e^2x.
Vec::F tanh(Vec::F x) {
  const Vec::F limit = Vec::set1(40.0f);
  const Vec::F twice = Vec::max(Vec::sub(Vec::zero(), limit), Vec::min(limit, Vec::add(x, x)));
  const Exponential parts = split_exp(twice);
  const Vec::F less_one = Vec::fma(parts.power, Vec::mul(parts.r, parts.s), Vec::sub(parts.power, Vec::set1(1.0f)));
  return Vec::div(less_one, Vec::add(less_one, Vec::set1(2.0f)));
}

// Calls f(i, n) for vectors at i of n lanes each: all full but for the last.
template <typename F>
void for_vectors(int count, const F& f) {
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) f(i, Vec::kLanes);
  if (i < count) f(i, count - i);
}
Vec::F load(const float* from, int n) { return n == Vec::kLanes ? Vec::load(from) : Vec::load_partial(from, n); }
void store(float* to, Vec::F value, int n) {
  if (n == Vec::kLanes) return Vec::store(to, value);
  Vec::store_partial(to, value, n);
}

}  // namespace
}  // namespace llmsrv::cpu::LLMSRV_ISA
