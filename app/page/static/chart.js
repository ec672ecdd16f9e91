/** Line charts: one or more lines over numbers or names, told apart by colour, dashes and marks. */

import { html, svg } from "./vendor/lit-html.js";

/** @import { Line } from "./types.d.ts" */

const WIDTH = 380;
const HEIGHT = 230;
const LEFT = 52;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 40;
const TICKS = 4;
const STYLES = 6; // of lines, in style.css

/**
 * A chart with its legend.
 * @param {string} title
 * @param {string} across what the horizontal axis has
 * @param {string} up unit of the vertical one
 * @param {Line[]} lines
 * @param {number} most top of the vertical axis, at least
 */
export function chart(title, across, up, lines, most) {
  const points = lines.flatMap((line) => line.points);
  const names = points.some(({ x }) => typeof x === "string") ? [...new Set(points.map(({ x }) => String(x)))] : null;
  const place = (/** @type {number | string} */ x) => (names ? names.indexOf(String(x)) : Number(x));
  const right = Math.max(names ? names.length - 1 : 0, ...points.map(({ x }) => place(x)), 1e-9);
  const top = rounded(Math.max(most, ...points.map(({ y }) => y), 1e-9));
  const x = (/** @type {number | string} */ value) => LEFT + (place(value) / right) * (WIDTH - LEFT - RIGHT);
  const y = (/** @type {number} */ value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  const across_ = names ?? ticks(rounded(right)).filter((value) => value <= right * 1.001);
  return html`<figure class="chart">
    <figcaption>${title}, ${up}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${said(title, lines, up)}>
      ${ticks(top).map(
        (value) => svg`<line class="grid" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${y(value)} y2=${y(value)}></line>
          <text x=${LEFT - 5} y=${y(value) + 4} text-anchor="end">${short(value)}</text>`,
      )}
      ${across_.map((value) => svg`<text x=${x(value)} y=${HEIGHT - BOTTOM + 15} text-anchor="middle">${named(value)}</text>`)}
      ${lines.map(
        (line, i) => svg`<g class=${`line style-${i % STYLES}`}>
          <polyline points=${line.points.map((point) => `${x(point.x)},${y(point.y)}`).join(" ")}></polyline>
          ${line.points.length > 12 ? "" : line.points.map((point) => svg`<circle cx=${x(point.x)} cy=${y(point.y)} r="3"><title>${`${named(point.x)}: ${short(point.y)} ${up}`}</title></circle>`)}
        </g>`,
      )}
      <text x=${(LEFT + WIDTH) / 2} y=${HEIGHT - 6} text-anchor="middle">${across}</text>
    </svg>
    <ul class="keys">
      ${lines.map(
        ({ name }, i) => html`<li><svg viewBox="0 0 26 10" aria-hidden="true">${svg`<g class=${`line style-${i % STYLES}`}><polyline points="0,5 26,5"></polyline></g>`}</svg>${name}</li>`,
      )}
    </ul>
  </figure>`;
}

/**
 * @param {string} title
 * @param {Line[]} lines
 * @param {string} up
 */
function said(title, lines, up) {
  const ends = lines.map(({ name, points }) => {
    const [first, last] = [points[0], points.at(-1)];
    return first && last ? `${name}: ${short(first.y)} at ${named(first.x)} to ${short(last.y)} at ${named(last.x)}` : name;
  });
  return `${title}, ${up}. ${ends.join("; ")}.`;
}

/**
 * The next 1, 2 or 5 times a power of ten.
 * @param {number} value
 */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5, 10].find((step) => step * power >= value * 0.9999) ?? 10);
}

/** @param {number} top */
const ticks = (top) => Array.from({ length: TICKS + 1 }, (_, i) => (top * i) / TICKS);

/** @param {number} value */
const short = (value) => String(Number(value.toPrecision(3)));

/** @param {number | string} value */
const named = (value) => (typeof value === "number" ? short(value) : value);
