/** The way of a request: from the reader over the API to the models, lit as the events of its stream come. */

import { html, nothing, svg } from "./vendor/lit-html.js";
import { open, tokens } from "./answer.js";
import { colour, label } from "./origins.js";

/** @import { Answer } from "./types.d.ts" */

/** @typedef {"large" | "small"} Station */

const WIDTH = 520;
const HEIGHT = 104;
const READER = { x: 45, y: 52 };
const API = { x: 215, y: 52 };
/** @type {Record<Station, { x: number, y: number, name: string }>} */
const STATIONS = {
  large: { x: 430, y: 25, name: "large model" },
  small: { x: 430, y: 79, name: "small model" },
};
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
 */
export function journey(answer) {
  if (!open(answer)) return nothing;
  const last = answer.arrivals.at(-1);
  const origins = [...new Set((last?.runs ?? []).map(([origin]) => origin))];
  const passed = new Set(last ? origins.flatMap((origin) => PASSED[origin] ?? []) : ["large", "small"]);
  const tone = colour(origins.at(-1) ?? "");
  const beat = answer.arrivals.length % 2 ? "beat" : "beat again"; // another name, so that it moves anew
  const towards = last ? "back" : "there";
  const edge = (/** @type {{x: number, y: number}} */ from, /** @type {{x: number, y: number}} */ to, /** @type {boolean} */ lit) =>
    svg`<line class=${lit ? `lit ${towards} ${beat} ${last ? tone : ""}` : ""} x1=${from.x} y1=${from.y} x2=${to.x} y2=${to.y}></line>`;
  const node = (/** @type {{x: number, y: number}} */ at, /** @type {string} */ name, /** @type {boolean} */ lit) =>
    svg`<g class=${lit ? "lit" : ""}><rect x=${at.x - 45} y=${at.y - 16} width="90" height="32" rx="8"></rect><text x=${at.x} y=${at.y + 4} text-anchor="middle">${name}</text></g>`;
  return html`<svg class="journey" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${said(answer, origins)}>
    ${edge(READER, API, true)} ${Object.entries(STATIONS).map(([key, at]) => edge(API, at, passed.has(/** @type {Station} */ (key))))}
    ${node(READER, "you", true)} ${node(API, "API", true)}
    ${Object.entries(STATIONS).map(([key, at]) => node(at, at.name, passed.has(/** @type {Station} */ (key))))}
  </svg>`;
}

/**
 * @param {Answer} answer
 * @param {string[]} origins of the last tokens
 */
function said(answer, origins) {
  if (!origins.length) return "The request travels to the models.";
  return `${tokens(answer)} tokens have come, the last from ${origins.map(label).join(" and ")}.`;
}
