/** Views of the server: whether it is ready, its models, and the devices that are there. */

import { html, nothing } from "./vendor/lit-html.js";
import { ROLES, modesOf } from "./models.js";
import { rates } from "./orders.js";
import { table } from "./table.js";
import { bytes, joules, parameters, seconds } from "./units.js";

/** @import { Session } from "./session.js" */
/** @import { Device, Model, Part, Ready } from "./types.d.ts" */

const SAID = ["status", "reasons", "modes", "missing", "refused", "gateway", "devices", "device", "cloud", "split"];
/** Keys of `/readyz` that have words of their own; the others are pools, with their numbers of replicas. */

/** @param {Session} session */
export function status(session) {
  const { ready, own } = session;
  return html`<section class="server" aria-label="Status">
    <h2>Status</h2>
    ${ready ? [own ? atDevice(ready) : atServer(ready), raw("readyz")] : html`<p class="note">Waiting for the server…</p>`}
  </section>`;
}

/** @param {Ready} ready */
function atServer(ready) {
  const up = ready.status === "ready";
  const pools = Object.entries(ready).filter(([name, count]) => !SAID.includes(name) && typeof count === "number");
  return html`<p class=${up ? "state up" : "state down"}>${up ? "Ready to answer" : "Not ready"}</p>
    ${(ready.reasons ?? []).map((reason) => html`<p class="error">${reason}</p>`)}
    ${(ready.refused ?? []).map((refusal) => html`<p class="error">${refusal}</p>`)}
    <h3>Running</h3>
    ${table(
      ["What", "How many"],
      [
        ...pools.map(([pool, count]) => [`${pool} replicas`, String(count)]),
        ["devices", `${ready.devices ?? 0}${ready.missing?.length ? `; missing: ${ready.missing.join(", ")}` : ""}`],
      ],
    )}
    ${ready.gateway ? html`<p>Other devices connect to the gateway at <code>${ready.gateway}</code>.</p>` : nothing}
    ${Object.entries(ready.modes ?? {}).map(
      ([model, lacks]) => html`<h3>Modes of ${model}</h3>
        ${table(["Mode", "Now"], Object.entries(lacks).map(([mode, lack]) => [mode, lack || "works"]))}`,
    )}`;
}

/** @param {Ready} ready */
function atDevice({ device, cloud, split }) {
  return table(
    ["What", "Now"],
    [
      ["This device", device ?? "not registered yet"],
      ["Connection to the cloud", cloud ? "works" : "none"],
      ["Its part of a split model", split ? "loaded" : "none"],
    ],
  );
}

/** @param {Session} session */
export function models(session) {
  return html`<section class="server" aria-label="Models">
    <h2>Models</h2>
    ${session.models.map((each) => card(session, each))} ${raw("v1/models")}
  </section>`;
}

/**
 * @param {Session} session
 * @param {Model} model
 */
function card(session, model) {
  const modes = modesOf(model, session.ready);
  const own = session.devices.filter(({ dialled_in }) => dialled_in);
  return html`<article class="card">
    <h3>${model.id} ${model.demo ? html`<span class="badge">demo</span>` : nothing}</h3>
    ${model.about ? html`<p>${model.about}</p>` : nothing}
    <p class="note">
      ${model.context} tokens of question and answer together. Modes: ${modes.map(([mode]) => mode).join(", ")}.
      ${model.aliases.length ? `Other names: ${model.aliases.join(", ")}.` : nothing}
      ${model.parent ? `An adapter of ${model.parent}.` : nothing}
    </p>
    ${table(
      ["Model", "What it does", "Parameters", "Files"],
      [
        ...model.parts.map((part) => [part.model, does(part), part.parameters ? parameters(part.parameters) : "–", part.bytes ? bytes(part.bytes) : "–"]),
        ...own.map((device) => [device.model, `${ROLES.device}: ${device.name}`, "–", "–"]),
      ],
    )}
  </article>`;
}

/** @param {Part} part */
const does = ({ role, devices }) => (devices.length ? `${ROLES[role]}: ${devices.join(", ")}` : ROLES[role]);

/** @param {Session} session */
export function devices(session) {
  return html`<section class="server" aria-label="Devices">
    <h2>Devices</h2>
    ${session.devices.length
      ? table(
          ["Name", "Hardware", "Model", "Speed", "Round trip", "Link", "Answers now", "Battery", "Energy so far"],
          session.devices.map((each) => [
            each.name,
            hardware(each),
            each.models?.length ? `${each.model} (of ${each.models.map(({ name }) => name).join(", ")})` : each.model,
            each.decode_token_s ? `${Math.round(1 / each.decode_token_s)} tokens/s` : "–",
            seconds(each.rtt_s),
            rates(each.link),
            `${each.sessions} of ${each.capacity}`,
            power(each),
            joules(each.energy_j ?? 0),
          ]),
        )
      : html`<p class="note">No device is connected.</p>`}
    ${raw("v1/devices")}
  </section>`;
}

/** @param {Device} device */
export const hardware = ({ profile, emulated }) => `${profile}${emulated ? " (emulated)" : ""}`;

/** @param {Device} device */
export const power = ({ battery }) => (battery === null || battery === undefined ? "mains" : `${Math.round(battery * 100)} %`);

/** @param {string} path */
export const raw = (path) => html`<p class="note"><a href=${path}>The same as raw data</a></p>`;
