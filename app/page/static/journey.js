/** The way of a request: from the reader over the API to the models, lit as the events of its stream come. */

import { html, nothing, svg } from "./vendor/lit-html.js";
import { open, tokens } from "./answer.js";
import { colour, label } from "./origins.js";
import { widthOf } from "./timeline.js";

/** @import { Answer } from "./types.d.ts" */

/** @typedef {"large" | "small"} Station */

const HEIGHT = 104;
const BOX = 82;
const EDGE = 2; // around the boxes
/** @type {Record<string, Station[]>} */
const PASSED = {
  cloud: ["large"],
  device: ["small"],
  draft: ["small", "large"],
  corrected: ["large"],
  bonus: ["large"],
  sketch: ["large"],
  expansion: ["small"],
};

/**
 * Show where the last tokens of an answer came along, as long as more may come.
 * @param {Answer} answer
 * @param {number} beside number of answers side by side
 */
export function journey(answer, beside) {
  if (!open(answer)) return nothing;
  const width = widthOf(beside);
  const right = width - BOX / 2 - EDGE;
  const reader = { x: BOX / 2 + EDGE, y: 52 };
  const api = { x: width * 0.48, y: 52 };
  /** @type {Record<Station, { x: number, y: number, name: string }>} */
  const stations = { large: { x: right, y: 25, name: "large model" }, small: { x: right, y: 79, name: "small model" } };
  const last = answer.arrivals.at(-1);
  const origins = [...new Set((last?.runs ?? []).map(([origin]) => origin))];
  const passed = new Set(last ? origins.flatMap((origin) => PASSED[origin] ?? []) : ["large", "small"]);
  const tone = colour(origins.at(-1) ?? "");
  const beat = answer.arrivals.length % 2 ? "beat" : "beat again"; // another name, so that it moves anew
  const towards = last ? "back" : "there";
  const edge = (/** @type {{x: number, y: number}} */ from, /** @type {{x: number, y: number}} */ to, /** @type {boolean} */ lit) =>
    svg`<line class=${lit ? `lit ${towards} ${beat} ${last ? tone : ""}` : ""} x1=${from.x} y1=${from.y} x2=${to.x} y2=${to.y}></line>`;
  const node = (/** @type {{x: number, y: number}} */ at, /** @type {string} */ name, /** @type {boolean} */ lit) =>
    svg`<g class=${lit ? "lit" : ""}><rect x=${at.x - BOX / 2} y=${at.y - 16} width=${BOX} height="32" rx="8"></rect><text x=${at.x} y=${at.y + 4} text-anchor="middle">${name}</text></g>`;
  return html`<svg class="journey" viewBox="0 0 ${width} ${HEIGHT}" role="img" aria-label=${said(answer, origins)}>
    ${edge(reader, api, true)} ${Object.entries(stations).map(([key, at]) => edge(api, at, passed.has(/** @type {Station} */ (key))))}
    ${node(reader, "you", true)} ${node(api, "API", true)}
    ${Object.entries(stations).map(([key, at]) => node(at, at.name, passed.has(/** @type {Station} */ (key))))}
  </svg>`;
}

/**
 * @param {Answer} answer
 * @param {string[]} origins of the last tokens
 */
function said(answer, origins) {
  if (!origins.length) return "The request is on its way to the models.";
  return `${tokens(answer)} tokens received, the last from ${origins.map(label).join(" and ")}.`;
}
