/** Time line of an answer: tokens as they came, as they are read, and what the reader waited for. */

import { html, nothing, svg } from "./vendor/lit-html.js";
import { ORIGINS, colour, label } from "./origins.js";
import { seconds, wholeSeconds } from "./units.js";

/** @import { Answer, Arrival } from "./types.d.ts" */

const WIDEST = 640;
const HEIGHT = 120;
const LEFT = 40;
const BOTTOM = 18;
const TOP = 8;
const LETTERS = 12; // height of a name
const STALLED_S = 0.001;
const MOST_TOLD = 3;
const NARROW = 768; // of windows in which answers are one below the other

/**
 * @typedef {object} Course how an answer came
 * @property {number} first_s time of the first token
 * @property {number} last_s
 * @property {number} tokens
 * @property {{ at_s: number, from: string, to: string }[]} handovers between the cloud's and the device's own tokens
 * @property {{ from_s: number, to_s: number }[]} stalls in which the reader waited
 * @property {{ at_s: number, tokens: number }[]} read tokens whose reading has begun, whenever that number changes its course
 * @property {number} buffer the most tokens that had come and were not being read
 */

/**
 * Return how an answer came for a reader, who begins with the first token and takes in `rate` a second (0: as they come).
 * @param {Arrival[]} arrivals
 * @param {number} rate
 * @returns {Course | null} null before the first token
 */
export function course(arrivals, rate) {
  const [first, last] = [arrivals[0], arrivals.at(-1)];
  if (!first || !last) return null;
  const handovers = [];
  const stalls = [];
  const read = [{ at_s: first.at_s, tokens: 0 }];
  let side = null;
  let came = 0;
  let next_s = first.at_s; // when the reader could take the next token
  let buffer = 0;
  for (const { at_s, tokens, runs } of arrivals) {
    for (const [origin] of runs) {
      const now = ORIGINS[origin]?.side ?? null;
      if (now && side && now !== side) handovers.push({ at_s, from: side, to: now });
      side = now ?? side;
    }
    if (rate) {
      if (at_s - next_s > STALLED_S) {
        stalls.push({ from_s: next_s, to_s: at_s });
        read.push({ at_s: next_s, tokens: came }, { at_s, tokens: came });
        next_s = at_s;
      }
      const ahead = Math.max(0, next_s - at_s) * rate;
      const begun = Math.min(came + tokens, Math.floor(came - ahead + 1e-9) + 1);
      buffer = Math.max(buffer, came + tokens - begun);
      next_s += tokens / rate;
    }
    came += tokens;
  }
  read.push({ at_s: next_s, tokens: came });
  return { first_s: first.at_s, last_s: last.at_s, tokens: came, handovers, stalls, read, buffer };
}

/**
 * Return the width of a drawing in one of so many answers side by side, about its pixels, so that its letters are readable.
 * @param {number} beside
 */
export const widthOf = (beside) => Math.round(innerWidth < NARROW ? innerWidth - 70 : WIDEST / beside);

/**
 * Show the time line, and say it in words.
 * @param {Answer} answer
 * @param {number} beside number of answers side by side
 */
export function timeline(answer, beside) {
  const found = course(answer.arrivals, answer.rate);
  if (!found) return nothing;
  const said = words(found, answer.rate, rounds(answer));
  const width = widthOf(beside);
  const until_s = Math.max(found.last_s, Math.min(found.read.at(-1)?.at_s ?? 0, found.last_s * 2), 0.001);
  const x = (/** @type {number} */ at_s) => LEFT + (at_s / until_s) * (width - LEFT - 8);
  const y = (/** @type {number} */ tokens) => HEIGHT - BOTTOM - (tokens / found.tokens) * (HEIGHT - BOTTOM - TOP);
  const floor = y(0);
  return html`<figure class="timeline">
    <svg viewBox="0 0 ${width} ${HEIGHT}" role="img" aria-label=${`Time line. ${said}`}>
      ${found.stalls.map(
        ({ from_s, to_s }) =>
          svg`<rect class="stall" x=${x(from_s)} y=${TOP} width=${Math.max(1, x(to_s) - x(from_s))} height=${floor - TOP}><title>${`the reader waits ${wholeSeconds(to_s - from_s)}`}</title></rect>`,
      )}
      ${steps(answer.arrivals, x, y)}
      ${answer.rate
        ? svg`<polyline class="read" points=${found.read.map(({ at_s, tokens }) => `${x(Math.min(at_s, until_s))},${y(
            at_s <= until_s ? tokens : tokens - (at_s - until_s) * answer.rate,
          )}`).join(" ")}><title>${`read at ${answer.rate} tokens/s`}</title></polyline>`
        : nothing}
      ${mark(width, x(found.first_s), floor, 0, "first", `first token ${wholeSeconds(found.first_s)}`)}
      ${found.handovers.slice(0, MOST_TOLD).map(({ at_s, from, to }, i) => mark(width, x(at_s), floor, i + 1, "handover", `${from} → ${to} ${wholeSeconds(at_s)}`))}
      <line class="axis" x1=${LEFT} x2=${width - 8} y1=${floor} y2=${floor}></line>
      <text x=${LEFT} y=${HEIGHT - 4}>0 s</text>
      <text x=${width - 8} y=${HEIGHT - 4} text-anchor="end">${wholeSeconds(until_s)}</text>
      <text x=${LEFT - 4} y=${y(found.tokens) + 8} text-anchor="end">${found.tokens}</text>
      <text x=${LEFT - 4} y=${floor} text-anchor="end">0</text>
    </svg>
    <figcaption>${said}</figcaption>
  </figure>`;
}

/**
 * Return an answer's rounds of drafting and verification, which the server tells at the end.
 * @param {Answer} answer
 */
function rounds({ stats }) {
  return Object.values(stats?.modes ?? {}).reduce((sum, figures) => sum + (Number(figures["rounds"]) || 0), 0);
}

/**
 * Tokens that came, over time: a step for each arrival, in the colours of its origins.
 * @param {Arrival[]} arrivals
 * @param {(at_s: number) => number} x
 * @param {(tokens: number) => number} y
 */
function steps(arrivals, x, y) {
  let came = 0;
  let from = x(0);
  return arrivals.map(({ at_s, tokens, runs }, i) => {
    const to = x(at_s);
    const next = x(arrivals[i + 1]?.at_s ?? at_s + 0.001);
    const characters = runs.reduce((sum, [, length]) => sum + length, 0) || 1;
    const drawn = [svg`<line class="came" x1=${from} x2=${to} y1=${y(came)} y2=${y(came)}></line>`];
    for (const [origin, length] of runs) {
      const part = (tokens * length) / characters;
      drawn.push(
        svg`<rect class=${colour(origin)} x=${to - 1.5} width=${Math.max(3, Math.min(next - to, 8))} y=${y(came + part)} height=${Math.max(1, y(came) - y(came + part))}><title>${`${label(origin)}, ${seconds(at_s)}`}</title></rect>`,
      );
      came += part;
    }
    from = to;
    return drawn;
  });
}

/**
 * A line across, with its name.
 * @param {number} width
 * @param {number} x
 * @param {number} floor
 * @param {number} row of its name, so that no two are on each other
 * @param {string} kind
 * @param {string} name
 */
function mark(width, x, floor, row, kind, name) {
  const right = x > width * 0.6;
  return svg`<g class=${kind}>
    <line x1=${x} x2=${x} y1=${TOP} y2=${floor}></line>
    <text x=${right ? x - 3 : x + 3} y=${TOP + 8 + row * LETTERS} text-anchor=${right ? "end" : "start"}>${name}</text>
  </g>`;
}

/**
 * Say in a sentence or two how an answer came.
 * @param {Course} found
 * @param {number} rate
 * @param {number} rounds of drafting and verification; 0: none, or not known yet
 */
export function words(found, rate, rounds) {
  const told = rounds ? `, in ${rounds} ${rounds === 1 ? "round" : "rounds"} of drafts` : "";
  const said = [
    `By this browser's clock: first token after ${wholeSeconds(found.first_s)}, ${found.tokens} tokens in ${wholeSeconds(found.last_s)}${told}.`,
  ];
  for (const { at_s, from, to } of found.handovers.slice(0, MOST_TOLD)) {
    said.push(`Handed over from ${from} to ${to} after ${wholeSeconds(at_s)}.`);
  }
  const more = found.handovers.length - MOST_TOLD;
  if (more > 0) said.push(`Handed over ${more} more times.`);
  if (rate) {
    const waited = found.stalls.reduce((sum, { from_s, to_s }) => sum + to_s - from_s, 0);
    said.push(
      waited
        ? `At a reading speed of ${rate} tokens/s the reader waits ${found.stalls.length === 1 ? "once" : `${found.stalls.length} times`}, ${wholeSeconds(waited)} in all.`
        : `At a reading speed of ${rate} tokens/s the reader never waits.`,
      `At most ${found.buffer} tokens are waiting to be read.`,
    );
  }
  return said.join(" ");
}
