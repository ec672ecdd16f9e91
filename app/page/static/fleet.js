/** The fleet, live: replicas and devices, their load, and who works for whom. */

import { html, nothing, svg } from "./vendor/lit-html.js";
import { answers } from "./chat.js";
import { deviceOrders, ordered, rates, replicaOrders } from "./orders.js";
import { label } from "./origins.js";
import { hardware, power } from "./server.js";
import { table } from "./table.js";
import { joules, seconds } from "./units.js";

/** @import { Session } from "./session.js" */
/** @import { Device, Fleet, Replica, UnderWay } from "./types.d.ts" */

const WIDTH = 900;
const ROW = 58;
const BOX = 250;
const API = 90;
const MOST_DRAWN = 14;
/** Devices that the picture has. */
const NARROW = matchMedia("(max-width: 48rem)");
/** Windows in which the API stands above two columns, not between them. */
const SIDE = 16;
/** Beside the picture there. */

/** @param {Session} session */
export function fleet(session) {
  const { fleet: found, fleetTrouble: trouble } = session;
  if (!found) return html`<section class="fleet" aria-label="Fleet"><p>${trouble || "Waiting for the server…"}</p></section>`;
  const replicas = listed(found.pools, false).concat(listed(found.drained, true));
  const orders = !session.own;
  return html`<section class="fleet" aria-label="Fleet">
    ${trouble ? html`<p class="error">${trouble}</p>` : nothing}
    ${picture(found, replicas)}
    ${session.orderTrouble ? html`<p class="error" role="alert">${session.orderTrouble}</p>` : nothing}
    <h2>Answers in progress</h2>
    ${found.requests.length
      ? table(
          ["Answer", "Account", "Mode", "Worked on by", "Tokens", "Last token from"],
          found.requests.map((each) => [
            String(each.request % 100_000),
            each.account,
            each.mode,
            [...new Set(Object.values(each.endpoints))].join(", "),
            String(each.tokens),
            label(each.origin),
          ]),
        )
      : html`<p class="note">No answer is in progress at the API replica that this page is connected to.</p>`}
    ${own(session)}
    <h2>Replicas</h2>
    ${table(
      ["Name", "Model", "Sessions", "Waiting", "Free places", "KV cache in use", "Preempted", "State", ...(orders ? ["Orders"] : [])],
      replicas.map(({ replica, drained }) => [
        replica.name,
        replica.model,
        String(replica.sessions),
        String(replica.waiting),
        String(replica.room),
        replica.blocks_total ? `${Math.round(used(replica) * 100)} % of ${replica.blocks_total} blocks` : "–",
        String(replica.preempted),
        replica.refusal ?? (drained ? (replica.sessions ? "draining" : "drained") : replica.rests ? "resting" : "up"),
        ...(orders ? [replicaOrders(session, replica.name, drained)] : []),
      ]),
    )}
    <h2>Devices</h2>
    ${found.devices.length || found.missing.length
      ? table(
          ["Name", "Hardware", "Model", "Round trip", "Bandwidth", "Packet loss", "Sessions", "Battery", "Energy so far", "State", ...(orders ? ["Orders"] : [])],
          [
            ...found.devices.map((each) => [
              each.name,
              hardware(each),
              each.model,
              seconds(each.rtt_s),
              rates(each.link),
              each.link ? `${Number((each.link.loss * 100).toPrecision(2))} %` : "–",
              `${each.sessions} of ${each.capacity}`,
              power(each),
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
      : html`<p class="note">No device is connected.</p>`}
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

/** @param {Replica} replica */
const used = ({ blocks_free, blocks_total }) => (blocks_total ? 1 - blocks_free / blocks_total : 0);

/**
 * The API between devices on the left and replicas on the right, or above them where the window is narrow. The lines to
 * those that work for an answer are thick, and move.
 * @param {Fleet} found
 * @param {{ pool: string, replica: Replica, drained: boolean }[]} replicas
 */
function picture(found, replicas) {
  const busyFirst = (/** @type {Device} */ a, /** @type {Device} */ b) => b.sessions - a.sessions;
  const devices = found.devices.length > MOST_DRAWN ? found.devices.toSorted(busyFirst).slice(0, MOST_DRAWN) : found.devices;
  const gone = away(found).slice(0, MOST_DRAWN - devices.length);
  const [left, right] = [devices.length + gone.length, replicas.length];
  const at = NARROW.matches ? above(Math.max(left, right)) : between(left, right);
  const working = new Set(found.requests.flatMap(({ endpoints }) => Object.values(endpoints)));
  const now = found.requests.map(said).join(" ");
  const count = `${found.requests.length} ${found.requests.length === 1 ? "answer" : "answers"}`;
  return html`<svg
    class="picture"
    viewBox="0 0 ${at.width} ${at.height}"
    role="img"
    aria-label=${`${found.devices.length} devices, ${replicas.length} replicas. ${now || "No answer is in progress."}`}
  >
    ${devices.map((each, i) => line(at.link(i, "left"), working.has(each.name), at.narrow ? "" : way(each)))}
    ${replicas.map(({ replica }, i) => line(at.link(i, "right"), working.has(replica.name), ""))}
    ${devices.map((each, i) =>
      box(at.place(i, "left"), "device", at.named(each.name), state(each, at.narrow), each.battery ?? null, working.has(each.name)),
    )}
    ${gone.map((name, i) => box(at.place(devices.length + i, "left"), "away", at.named(name), ordered(found, name) || "missing", null, false))}
    ${replicas.map(({ pool, replica, drained }, i) =>
      box(
        at.place(i, "right"),
        drained ? "away" : `replica ${pool}`,
        at.named(replica.name),
        load(replica, drained, at.narrow),
        replica.blocks_total ? used(replica) : null,
        working.has(replica.name),
      ),
    )}
    <g class="api">
      <rect x=${at.api.x - API / 2} y=${at.api.y - 24} width=${API} height="48" rx="8"></rect>
      <text x=${at.api.x} y=${at.api.y - 2} text-anchor="middle">API</text>
      <text class="small" x=${at.api.x} y=${at.api.y + 14} text-anchor="middle">${count}</text>
    </g>
  </svg>`;
}

/** @typedef {"left" | "right"} Column */
/** @typedef {{ x: number, y: number, width: number }} Place of a box: its left edge, its middle, and its width */

/**
 * The API in the middle, and a line to each box.
 * @param {number} left boxes
 * @param {number} right
 */
function between(left, right) {
  const height = Math.max(left, right, 2) * ROW + 20;
  const api = { x: WIDTH / 2, y: height / 2 };
  const counts = { left, right };
  const edges = { left: 10, right: WIDTH - BOX - 10 };
  const place = (/** @type {number} */ i, /** @type {Column} */ column) => ({
    x: edges[column],
    y: api.y + (i - (counts[column] - 1) / 2) * ROW,
    width: BOX,
  });
  const link = (/** @type {number} */ i, /** @type {Column} */ column) => {
    const { y } = place(i, column);
    return column === "left"
      ? [BOX + 10, y, api.x - API / 2, api.y]
      : [WIDTH - BOX - 10, y, api.x + API / 2, api.y];
  };
  return { width: WIDTH, height, api, place, link, named: (/** @type {string} */ name) => name, narrow: false };
}

/**
 * The API above, a line down the middle, and from there one to each box.
 * @param {number} rows
 */
function above(rows) {
  const width = Math.max(280, innerWidth - 2 * SIDE);
  const api = { x: width / 2, y: 32 };
  const box = width / 2 - 16;
  const place = (/** @type {number} */ i, /** @type {Column} */ column) => ({
    x: column === "left" ? 4 : width - box - 4,
    y: api.y + (i + 1) * ROW + 4,
    width: box,
  });
  const link = (/** @type {number} */ i, /** @type {Column} */ column) => {
    const { x, y } = place(i, column);
    return [column === "left" ? x + box : x, y, api.x, y, api.x, api.y + 24];
  };
  return { width, height: (rows + 1) * ROW + 40, api, place, link, named: shortened, narrow: true };
}

/** @param {UnderWay} request */
const said = ({ mode, endpoints, tokens }) =>
  `${[...new Set(Object.values(endpoints))].join(" and ")} answer in mode ${mode}, ${tokens} tokens so far.`;

/**
 * A device's link in a few words.
 * @param {Device} device
 */
function way({ rtt_s, link }) {
  const lost = link?.loss ? `, ${Number((link.loss * 100).toPrecision(2))} % lost` : "";
  return rtt_s || lost ? `${seconds(rtt_s)}${lost}` : "";
}

/**
 * A name that fits into a box of half a phone's width.
 * @param {string} name
 */
const shortened = (name) => (name.length > 16 ? `${name.slice(0, 9)}…${name.slice(-5)}` : name);

/**
 * @param {Device} device
 * @param {boolean} narrow
 */
function state(device, narrow) {
  const { model, sessions, capacity, battery } = device;
  const charge = battery === null || battery === undefined ? "" : `, ${Math.round(battery * 100)} %${narrow ? "" : " battery"}`;
  if (narrow) return `${sessions} of ${capacity}${device.rtt_s ? `, ${seconds(device.rtt_s)}` : ""}${charge}`;
  return `${model || "device"}: ${sessions} of ${capacity}${charge}`;
}

/**
 * @param {Replica} replica
 * @param {boolean} drained
 * @param {boolean} narrow
 */
function load({ model, sessions, waiting }, drained, narrow) {
  const said = `${narrow ? "" : `${model}: `}${sessions} sessions${waiting ? `, ${waiting} waiting` : ""}`;
  return drained ? `${said}, drained` : said;
}

/**
 * A box with a name, a state, and below it a bar for a share.
 * @param {Place} place
 * @param {string} kind
 * @param {string} name
 * @param {string} text
 * @param {number | null} share
 * @param {boolean} busy
 */
function box({ x, y, width }, kind, name, text, share, busy) {
  return svg`<g class=${`box ${kind} ${busy ? "busy" : ""}`}>
    <rect x=${x} y=${y - 22} width=${width} height="44" rx="8"></rect>
    <text x=${x + 10} y=${y - 5}>${name}</text>
    <text class="small" x=${x + 10} y=${y + 10}>${text}</text>
    ${share === null ? nothing : svg`<rect class="bar" x=${x + 8} y=${y + 15} width=${Math.max(0, share) * (width - 16)} height="4"></rect>`}
  </g>`;
}

/**
 * A link, whose dashes travel where it is at work.
 * @param {number[]} points x and y of each, the first at the box
 * @param {boolean} busy
 * @param {string} text
 */
function line(points, busy, text) {
  const [x = 0, y = 0] = points;
  return svg`<g class=${busy ? "link busy" : "link"}>
    <polyline points=${points.join(" ")}></polyline>
    ${text ? svg`<text class="small" x=${x + 6} y=${y - 8}>${text}</text>` : nothing}
  </g>`;
}
