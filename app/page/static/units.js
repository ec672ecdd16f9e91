/** Numbers with their units, for people. */

/** @param {number} value */
export function seconds(value) {
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

/** @param {number} usd */
export function dollars(usd) {
  if (usd === 0) return "$0";
  return usd < 0.01 ? `${Number((usd * 1e6).toPrecision(3))} µ$` : `$${usd.toFixed(2)}`;
}

/** @param {number} spent */
export function joules(spent) {
  return spent >= 1000 ? `${Number((spent / 1000).toPrecision(3))} kJ` : `${Number(spent.toPrecision(3))} J`;
}
