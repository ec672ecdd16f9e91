/** Origins of tokens: who wrote them, for people. */

/** @typedef {"cloud" | "device" | null} Side */

/** @type {Record<string, { label: string, means: string, side: Side }>} */
export const ORIGINS = {
  cloud: { label: "cloud", means: "decoded by the large model", side: "cloud" },
  device: { label: "device", means: "decoded by the device's model", side: "device" },
  draft: { label: "draft", means: "drafted by a small model and accepted by the large one", side: null },
  corrected: { label: "corrected", means: "the large model's, in place of a rejected draft", side: null },
  bonus: { label: "bonus", means: "the large model's, after accepted drafts", side: null },
  sketch: { label: "sketch", means: "the large model's sketch", side: null },
  expansion: { label: "expansion", means: "written by a small model from the sketch", side: null },
};

/**
 * Class of an origin's colour; one that is not known here has its own.
 * @param {string} origin
 */
export const colour = (origin) => `from-${origin in ORIGINS ? origin : "other"}`;

/**
 * Name of an origin.
 * @param {string} origin
 */
export const label = (origin) => ORIGINS[origin]?.label ?? origin;
