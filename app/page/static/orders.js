/** Operators' orders for the fleet: buttons, and what they ask for. */

import { html, nothing } from "./vendor/lit-html.js";

/** @import { Session } from "./session.js" */
/** @import { Fleet, Link } from "./types.d.ts" */

const MBIT = 125_000; // bytes

/**
 * @param {Session} session
 * @param {string} name of a replica
 * @param {boolean} drained
 */
export function replicaOrders(session, name, drained) {
  const change = () => session.order(`replicas/${encodeURIComponent(name)}`, { drained: !drained });
  return html`<button type="button" aria-label=${drained ? `Resume ${name}` : `Drain ${name}`} @click=${change}>
    ${drained ? "Resume" : "Drain"}
  </button>`;
}

/**
 * @param {Session} session
 * @param {Fleet} fleet
 * @param {string} name of a device
 * @param {boolean} emulated whether its link is
 */
export function deviceOrders(session, fleet, name, emulated) {
  const path = `devices/${encodeURIComponent(name)}`;
  const stopped = fleet.stopped.includes(name);
  const order = fleet.links[name];
  const stop = () => session.order(path, { stopped: !stopped });
  const cut = () => session.order(path, { link: order ? null : { cut: true } });
  return html`<div class="orders">
    <button type="button" aria-label=${`${stopped ? "Start" : "Stop"} ${name}`} @click=${stop}>${stopped ? "Start" : "Stop"}</button>
    ${emulated
      ? html`<button type="button" aria-label=${`${order ? "Restore" : "Cut"} the link of ${name}`} @click=${cut}>
            ${order ? "Restore link" : "Cut link"}
          </button>
          ${throttle(session, path, name)}`
      : nothing}
  </div>`;
}

/**
 * @param {Session} session
 * @param {string} path
 * @param {string} name
 */
function throttle(session, path, name) {
  const send = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const said = [...new FormData(form)].filter(([, value]) => value !== "").map(([key, value]) => [key, Number(value)]);
    const link = Object.fromEntries(said);
    if ("loss" in link) link.loss /= 100;
    if (said.length) void session.order(path, { link });
    /** @type {HTMLDetailsElement} */ (form.parentElement).open = false;
  };
  const field = (/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ most) =>
    html`<label>${label} <input name=${key} type="number" min="0" max=${most} step="any" /></label>`;
  return html`<details>
    <summary aria-label=${`Throttle the link of ${name}`}>Throttle</summary>
    <form @submit=${send}>
      ${field("rtt_ms", "Round trip, ms", "60000")} ${field("up_mbit_per_s", "Upload, Mbit/s", "100000")}
      ${field("down_mbit_per_s", "Download, Mbit/s", "100000")} ${field("loss", "Packet loss, %", "99")}
      <button type="submit">Throttle</button>
    </form>
  </details>`;
}

/**
 * State of a device as operators ordered it; empty: nothing was.
 * @param {Fleet} fleet
 * @param {string} name
 */
export function ordered({ stopped, links }, name) {
  if (stopped.includes(name)) return "stopped";
  const link = links[name];
  return link ? (link.cut ? "link cut" : "link throttled") : "";
}

/**
 * Bandwidth to and from a device.
 * @param {Link | null | undefined} link
 */
export function rates(link) {
  if (!link) return "–";
  const said = (/** @type {number | null} */ rate) =>
    rate === null ? "no limit" : `${Number(((rate / MBIT) || 0).toPrecision(2))} Mbit/s`;
  const [down, up] = [said(link.down_bytes_per_s), said(link.up_bytes_per_s)];
  return down === up ? down : `${down} down, ${up} up`;
}
