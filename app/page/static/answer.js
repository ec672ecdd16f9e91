/** One answer as it comes: its text, the origin of every character, and when tokens came. */

/** @import { Answer, Chunk, Run } from "./types.d.ts" */

/**
 * Return an answer of which nothing has come.
 * @param {string} asked mode that was asked for; empty: the server's choice
 * @param {string} model
 * @param {number} rate tokens/s that the reader takes in
 * @returns {Answer}
 */
export function unanswered(asked, model, rate) {
  return {
    asked,
    model,
    rate,
    text: "",
    thoughts: "",
    runs: [],
    arrivals: [],
    state: "waiting",
    finish: null,
    reconnects: 0,
    stats: null,
    error: null,
  };
}

/** @param {Answer} answer */
export const open = (answer) => answer.state === "waiting" || answer.state === "streaming";

/** @param {Answer} answer */
export const tokens = (answer) => answer.arrivals.reduce((sum, each) => sum + each.tokens, 0);

/**
 * Add a chunk.
 * @param {Answer} answer
 * @param {Chunk} chunk
 * @param {number} at_s seconds since the question was sent
 */
export function take(answer, chunk, at_s) {
  if (chunk.error) {
    answer.state = "failed";
    answer.error = chunk.error.message;
    return;
  }
  const choice = chunk.choices[0];
  if (!choice) return;
  answer.state = "streaming";
  const text = choice.delta.content ?? "";
  answer.text += text;
  answer.thoughts += choice.delta.reasoning_content ?? "";
  const origins = chunk.tandem?.origins ?? [];
  append(answer.runs, last(origins, [...text].length));
  const now = (chunk.usage?.completion_tokens ?? 0) - tokens(answer);
  if (now > 0) answer.arrivals.push({ at_s, tokens: now, runs: origins });
  answer.stats = chunk.tandem?.stats ?? answer.stats;
  const why = chunk.tandem?.why;
  answer.why = why ?? answer.why ?? null;
  if (answer.stats?.reader) answer.rate = answer.stats.reader.rate;
  if (choice.finish_reason) {
    answer.finish = choice.finish_reason;
    answer.state = "done";
  }
}

/**
 * Return the runs of the last characters: those before are thoughts and their marks.
 * @param {Run[]} runs
 * @param {number} characters
 * @returns {Run[]}
 */
function last(runs, characters) {
  /** @type {Run[]} */
  const kept = [];
  for (const [origin, length] of [...runs].reverse()) {
    const part = Math.min(length, characters);
    characters -= part;
    if (part) kept.unshift([origin, part]);
  }
  return kept;
}

/**
 * Add runs to others, joining those of one origin.
 * @param {Run[]} to
 * @param {Run[]} runs
 */
function append(to, runs) {
  for (const [origin, length] of runs) {
    const before = to.at(-1);
    if (before?.[0] === origin) before[1] += length;
    else to.push([origin, length]);
  }
}
