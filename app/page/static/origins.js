/** Origins of tokens: who wrote them, for people. */

/** @typedef {"cloud" | "device" | null} Side */

/** @type {Record<string, { label: string, means: string, side: Side }>} */
export const ORIGINS = {
  cloud: { label: "cloud", means: "written by the large model", side: "cloud" },
  device: { label: "device", means: "written by the device's model", side: "device" },
  draft: { label: "draft", means: "drafted by a small model, accepted by the large one", side: null },
  corrected: { label: "corrected", means: "written by the large model in place of a rejected draft", side: null },
  bonus: { label: "bonus", means: "added by the large model after accepted drafts", side: null },
  sketch: { label: "sketch", means: "part of the large model's sketch", side: null },
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
