/** Numbers with their units, for people. */

/** @param {number} value */
export function seconds(value) {
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

/**
 * Seconds always as seconds, so that two of them are compared at a glance.
 * @param {number} value
 */
export const wholeSeconds = (value) => `${value < 100 ? value.toFixed(2) : Math.round(value)} s`;

/**
 * A number of parameters, as in the names of models.
 * @param {number} number
 */
export function parameters(number) {
  const [share, letter] = number >= 1e9 ? [number / 1e9, "B"] : [number / 1e6, "M"];
  return `${Number(share.toPrecision(3))}${letter}`;
}

/** @param {number} number */
export const count = (number) => number.toLocaleString("en");

/** @param {number} number */
export function bytes(number) {
  const [share, unit] = number >= 1e9 ? [number / 1e9, "GB"] : [number / 1e6, "MB"];
  return `${Number(share.toPrecision(3))} ${unit}`;
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
