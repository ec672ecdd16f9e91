/** The fleet, live: replicas and devices, their load, and who works for whom. */

import { html, nothing, svg } from "./vendor/lit-html.js";
import { answers } from "./chat.js";
import { deviceOrders, ordered, rates, replicaOrders } from "./orders.js";
import { label } from "./origins.js";
import { joules, seconds } from "./units.js";

/** @import { TemplateResult } from "./vendor/lit-html.js" */
/** @import { Session } from "./session.js" */
/** @import { Device, Fleet, Replica, UnderWay } from "./types.d.ts" */

/** @typedef {string | TemplateResult} Cell */

const WIDTH = 900;
const ROW = 58;
const BOX = 250;
const API = { x: 405, width: 90 };
const MOST_DRAWN = 14;
/** Devices that the picture has. */
const MOST_LISTED = 500;
/** Rows of a table. */

/** @param {Session} session */
export function fleet(session) {
  const { fleet: found, fleetTrouble: trouble } = session;
  if (!found) return html`<section class="fleet" aria-label="Fleet"><p>${trouble || "Looking …"}</p></section>`;
  const replicas = listed(found.pools, false).concat(listed(found.drained, true));
  const orders = !session.own;
  return html`<section class="fleet" aria-label="Fleet">
    ${trouble ? html`<p class="error">${trouble}</p>` : nothing}
    <div class="drawn" tabindex="0" role="group" aria-label="Drawing">${picture(found, replicas)}</div>
    ${session.orderTrouble ? html`<p class="error" role="alert">${session.orderTrouble}</p>` : nothing}
    <h2>Answers that are being given</h2>
    ${found.requests.length
      ? table(
          ["Answer", "Account", "Mode", "Works for it", "Tokens", "Last from"],
          found.requests.map((each) => [
            String(each.request % 100_000),
            each.account,
            each.mode,
            [...new Set(Object.values(each.endpoints))].join(", "),
            String(each.tokens),
            label(each.origin),
          ]),
        )
      : html`<p class="note">None at the replica of the API that tells this page.</p>`}
    ${own(session)}
    <h2>Replicas</h2>
    ${table(
      ["Name", "Model", "Sessions", "Waiting", "Room", "KV cache in use", "Preempted", "State", ...(orders ? ["Orders"] : [])],
      replicas.map(({ replica, drained }) => [
        replica.name,
        replica.model,
        String(replica.sessions),
        String(replica.waiting),
        String(replica.room),
        replica.blocks_total ? `${Math.round(used(replica) * 100)} % of ${replica.blocks_total} blocks` : "–",
        String(replica.preempted),
        replica.refusal ?? (drained ? (replica.sessions ? "drains" : "drained") : replica.rests ? "rests" : "up"),
        ...(orders ? [replicaOrders(session, replica.name, drained)] : []),
      ]),
    )}
    <h2>Devices</h2>
    ${found.devices.length || found.missing.length
      ? table(
          ["Name", "Hardware", "Model", "Round trip", "Rate", "Lost", "Sessions", "Battery", "Energy so far", "State", ...(orders ? ["Orders"] : [])],
          [
            ...found.devices.map((each) => [
              each.name,
              `${each.profile}${each.emulated ? " (emulated)" : ""}`,
              each.model,
              seconds(each.rtt_s),
              rates(each.link),
              each.link ? `${Number((each.link.loss * 100).toPrecision(2))} %` : "–",
              `${each.sessions} of ${each.capacity}`,
              each.battery === null || each.battery === undefined ? "mains" : `${Math.round(each.battery * 100)} %`,
              joules(each.energy_j ?? 0),
              ordered(found, each.name) || "up",
              ...(orders ? [deviceOrders(session, found, each.name, !each.dialled_in)] : []),
            ]),
            ...away(found).map((name) => [
              name,
              ...Array(8).fill(""),
              ordered(found, name) || "missing",
              ...(orders ? [deviceOrders(session, found, name, found.missing.includes(name))] : []),
            ]),
          ],
        )
      : html`<p class="note">None is registered.</p>`}
  </section>`;
}

/**
 * Show the last answer of this tab as it goes on, whatever is ordered meanwhile.
 * @param {Session} session
 */
function own(session) {
  const { turns } = session.current;
  const last = turns.at(-1);
  if (!last) return nothing;
  return html`<h2>Your last answer</h2>
    <section class=${session.choices.origins ? "" : "plain"} aria-label="Your last answer">
      ${answers(session, last, turns.length - 1)}
    </section>`;
}

/**
 * @param {Record<string, Replica[]>} pools
 * @param {boolean} drained
 */
function listed(pools, drained) {
  return Object.entries(pools).flatMap(([pool, each]) => each.map((replica) => ({ pool, replica, drained })));
}

/**
 * Names of devices that are not there: those that should be, and those that were stopped.
 * @param {Fleet} found
 */
function away(found) {
  const there = new Set(found.devices.map(({ name }) => name));
  return [...new Set([...found.missing, ...found.stopped])].filter((name) => !there.has(name));
}

/**
 * @param {string[]} heads
 * @param {Cell[][]} rows
 */
function table(heads, rows) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${heads.join(", ")}>
    <table>
      <thead>
        <tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr>
      </thead>
      <tbody>
        ${rows.slice(0, MOST_LISTED).map(
          ([first, ...rest]) => html`<tr><th scope="row">${first}</th>${rest.map((cell) => html`<td>${cell}</td>`)}</tr>`,
        )}
      </tbody>
    </table>
    ${rows.length > MOST_LISTED ? html`<p class="note">and ${rows.length - MOST_LISTED} more</p>` : nothing}
  </div>`;
}

/** @param {Replica} replica */
const used = ({ blocks_free, blocks_total }) => (blocks_total ? 1 - blocks_free / blocks_total : 0);

/**
 * Devices on the left, the API in the middle, replicas on the right; the lines to those that work for an answer are
 * thick, and move.
 * @param {Fleet} found
 * @param {{ pool: string, replica: Replica, drained: boolean }[]} replicas
 */
function picture(found, replicas) {
  const busyFirst = (/** @type {Device} */ a, /** @type {Device} */ b) => b.sessions - a.sessions;
  const devices = found.devices.length > MOST_DRAWN ? found.devices.toSorted(busyFirst).slice(0, MOST_DRAWN) : found.devices;
  const gone = away(found).slice(0, MOST_DRAWN - devices.length);
  const left = devices.length + gone.length;
  const height = Math.max(left, replicas.length, 2) * ROW + 20;
  const middle = height / 2;
  const place = (/** @type {number} */ i, /** @type {number} */ count) => middle + (i - (count - 1) / 2) * ROW;
  const working = new Set(found.requests.flatMap(({ endpoints }) => Object.values(endpoints)));
  const now = found.requests.map(said).join(" ");
  return html`<svg
    class="picture"
    viewBox="0 0 ${WIDTH} ${height}"
    role="img"
    aria-label=${`${found.devices.length} devices, ${replicas.length} replicas. ${now || "No answer is being given."}`}
  >
    ${devices.map((each, i) => {
      const y = place(i, left);
      return [
        line(BOX + 10, y, API.x, middle, working.has(each.name), way(each)),
        box(10, y, "device", each.name, state(each), each.battery ?? null, working.has(each.name)),
      ];
    })}
    ${gone.map((name, i) => box(10, place(devices.length + i, left), "away", name, ordered(found, name) || "missing", null, false))}
    ${replicas.map(({ pool, replica, drained }, i) => {
      const y = place(i, replicas.length);
      const busy = working.has(replica.name);
      const waiting = replica.waiting ? `, ${replica.waiting} wait` : "";
      return [
        line(WIDTH - BOX - 10, y, API.x + API.width, middle, busy, ""),
        box(
          WIDTH - BOX - 10,
          y,
          drained ? "away" : `replica ${pool}`,
          replica.name,
          `${replica.model}: ${replica.sessions} sessions${waiting}${drained ? ", drained" : ""}`,
          replica.blocks_total ? used(replica) : null,
          busy,
        ),
      ];
    })}
    <g class="api">
      <rect x=${API.x} y=${middle - 24} width=${API.width} height="48" rx="8"></rect>
      <text x=${API.x + API.width / 2} y=${middle - 2} text-anchor="middle">API</text>
      <text class="small" x=${API.x + API.width / 2} y=${middle + 14} text-anchor="middle">
        ${`${found.requests.length} ${found.requests.length === 1 ? "answer" : "answers"}`}
      </text>
    </g>
  </svg>`;
}

/** @param {UnderWay} request */
const said = ({ mode, endpoints, tokens }) =>
  `${[...new Set(Object.values(endpoints))].join(" and ")} give an answer in mode ${mode}, ${tokens} tokens so far.`;

/**
 * A device's link in a few words.
 * @param {Device} device
 */
function way({ rtt_s, link }) {
  const lost = link?.loss ? `, ${Number((link.loss * 100).toPrecision(2))} % lost` : "";
  return rtt_s || lost ? `${seconds(rtt_s)}${lost}` : "";
}

/** @param {Device} device */
function state({ model, sessions, capacity, battery }) {
  const charge = battery === null || battery === undefined ? "" : `, ${Math.round(battery * 100)} % battery`;
  return `${model || "device"}: ${sessions} of ${capacity}${charge}`;
}

/**
 * A box with a name, a state, and below it a bar for a share.
 * @param {number} x
 * @param {number} y
 * @param {string} kind
 * @param {string} name
 * @param {string} text
 * @param {number | null} share
 * @param {boolean} busy
 */
function box(x, y, kind, name, text, share, busy) {
  return svg`<g class=${`box ${kind} ${busy ? "busy" : ""}`}>
    <rect x=${x} y=${y - 22} width=${BOX} height="44" rx="8"></rect>
    <text x=${x + 10} y=${y - 5}>${name}</text>
    <text class="small" x=${x + 10} y=${y + 10}>${text}</text>
    ${share === null ? nothing : svg`<rect class="bar" x=${x + 8} y=${y + 15} width=${Math.max(0, share) * (BOX - 16)} height="4"></rect>`}
  </g>`;
}

/**
 * A link, whose dashes travel where it is at work.
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 * @param {boolean} busy
 * @param {string} text
 */
function line(x1, y1, x2, y2, busy, text) {
  return svg`<g class=${busy ? "link busy" : "link"}>
    <line x1=${x1} y1=${y1} x2=${x2} y2=${y2}></line>
    ${text ? svg`<text class="small" x=${x1 + 6} y=${y1 - 8}>${text}</text>` : nothing}
  </g>`;
}
