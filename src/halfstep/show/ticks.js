// The ticks of an axis with their labels. All labels of an axis are written alike, with the decimals
// of the step between two ticks, so no two are equal. An axis of whole numbers has no others.
function ticksOf(low, high, count, whole = false) {
  const room = (high - low) / count || 1;
  const raw = whole ? Math.max(1, room) : room;
  const exponent = Math.floor(Math.log10(raw));
  const factor = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).find((step) => step * 10 ** exponent >= raw * (1 - 1e-9));
  const step = factor * 10 ** exponent;
  const last = { 1: exponent, 2: exponent, 2.5: exponent - 1, 5: exponent, 10: exponent + 1 }[factor];
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const scientific = largest >= 1e7 || largest < 1e-3;
  const label = (value) => {
    if (!scientific) return value.toFixed(Math.max(0, -last));
    return value === 0 ? "0" : value.toExponential(Math.max(0, Math.floor(Math.log10(largest)) - last));
  };
  const ticks = [];
  for (let number = Math.ceil(low / step - 1e-6); number * step <= high + step * 1e-6; number += 1) {
    ticks.push({ value: number * step, label: label(number * step) });
  }
  return ticks;
}

// The same for an axis of powers of two, between the exponents `low` and `high`.
function powersOf(low, high, count) {
  const exponents = ticksOf(low, high, count, true).map((tick) => tick.value);
  const plain = exponents.every((power) => 2 ** power < 1e7 && 2 ** power >= 1e-3);
  return exponents.map((power) => ({ value: 2 ** power, label: plain ? String(Number((2 ** power).toFixed(4))) : `2^${power}` }));
}
