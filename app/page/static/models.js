/** What the server tells of its models and modes, in words. */

import { parameters } from "./units.js";

/** @import { Model, Part, Ready } from "./types.d.ts" */

/** @type {Record<string, { means: string, shows: string[] }>} what modes do, and the origins that their answers have */
export const MODES = {
  cloud: { means: "The large model answers alone.", shows: ["cloud"] },
  device: { means: "A device answers alone, with its small model.", shows: ["device"] },
  speculative: { means: "A small model drafts, and the large one checks each word.", shows: ["draft", "corrected", "bonus"] },
  race: { means: "Device and cloud both begin; the faster one may hand over to the other.", shows: ["device", "cloud"] },
  sketch: { means: "The large model writes a sketch and small models write it out, where that is faster.", shows: ["expansion", "cloud"] },
  split: { means: "The device has the first layers, the cloud the rest; the text stays on the device.", shows: ["device", "draft", "corrected"] },
};

/** @type {Record<Part["role"], string>} */
export const ROLES = { target: "large model", drafter: "drafts", expander: "expands sketches", device: "on devices" };

/**
 * A model's name with its size, as far as the server knows it.
 * @param {Part} part
 */
export const sized = (part) => (part.parameters ? `${part.model}, ${parameters(part.parameters)}` : part.model);

/**
 * The name under which a model is asked for, with the size of the one that answers.
 * @param {Model} model
 */
export function offered({ id, parts }) {
  const first = parts[0];
  return first?.parameters ? `${id} (${parameters(first.parameters)})` : id;
}

/**
 * Modes that a model can be asked for in, and what each lacks at the moment ("": nothing).
 * @param {Model | undefined} model
 * @param {Ready | null} ready
 * @returns {[mode: string, lack: string][]}
 */
export function modesOf(model, ready) {
  if (!model) return [];
  const lacks = ready?.modes?.[model.parent ?? model.id];
  return model.modes.filter((mode) => !lacks || mode in lacks).map((mode) => [mode, lacks?.[mode] ?? ""]);
}

/**
 * Questions to try a model with, in modes that can serve now.
 * @param {Model | undefined} model
 * @param {Ready | null} ready
 */
export function examplesOf(model, ready) {
  const able = modesOf(model, ready).filter(([, lack]) => !lack).map(([mode]) => mode);
  return (model?.examples ?? []).filter(({ mode }) => mode === null || able.includes(mode)).slice(0, MOST);
}

const MOST = 4;
