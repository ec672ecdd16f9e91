/** Metrics: the few figures that people look at, as they change while the page shows them. */

import { html, nothing, svg } from "./vendor/lit-html.js";
import { colour, label } from "./origins.js";
import { raw } from "./server.js";
import { count, dollars, joules, seconds } from "./units.js";

/** @import { Session } from "./session.js" */
/** @import { Sample, Series } from "./types.d.ts" */

const WIDTH = 220;
const HEIGHT = 48;
const MOST_KEPT = 200;
/** Samples of which charts are made. */

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/**
 * Read Prometheus's text format.
 * @param {string} text
 * @returns {Series[]}
 */
export function read(text) {
  /** @type {Series[]} */
  const found = [];
  for (const line of text.split("\n")) {
    const [, name, labels, value] = LINE.exec(line) ?? [];
    if (!name) continue;
    const read = [...(labels ?? "").matchAll(LABEL)].map(([, key, said]) => [key, said]);
    found.push({ name, labels: Object.fromEntries(read), value: Number(value) });
  }
  return found;
}

/**
 * Add a sample to those that are kept.
 * @param {Sample[]} samples
 * @param {Sample} sample
 */
export const kept = (samples, sample) => [...samples, sample].slice(-MOST_KEPT);

/**
 * Sum of a metric's series.
 * @param {Sample} sample
 * @param {string} name
 * @param {(labels: Record<string, string>) => boolean} of
 */
function sum({ series }, name, of = () => true) {
  return series.reduce((total, each) => (each.name === name && of(each.labels) ? total + each.value : total), 0);
}

/**
 * Quantile of a histogram, within its bucket as if values were spread evenly; null without values.
 * @param {Sample} sample
 * @param {string} name
 * @param {number} share
 */
export function quantile({ series }, name, share) {
  /** @type {Map<number, number>} */
  const upTo = new Map();
  for (const { name: each, labels, value } of series) {
    if (each !== `${name}_bucket`) continue;
    const bound = labels["le"] === "+Inf" ? Infinity : Number(labels["le"]);
    upTo.set(bound, (upTo.get(bound) ?? 0) + value);
  }
  const bounds = [...upTo].sort(([a], [b]) => a - b);
  const wanted = share * (bounds.at(-1)?.[1] ?? 0);
  if (!wanted) return null;
  let [low, below] = [0, 0];
  for (const [bound, values] of bounds) {
    if (values >= wanted) return bound === Infinity ? low : low + ((bound - low) * (wanted - below)) / (values - below);
    [low, below] = [bound, values];
  }
  return null;
}

/**
 * What a counter grew by in a second, between each two samples.
 * @param {Sample[]} samples
 * @param {string} name
 */
function growth(samples, name) {
  return samples.slice(1).map((sample, i) => {
    const before = /** @type {Sample} */ (samples[i]);
    return Math.max(0, sum(sample, name) - sum(before, name)) / Math.max(sample.at_s - before.at_s, 0.001);
  });
}

/** @param {Session} session */
export function metrics(session) {
  const { samples, metricsTrouble: trouble } = session;
  const last = samples.at(-1);
  return html`<section class="server" aria-label="Metrics">
    <h2>Metrics</h2>
    ${trouble ? html`<p class="error" role="alert">${trouble}</p>` : nothing}
    ${last ? [figures(samples, last), origins(last)] : trouble ? nothing : html`<p class="note">Waiting for the server…</p>`}
    ${raw("metrics")}
  </section>`;
}

/**
 * @param {Sample[]} samples
 * @param {Sample} last
 */
function figures(samples, last) {
  const [ttft, tpot] = ["vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"];
  const written = growth(samples, "vllm:generation_tokens_total");
  const running = samples.map((sample) => sum(sample, "vllm:num_requests_running"));
  const waiting = samples.map((sample) => sum(sample, "vllm:num_requests_waiting") + sum(sample, "tandem_gate_waiting"));
  const caches = samples.map(({ series }) => Math.max(0, ...series.filter(({ name }) => name === "vllm:kv_cache_usage_perc").map(({ value }) => 100 * value)));
  const failed = sum(last, "vllm:request_success_total", ({ finished_reason: why }) => why === "error");
  const drafted = sum(last, "vllm:spec_decode_num_draft_tokens_total");
  const accepted = sum(last, "vllm:spec_decode_num_accepted_tokens_total");
  return html`<h3>Now</h3>
    <div class="tiles">
      ${tile("Output", `${(written.at(-1) ?? 0).toFixed(1)} tokens/s`, written)}
      ${tile("Sessions in the engines", String(running.at(-1)), running)}
      ${tile("Waiting", String(waiting.at(-1)), waiting)}
      ${tile("Fullest KV cache", `${Math.round(caches.at(-1) ?? 0)} %`, caches)}
    </div>
    <h3>Since the server started</h3>
    <div class="tiles">
      ${tile("Answers", `${sum(last, "vllm:request_success_total")}${failed ? `, ${failed} failed` : ""}`)}
      ${tile("First token: median, 95th percentile", spread(last, ttft))}
      ${tile("Each further token: median, 95th percentile", spread(last, tpot))}
      ${tile("Drafts accepted", drafted ? `${Math.round((100 * accepted) / drafted)} % of ${count(drafted)} tokens` : "–")}
      ${tile("Cost", dollars(sum(last, "tandem_usd_total")))}
      ${tile("Energy of devices", joules(sum(last, "tandem_device_joules_total")))}
    </div>`;
}

/**
 * @param {Sample} sample
 * @param {string} name
 */
function spread(sample, name) {
  const [middle, slow] = [quantile(sample, name, 0.5), quantile(sample, name, 0.95)];
  return middle === null || slow === null ? "–" : `${seconds(middle)}, ${seconds(slow)}`;
}

/**
 * @param {string} name
 * @param {string} value
 * @param {number[] | null} course values over the time that the page has shown them
 */
function tile(name, value, course = null) {
  return html`<div class="tile">
    <span class="note">${name}</span>
    <b>${value}</b>
    ${course ? line(name, course) : nothing}
  </div>`;
}

/**
 * @param {string} name
 * @param {number[]} course
 */
function line(name, course) {
  const most = Math.max(...course, 0);
  const x = (/** @type {number} */ i) => (i / Math.max(1, course.length - 1)) * WIDTH;
  const y = (/** @type {number} */ value) => HEIGHT - 2 - (value / (most || 1)) * (HEIGHT - 4);
  const said = `${name} while this page was open: at most ${Number(most.toPrecision(3))}`;
  return html`<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${said} preserveAspectRatio="none">
    ${svg`<polyline points=${course.map((value, i) => `${x(i)},${y(value)}`).join(" ")}></polyline>`}
  </svg>`;
}

/** @param {Sample} last */
function origins(last) {
  /** @type {Map<string, number>} */
  const tokens = new Map();
  for (const { name, labels, value } of last.series) {
    if (name === "vllm:generation_tokens_total") tokens.set(labels["origin"] ?? "", (tokens.get(labels["origin"] ?? "") ?? 0) + value);
  }
  const all = [...tokens.values()].reduce((a, b) => a + b, 0);
  if (!all) return html`<p class="note">No answer has been given yet.</p>`;
  const shares = [...tokens].filter(([, written]) => written).map(([origin, written]) => ({ origin, written, share: written / all }));
  let from = 0;
  return html`<h3>Who wrote the ${count(all)} tokens</h3>
    <svg class="shares" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label=${shares.map(({ origin, share }) => `${label(origin)} ${Math.round(100 * share)} %`).join(", ")}>
      ${shares.map(({ origin, share }) => {
        const x = from;
        from += share * 1000;
        return svg`<rect class=${`share ${colour(origin)}`} x=${x} y="0" width=${share * 1000} height="28"></rect>`;
      })}
    </svg>
    <ul class="legend">
      ${shares.map(({ origin, written, share }) => html`<li><span class=${colour(origin)}>${label(origin)}</span> ${Math.round(100 * share)} %, ${count(written)} tokens</li>`)}
    </ul>`;
}
