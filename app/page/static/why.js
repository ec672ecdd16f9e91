/** Why the server chose a mode and a device, what it expected of them and of the next best, and what came. */

import { html, nothing } from "./vendor/lit-html.js";
import { dollars, joules, seconds, wholeSeconds } from "./units.js";

/** @import { Answer, Expected, Outlook, Why } from "./types.d.ts" */

/** @type {[name: "ttft_s" | "tpot_s" | "stall_s" | "usd" | "joules", label: string, unit: (value: number) => string][]} */
const ROWS = [
  ["ttft_s", "first token", seconds],
  ["tpot_s", "each further token", seconds],
  ["stall_s", "time the reader waits", seconds],
  ["usd", "cost", dollars],
  ["joules", "energy on the device", joules],
];

/**
 * Say what another way would have taken for this many tokens, as the router expected.
 * @param {Why} why
 * @param {number} tokens
 */
function another({ runner_up: next, came }, tokens) {
  if (!next || !came) return nothing;
  const took = (/** @type {number} */ ttft_s, /** @type {number} */ tpot_s) => wholeSeconds(ttft_s + tpot_s * Math.max(0, tokens - 1));
  return html`<p class="note another">
    The next best choice, ${way(next)}, would have taken about ${took(next.ttft_s.value, next.tpot_s.value)} and ${dollars(next.usd.value)};
    this answer took ${took(came.ttft_s, came.tpot_s)} and ${dollars(came.usd)}.
  </p>`;
}

/** @param {Why} why */
function replaced({ replaced: parts }) {
  if (!parts) return nothing;
  const kinds = Object.entries(parts).map(([kind, count]) => `${kind} ${count}×`);
  return html`<p class="note">Private details replaced before sending: ${kinds.join(", ") || "none found"}.</p>`;
}

/** @param {Answer} answer */
export function reasons({ why, stats }) {
  if (!why) return nothing;
  const { chosen, came, runner_up: next } = why;
  if (!chosen || !came) return replaced(why);
  return html`${replaced(why)}${another(why, stats?.tokens.output ?? 0)}<details class="why">
    <summary>Why ${way(chosen)}</summary>
    <p>${said(why)}</p>
    <div class="scroll" tabindex="0" role="group" aria-label="Expectations">
      <table>
        <thead>
          <tr>
            <th scope="col">median (range of 80 %)</th>
            <th scope="col">expected</th>
            <th scope="col">measured</th>
            ${next ? html`<th scope="col">next best: ${way(next)}</th>` : nothing}
          </tr>
        </thead>
        <tbody>
          ${ROWS.map(
            ([name, label, unit]) => html`<tr>
              <th scope="row">${label}</th>
              <td>${interval(chosen[name], unit)}</td>
              <td>${unit(came[name])}</td>
              ${next ? html`<td>${interval(next[name], unit)}</td>` : nothing}
            </tr>`,
          )}
          <tr>
            <th scope="row">quality, compared with the large model</th>
            <td>${chosen.quality}</td>
            <td></td>
            ${next ? html`<td>${next.quality}</td>` : nothing}
          </tr>
          <tr>
            <th scope="row">leaves the device</th>
            <td>${chosen.leaves.replace("_", " ")}</td>
            <td></td>
            ${next ? html`<td>${next.leaves.replace("_", " ")}</td>` : nothing}
          </tr>
        </tbody>
      </table>
    </div>
  </details>`;
}

/** @param {Outlook} outlook */
const way = ({ mode, device }) => (device ? `${mode} with ${device}` : mode);

/** @param {Why} why */
function said({ ways, by_usd, tried, limit_missed, changes }) {
  const parts = [`The server compared ${ways} ${ways === 1 ? "possibility" : "possibilities"}.`];
  if (tried) parts.push("This one did not look best; the server tried it to learn how it does.");
  else if (by_usd !== null) parts.push(`The next best looked worse by ${dollars(by_usd)}, with times and energy counted in dollars.`);
  if (limit_missed) parts.push("No possibility was expected to give the first token within the limit.");
  for (const { position, chosen } of changes) {
    parts.push(`Tokens came late, so the answer moved after ${position} tokens to ${way(chosen)}.`);
  }
  return parts.join(" ");
}

/**
 * @param {Expected} expected
 * @param {(value: number) => string} unit
 */
function interval({ value, low, high }, unit) {
  return low === high ? unit(value) : `${unit(value)} (${unit(low)} – ${unit(high)})`;
}
