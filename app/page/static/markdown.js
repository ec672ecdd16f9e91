/** Text of an answer as Markdown, with the origin of every word in its colour. */

import DOMPurify from "./vendor/dompurify.js";
import { Marked } from "./vendor/marked.js";
import { ORIGINS, colour, label } from "./origins.js";

/** @import { Run } from "./types.d.ts" */

/** @type {import("dompurify").Config & { RETURN_DOM_FRAGMENT: true }} */
const SAFE = {
  ALLOWED_TAGS:
    "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong sub sup table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["href", "start", "align"],
  ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};
const NEAR = 400;
/** Characters of Markdown, such as an address, behind which a text that is shown is looked for. */

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    html: ({ text }) => escaped(text), // what a model writes is text
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/**
 * Return an answer's text as nodes.
 * @param {string} text
 * @param {Run[]} runs
 * @returns {DocumentFragment}
 */
export function rendered(text, runs) {
  const nodes = DOMPurify.sanitize(/** @type {string} */ (marked.parse(text)), SAFE);
  for (const link of nodes.querySelectorAll("a")) {
    link.rel = "noopener noreferrer";
    link.target = "_blank";
  }
  paint(nodes, text, origins(text, runs));
  return nodes;
}

/**
 * Return the origin of every UTF-16 unit of a text.
 * @param {string} text
 * @param {Run[]} runs
 */
function origins(text, runs) {
  /** @type {string[]} */
  const found = [];
  let [run, left] = [0, runs[0]?.[1] ?? 0];
  for (const character of text) {
    while (left === 0 && run + 1 < runs.length) left = runs[++run]?.[1] ?? 0;
    left -= 1;
    for (let i = 0; i < character.length; i++) found.push(runs[run]?.[0] ?? "");
  }
  return found;
}

/**
 * Give every word its colour, and the first one behind a hand-over its mark. Where it stands in the source is found by what is shown, in order: Markdown only leaves
 * characters out, but for entities, which keep the colour before them.
 * @param {DocumentFragment} nodes
 * @param {string} source
 * @param {string[]} from origins of the source
 */
function paint(nodes, source, from) {
  const walker = document.createTreeWalker(nodes, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode()) texts.push(/** @type {Text} */ (walker.currentNode));
  let place = 0;
  /** @type {import("./origins.js").Side} */
  let side = null;
  const find = (/** @type {string} */ what) => {
    const found = source.slice(place, place + NEAR + what.length).indexOf(what);
    if (found >= 0) place += found + what.length;
    return found >= 0;
  };
  for (const text of texts) {
    if (!text.data.trim()) continue;
    const whole = find(text.data);
    const begin = place - text.data.length;
    /** @type {[string, string][]} */
    const parts = [];
    [...text.data].reduce((units, character) => {
      if (!whole) find(character);
      const origin = from[whole ? begin + units : Math.max(0, place - 1)] ?? "";
      const last = parts.at(-1);
      if (last?.[0] === origin) last[1] += character;
      else parts.push([origin, character]);
      return units + character.length;
    }, 0);
    const shown = parts.map(([origin, said]) => {
      const now = (said.trim() && ORIGINS[origin]?.side) || null;
      const from = now && side && now !== side ? side : null;
      side = now ?? side;
      return painted(origin, said, from);
    });
    text.replaceWith(...shown);
  }
}

/**
 * @param {string} origin
 * @param {string} shown
 * @param {import("./origins.js").Side} handed side that handed over to this one, just before; null: none did
 */
function painted(origin, shown, handed) {
  if (!origin || !shown.trim()) return shown;
  const element = document.createElement("span");
  element.className = colour(origin);
  element.title = handed ? `${label(origin)}, handed over from ${handed}` : label(origin);
  if (handed) element.classList.add("handed");
  element.textContent = shown;
  return element;
}

/** @param {string} text */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
