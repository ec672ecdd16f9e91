/** The reader's choices. */

import { html, nothing } from "./vendor/lit-html.js";
import { MODES, ROLES, offered, sized } from "./models.js";

/** @import { Session } from "./session.js" */
/** @import { Choices, Device } from "./types.d.ts" */

const PRIVACY = [
  { value: "", name: "Anything" },
  { value: "hidden_states", name: "No text, only a split model's numbers" },
  { value: "nothing", name: "Nothing" },
];

/** @param {Session} session */
export function settings(session) {
  const { choices, model } = session;
  const auto = model?.objectives.length ? "auto" : "Server's default";
  const modes = [
    { value: "", name: auto },
    ...session.modes.map(([mode, lack]) => ({ value: mode, name: lack ? `${mode} (${lack})` : mode })),
  ];
  const objectives = [{ value: "", name: "Server's default" }, ...(model?.objectives ?? []).map(named)];
  const devices = [{ value: "", name: "Server's choice" }, { value: "any", name: "Any device" }, ...session.devices.map(device)];
  return html`<form class="settings" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${select(session, "model", "Model", session.models.map((each) => ({ value: each.id, name: offered(each) })), model?.id)}
    ${model?.parts.length
      ? html`<ul class="parts" aria-label="Models that answer">
          ${model.parts.map((part) => html`<li><span class="note">${ROLES[part.role]}</span> ${sized(part)}</li>`)}
        </ul>`
      : nothing}
    ${select(session, "mode", "Mode", modes)}
    <p class="note">${MODES[choices.mode]?.means ?? (model?.objectives.length ? "The server picks the best mode for each question." : nothing)}</p>
    ${check(session, "compare", "Compare with a second mode")}
    ${choices.compare ? select(session, "other", "Second mode", modes) : nothing}
    ${model?.objectives.length ? select(session, "objective", "In auto, prefer", objectives) : nothing}
    ${model?.objectives.length ? select(session, "privacy", "In auto, may leave the device", PRIVACY) : nothing}
    ${select(session, "device", "Device", devices)}
    ${number(session, "rate", "Reading speed, tokens/s", "0.1", "server's default")}
    ${check(session, "paced", "Send no faster than I read")} ${check(session, "origins", "Colour the words by origin")}
    <details>
      <summary>More</summary>
      ${number(session, "budget", "Race budget, 0 to 1", "0.05", "from your account")}
      ${number(session, "longest", "Longest answer, tokens", "1", "no limit")}
      ${number(session, "temperature", "Temperature", "0.1", "model's default")}
      <div class="field">
        <label for="system">System message</label>
        <textarea id="system" rows="2" .value=${choices.system} @change=${(/** @type {Event} */ e) => session.choose({ system: text(e) })}></textarea>
      </div>
    </details>
  </form>`;
}

/** @param {Session} session */
export function keyForm(session) {
  const unlock = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    void session.unlock(String(form.get("key") ?? ""), form.has("longer"));
  };
  return html`<form class="key" @submit=${unlock}>
    <label>API key <input name="key" type="password" autocomplete="off" .defaultValue=${session.api.key} /></label>
    <label class="check"><input name="longer" type="checkbox" /> Remember it in this browser</label>
    <button type="submit">Use this key</button>
  </form>`;
}

/** @param {string} value */
const named = (value) => ({ value, name: value });

/** @param {Device} of */
const device = ({ name, battery }) => ({
  value: name,
  name: battery === null ? name : `${name} (${Math.round(battery * 100)} % battery)`,
});

/** @param {Event} event */
const text = (event) => /** @type {HTMLInputElement} */ (event.target).value;

/**
 * @param {Session} session
 * @param {"model" | "mode" | "other" | "objective" | "privacy" | "device"} name
 * @param {string} label
 * @param {{ value: string, name: string }[]} options
 * @param {string} chosen
 */
function select(session, name, label, options, chosen = session.choices[name]) {
  const change = (/** @type {Event} */ event) => session.choose(/** @type {Partial<Choices>} */ ({ [name]: text(event) }));
  return html`<div class="field">
    <label for=${name}>${label}</label>
    <select id=${name} @change=${change}>
      ${options.map((each) => html`<option value=${each.value} .selected=${each.value === chosen}>${each.name}</option>`)}
    </select>
  </div>`;
}

/**
 * @param {Session} session
 * @param {"compare" | "paced" | "origins"} name
 * @param {string} label
 */
function check(session, name, label) {
  const change = (/** @type {Event} */ event) =>
    session.choose({ [name]: /** @type {HTMLInputElement} */ (event.target).checked });
  return html`<label class="check"><input type="checkbox" .checked=${session.choices[name]} @change=${change} /> ${label}</label>`;
}

/**
 * @param {Session} session
 * @param {"rate" | "budget" | "longest" | "temperature"} name
 * @param {string} label
 * @param {string} step
 * @param {string} otherwise
 */
function number(session, name, label, step, otherwise) {
  const change = (/** @type {Event} */ event) => session.choose({ [name]: text(event) });
  return html`<div class="field">
    <label for=${name}>${label}</label>
    <input id=${name} type="number" min="0" step=${step} placeholder=${otherwise} .value=${session.choices[name]} @change=${change} />
  </div>`;
}
