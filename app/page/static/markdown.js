/** Text of an answer as Markdown, with the origin of every word in its colour. */

import DOMPurify from "./vendor/dompurify.js";
import { Marked } from "./vendor/marked.js";
import { colour, label } from "./origins.js";

/** @import { Run } from "./types.d.ts" */

// A mark in the source says that another origin begins; it is a private character, which no Markdown means anything by.
const FIRST = 0xe000;
const MARK = /[\ue000-\ue0ff]/gu;
const LETTER = /\p{L}/u;
const WHOLE = /:\/\/|\]\(|&$/; // beginnings of words that a mark would break: addresses and entities
/** @type {import("dompurify").Config & { RETURN_DOM_FRAGMENT: true }} */
const SAFE = {
  ALLOWED_TAGS:
    "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong sub sup table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["href", "start", "align"],
  ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({ gfm: true, breaks: true });
marked.use({ renderer: { html: ({ text }) => escaped(text) } }); // what a model writes is text

/**
 * Return an answer's text as nodes.
 * @param {string} text
 * @param {Run[]} runs
 * @returns {DocumentFragment}
 */
export function rendered(text, runs) {
  const origins = [...new Set(runs.map(([origin]) => origin))];
  const html = /** @type {string} */ (marked.parse(withMarks(text, runs, origins)));
  const nodes = DOMPurify.sanitize(html, SAFE);
  for (const link of nodes.querySelectorAll("a")) {
    link.rel = "noopener noreferrer";
    link.target = "_blank";
  }
  paint(nodes, origins);
  return nodes;
}

/**
 * Put a mark where an origin begins, or at the first letter after that: before anything else it could change what the
 * Markdown means. None is in an address; every line begins with one, as one in the name of a code's language is lost.
 * @param {string} text
 * @param {Run[]} runs
 * @param {string[]} origins
 */
function withMarks(text, runs, origins) {
  let marked = "";
  let left = 0;
  let run = -1;
  let due = false;
  let word = "";
  for (const character of text.replaceAll(MARK, "\ufffd")) {
    while (left === 0 && run + 1 < runs.length) {
      left = runs[++run]?.[1] ?? 0;
      due = true;
    }
    left -= 1;
    due ||= word === "\n";
    if (/\s/.test(word)) word = "";
    const origin = runs[run]?.[0];
    if (due && origin !== undefined && LETTER.test(character) && !WHOLE.test(word)) {
      marked += String.fromCodePoint(FIRST + origins.indexOf(origin));
      due = false;
    }
    marked += character;
    word = /\s/.test(character) ? character : word + character;
  }
  return marked;
}

/**
 * Replace the marks by elements that have the colours.
 * @param {DocumentFragment} nodes
 * @param {string[]} origins
 */
function paint(nodes, origins) {
  const walker = document.createTreeWalker(nodes, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode()) texts.push(/** @type {Text} */ (walker.currentNode));
  let origin = origins[0];
  for (const text of texts) {
    const parts = [];
    for (const part of text.data.split(/(?=[\ue000-\ue0ff])/u)) {
      const mark = (part.codePointAt(0) ?? 0) - FIRST;
      if (mark >= 0 && mark < 256) origin = origins[mark];
      const shown = part.replaceAll(MARK, "");
      if (!shown.trim() || origin === undefined) {
        parts.push(shown);
        continue;
      }
      const painted = document.createElement("span");
      painted.className = colour(origin);
      painted.title = label(origin);
      painted.textContent = shown;
      parts.push(painted);
    }
    text.replaceWith(...parts);
  }
}

/** @param {string} text */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
