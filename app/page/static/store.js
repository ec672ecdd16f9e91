/** What the page keeps in this browser: conversations, choices, and the key if it is told to. */

import { open } from "./answer.js";

/** @import { Choices, Conversation } from "./types.d.ts" */

const PREFIX = "tandem.conversation.";
const CHOICES = "tandem.choices";
const KEY = "tandem.key";
const THEME = "tandem.theme";
const MOST = 100;
/** Conversations that are kept; the oldest give way. */

/** @type {Choices} */
const DEFAULTS = {
  model: "",
  mode: "",
  compare: false,
  other: "",
  objective: "",
  privacy: "",
  device: "",
  rate: "",
  paced: false,
  budget: "",
  longest: "",
  temperature: "",
  system: "",
  origins: true,
};

/**
 * Read a value; null if there is none, or it cannot be read.
 * @param {string} name
 */
function get(name) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "null");
  } catch {
    return null; // damaged, or the browser keeps nothing
  }
}

/**
 * Keep a value; return whether there was room.
 * @param {string} name
 * @param {unknown} value
 */
function put(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/**
 * Return the conversations, the newest first.
 * @returns {Conversation[]}
 */
export function conversations() {
  /** @type {Conversation[]} */
  const found = [];
  try {
    for (const name of Object.keys(localStorage)) if (name.startsWith(PREFIX)) found.push(get(name));
  } catch {
    return []; // the browser keeps nothing
  }
  const whole = found.filter((each) => each && Array.isArray(each.turns)).sort((a, b) => b.changed - a.changed);
  for (const answer of whole.flatMap(({ turns }) => turns).flatMap(({ answers }) => answers)) {
    if (open(answer)) answer.state = "stopped"; // another tab writes it, or one that has died did
  }
  return whole;
}

/**
 * Keep a conversation; the oldest give way. Returns whether it is kept.
 * @param {Conversation} conversation
 */
export function keep(conversation) {
  const others = conversations().filter(({ id }) => id !== conversation.id);
  for (const { id } of others.splice(MOST - 1)) forget(id);
  for (;;) {
    if (put(PREFIX + conversation.id, conversation)) return true;
    const oldest = others.pop();
    if (!oldest) return false;
    forget(oldest.id);
  }
}

/** @param {string} id */
export function forget(id) {
  localStorage.removeItem(PREFIX + id);
}

/**
 * Call back when another tab has changed a conversation.
 * @param {(id: string) => void} changed
 */
export function watch(changed) {
  addEventListener("storage", ({ key }) => {
    if (key?.startsWith(PREFIX)) changed(key.slice(PREFIX.length));
  });
}

/** @returns {Choices} */
export const choices = () => ({ ...DEFAULTS, ...get(CHOICES) });

/** @param {Choices} chosen */
export const keepChoices = (chosen) => put(CHOICES, chosen);

/** @returns {string} "" for none */
export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? get(KEY) ?? "";
  } catch {
    return "";
  }
}

/**
 * Keep the key: until this tab is closed, or for this browser.
 * @param {string} secret
 * @param {boolean} longer
 */
export function keepKey(secret, longer) {
  try {
    sessionStorage.setItem(KEY, secret);
    if (longer && secret) put(KEY, secret);
    else localStorage.removeItem(KEY);
  } catch {
    // the page goes on without
  }
}

/** @returns {"" | "light" | "dark"} */
export const theme = () => get(THEME) ?? "";

/** @param {string} chosen */
export const keepTheme = (chosen) => put(THEME, chosen);
