/** What the reader may choose. */

import { html, nothing } from "./vendor/lit-html.js";

/** @import { Session } from "./session.js" */
/** @import { Choices, Device } from "./types.d.ts" */

const PRIVACY = [
  { value: "", name: "anything that helps" },
  { value: "hidden_states", name: "no text: numbers of a split model" },
  { value: "nothing", name: "nothing" },
];

/** @param {Session} session */
export function settings(session) {
  const { choices, model } = session;
  const auto = model?.objectives.length ? "auto: what seems best for the request" : "the server decides";
  const modes = [{ value: "", name: auto }, ...(model?.modes ?? []).map(named)];
  const objectives = [{ value: "", name: "as its operator says" }, ...(model?.objectives ?? []).map(named)];
  const devices = [{ value: "", name: "the server decides" }, { value: "any", name: "any" }, ...session.devices.map(device)];
  return html`<form class="settings" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${session.models.length > 1 ? select(session, "model", "Model", session.models.map(({ id }) => named(id))) : nothing}
    ${select(session, "mode", "Mode", modes)} ${check(session, "compare", "Compare with a second mode")}
    ${choices.compare ? select(session, "other", "Second mode", modes) : nothing}
    ${model?.objectives.length ? select(session, "objective", "What counts, where the server decides", objectives) : nothing}
    ${model?.objectives.length ? select(session, "privacy", "What may leave the device, where the server decides", PRIVACY) : nothing}
    ${select(session, "device", "Device", devices)}
    ${number(session, "rate", "Reader's rate, tokens/s", "0.1", "the server's")}
    ${check(session, "paced", "Deliver no faster than that")} ${check(session, "origins", "Show who wrote the words")}
    <details>
      <summary>More</summary>
      ${number(session, "budget", "Budget of a race, 0 to 1", "0.05", "the account's")}
      ${number(session, "longest", "Longest answer, tokens", "1", "no limit")}
      ${number(session, "temperature", "Temperature", "0.1", "the model's")}
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
    <label class="check"><input name="longer" type="checkbox" /> keep it in this browser</label>
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
 */
function select(session, name, label, options) {
  const chosen = session.choices[name];
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
