/** Experiments: a form for one, how it goes, and charts of its results beside earlier ones. */

import { html, nothing } from "./vendor/lit-html.js";
import { chart } from "./chart.js";
import { dollars, seconds } from "./units.js";

/** @import { Laboratory } from "./laboratory.js" */
/** @import { Experiment, Line, Outcome, Point, Setting } from "./types.d.ts" */

/** @typedef {{ title: string, unit: string, value: (point: Point) => number | null }} Panel */

/** @type {Panel[]} */
const PANELS = [
  { title: "Time to first token, mean", unit: "ms", value: ({ summary }) => ms(summary.ttft_s?.mean) },
  { title: "Time per further token, mean", unit: "ms", value: ({ summary }) => ms(summary.tpot_s?.mean) },
  { title: "Time to first token, slowest 1 %", unit: "ms", value: ({ summary }) => ms(summary.ttft_s?.p99) },
  { title: "Answers in which the reader has to wait", unit: "%", value: ({ summary }) => (summary.reading ? 100 * summary.reading.stalled_share : null) },
  { title: "Output", unit: "tokens/s", value: ({ summary }) => summary.tokens_per_s },
];
/** @type {[name: "ttft_s" | "tpot_s" | "e2e_s", title: string][]} */
const CURVES = [
  ["ttft_s", "Time to first token"],
  ["tpot_s", "Time per further token"],
  ["e2e_s", "Time to the last token"],
];

/** @param {Laboratory} laboratory */
export function experiments(laboratory) {
  const { experiment, trouble } = laboratory;
  return html`<section class="experiments" aria-label="Experiments">
    <h2>Experiments</h2>
    <p class="note">The server simulates Tandem's own code in virtual time. <code>tandem simulate</code>, <code>tandem sweep</code> and the
      benchmarks can do much more.</p>
    ${trouble ? html`<p class="error" role="alert">${trouble}</p>` : nothing}
    ${experiment ? form(laboratory, experiment) : nothing}
    ${laboratory.outcomes.length ? distributions(laboratory.outcomes) : nothing}
    <div class="outcomes">${laboratory.outcomes.map((each) => card(laboratory, each))}</div>
  </section>`;
}

/**
 * @param {Laboratory} laboratory
 * @param {Experiment} experiment
 */
function form(laboratory, experiment) {
  const run = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const said = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    /** @type {Record<string, number | string>} */
    const settings = {};
    for (const setting of experiment.settings) {
      const value = String(said.get(setting.key) ?? "");
      if (value && value !== String(setting.default)) settings[setting.key] = setting.choices.length ? value : Number(value);
    }
    /** @type {Record<string, (number | string)[]>} */
    const vary = {};
    for (const [key, values] of said) if (key.startsWith("vary ")) vary[key.slice(5)] = listed(String(values));
    const over = String(said.get("sweep") ?? "");
    if (over) vary[over] = listed(String(said.get("values")));
    void laboratory.run(settings, vary);
  };
  return html`<form class="experiment" @submit=${run}>
    <div class="field">
      <label for="experiment">Experiment</label>
      <select id="experiment" @change=${(/** @type {Event} */ event) => laboratory.choose(/** @type {HTMLSelectElement} */ (event.target).value)}>
        ${laboratory.experiments.map(
          ({ name, title }) => html`<option value=${name} .selected=${name === experiment.name}>${title}</option>`,
        )}
      </select>
    </div>
    <p>${experiment.about}</p>
    <div class="movable">
      ${experiment.settings.map((each) => movable(experiment, each))}
      ${Object.entries(experiment.vary).map(
        ([key, values]) => html`<div class="field">
          <label for=${`${experiment.name} vary ${key}`}>${experiment.labels[key] ?? key}: each of</label>
          <input id=${`${experiment.name} vary ${key}`} name=${`vary ${key}`} .value=${values.join(", ")} required />
        </div>`,
      )}
      ${Object.keys(experiment.vary).length ? nothing : sweep(experiment)}
    </div>
    ${laboratory.busy
      ? html`<button type="button" class="stop" @click=${() => laboratory.stop()}>Cancel</button>`
      : html`<button type="submit">Run</button>`}
  </form>`;
}

/**
 * Ask for a setting to vary, in an experiment that varies none by itself.
 * @param {Experiment} experiment
 */
function sweep({ name, settings }) {
  return html`<div class="field">
      <label for=${`${name} sweep`}>Sweep over</label>
      <select id=${`${name} sweep`} name="sweep">
        <option value="">Nothing (one simulation)</option>
        ${settings.map(({ key, label }) => html`<option value=${key}>${label}</option>`)}
      </select>
    </div>
    <div class="field">
      <label for=${`${name} values`}>Values, separated by commas</label>
      <input id=${`${name} values`} name="values" />
    </div>`;
}

/**
 * @param {Experiment} experiment
 * @param {Setting} setting
 */
function movable(experiment, { key, label, least, most, choices, default: initial }) {
  const id = `${experiment.name} ${key}`;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${choices.length
      ? html`<select id=${id} name=${key}>
          ${choices.map((each) => html`<option value=${each} .selected=${each === initial}>${each}</option>`)}
        </select>`
      : html`<input id=${id} name=${key} type="number" min=${least ?? 0} max=${most ?? ""} step="any" .value=${String(initial ?? "")} />`}
  </div>`;
}

/**
 * Distributions of single simulations, those of all outcomes in one chart.
 * @param {Outcome[]} outcomes
 */
function distributions(outcomes) {
  const single = outcomes.filter(({ points }) => points.length === 1 && !Object.keys(points[0]?.settings ?? {}).length);
  if (!single.length) return nothing;
  return html`<h3>Share of answers that are done within a time</h3>
    <div class="charts">
      ${CURVES.map(([name, title]) =>
        chart(
          title,
          "ms, simulated",
          "% of answers",
          single.map((outcome) => ({
            name: `${outcomes.length - outcomes.indexOf(outcome)}: ${told(outcome)}`,
            points: (outcome.points[0]?.curves[name] ?? []).map((value, i, all) => ({ x: value * 1000, y: (100 * i) / Math.max(1, all.length - 1) })),
          })),
          100,
        ),
      )}
    </div>`;
}

/**
 * @param {Laboratory} laboratory
 * @param {Outcome} outcome
 */
function card(laboratory, outcome) {
  const { experiment, points, state, done, total } = outcome;
  const number = laboratory.outcomes.length - laboratory.outcomes.indexOf(outcome);
  const swept = points.some(({ settings }) => Object.keys(settings).length);
  const alike = laboratory.outcomes.filter((each) => each.experiment.name === experiment.name);
  return html`<article class="outcome" aria-label=${`Result ${number}`} aria-busy=${state === "running"}>
    <header>
      <h3>${number}: ${experiment.title}</h3>
      <span class="note">${told(outcome)}</span>
      ${state === "running"
        ? nothing
        : html`<button type="button" aria-label=${`Remove result ${number}`} @click=${() => laboratory.forget(outcome)}>×</button>`}
    </header>
    ${state === "running"
      ? html`<label class="progress">${done} of ${total} requests <progress max=${total} value=${done}></progress></label>`
      : nothing}
    ${state === "stopped" ? html`<p class="note">You cancelled this run.</p>` : nothing}
    ${state === "failed" ? html`<p class="error">${outcome.error || "failed"}</p>` : nothing}
    ${swept
      ? html`<div class="charts">
          ${PANELS.map((panel) => {
            const lines = over(panel, points);
            const most = Math.max(0, ...alike.flatMap((each) => each.points.map((point) => panel.value(point) ?? 0)));
            const axis = Object.keys(points[0]?.settings ?? {})[0] ?? "";
            return lines.length && most ? chart(panel.title, experiment.labels[axis] ?? axis, panel.unit, lines, most) : nothing;
          })}
        </div>`
      : nothing}
    ${points.length ? table(experiment, points) : nothing}
  </article>`;
}

/**
 * A panel's lines over the first axis, one for each combination of the others.
 * @param {Panel} panel
 * @param {Point[]} points
 * @returns {Line[]}
 */
function over(panel, points) {
  /** @type {Map<string, Line>} */
  const lines = new Map();
  for (const point of points) {
    const value = panel.value(point);
    const [axis, ...others] = Object.entries(point.settings);
    if (value === null || !axis) continue;
    const name = others.map(([, each]) => each).join(", ") || panel.title;
    const line = lines.get(name) ?? { name, points: [] };
    lines.set(name, line);
    line.points.push({ x: axis[1], y: value });
  }
  return [...lines.values()];
}

/**
 * @param {Experiment} experiment
 * @param {Point[]} points
 */
function table({ labels }, points) {
  const axes = Object.keys(points[0]?.settings ?? {});
  const heads = [...axes.map((axis) => labels[axis] ?? axis), "requests", "failed", "first token", "per token", "tokens/s", "cost"];
  return html`<details>
    <summary>Figures</summary>
    <div class="scroll" tabindex="0" role="group" aria-label="Figures">
      <table>
        <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
        <tbody>
          ${points.map(
            ({ settings, summary }) => html`<tr>
              ${axes.map((axis) => html`<th scope="row">${settings[axis]}</th>`)}
              <td>${summary.requests}</td>
              <td>${summary.failed}</td>
              <td>${summary.ttft_s ? seconds(summary.ttft_s.mean) : "–"}</td>
              <td>${summary.tpot_s ? seconds(summary.tpot_s.mean) : "–"}</td>
              <td>${summary.tokens_per_s.toFixed(1)}</td>
              <td>${dollars(summary.usd)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </details>`;
}

/** @param {Outcome} outcome */
function told({ experiment, settings }) {
  const moved = Object.entries(settings).map(([key, value]) => `${experiment.labels[key] ?? key}: ${value}`);
  return moved.join(", ") || "with its default settings";
}

/** @param {string} values */
function listed(values) {
  const parts = values.split(",").map((each) => each.trim()).filter(Boolean);
  return parts.map((each) => (Number.isNaN(Number(each)) ? each : Number(each)));
}

/** @param {number | undefined} value */
const ms = (value) => (value === undefined ? null : value * 1000);
