/** Tables, which are cards on a phone. */

import { html, nothing } from "./vendor/lit-html.js";

/** @import { TemplateResult } from "./vendor/lit-html.js" */

/** @typedef {string | TemplateResult} Cell */

const MOST_LISTED = 500;
/** Rows of a table. */

/**
 * @param {string[]} heads
 * @param {Cell[][]} rows
 */
export function table(heads, rows) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${heads.join(", ")}>
    <table class=${heads.length > 2 ? "listed cards" : "listed"} role="table">
      <thead role="rowgroup">
        <tr role="row">${heads.map((head) => html`<th scope="col" role="columnheader">${head}</th>`)}</tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.slice(0, MOST_LISTED).map(
          ([first, ...rest]) => html`<tr role="row">
            <th scope="row" role="rowheader">${first}</th>
            ${rest.map((cell, i) => html`<td role="cell" data-head=${heads[i + 1] ?? ""}>${cell}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
    ${rows.length > MOST_LISTED ? html`<p class="note">and ${rows.length - MOST_LISTED} more</p>` : nothing}
  </div>`;
}
