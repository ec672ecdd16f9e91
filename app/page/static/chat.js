/** The conversation: questions, answers, and where to type. */

import { html, nothing } from "./vendor/lit-html.js";
import { open, tokens } from "./answer.js";
import { journey } from "./journey.js";
import { rendered } from "./markdown.js";
import { ORIGINS, colour } from "./origins.js";
import { timeline } from "./timeline.js";
import { dollars, joules, seconds } from "./units.js";
import { reasons } from "./why.js";

/** @import { Session } from "./session.js" */
/** @import { Answer, Turn } from "./types.d.ts" */

/** @type {WeakMap<Answer, { text: string, element: HTMLElement }>} */
const texts = new WeakMap();

/** @param {Session} session */
export function chat(session) {
  const { turns } = session.current;
  return html`<section class=${session.choices.origins ? "chat" : "chat plain"} aria-label="Conversation">
    ${turns.length ? [legend(session), turns.map((turn, at) => exchange(session, turn, at)), sums(turns)] : welcome(session)}
  </section>`;
}

/** @param {Session} session */
function welcome(session) {
  const { model, own, ready } = session;
  const body = JSON.stringify({ model: model?.id ?? "", messages: [{ role: "user", content: "Hello!" }] });
  return html`<div class="welcome">
    <h2>Ask something</h2>
    <p>
      Language models answer here from the cloud and from devices at once. The colour of each word says who wrote it, and
      a time line below the answer when it came.
    </p>
    ${own ? whose(ready?.device ?? null, ready?.cloud === true, ready?.split === true) : nothing}
    ${legend(session)}
    <details>
      <summary>The same from a program</summary>
      <pre><code>curl ${new URL("v1/chat/completions", document.baseURI).href} -H 'content-type: application/json' -d '${body}'</code></pre>
    </details>
  </div>`;
}

/**
 * Say of a device's own page whose it is, and what leaves the device.
 * @param {string | null} device
 * @param {boolean} cloud
 * @param {boolean} split
 */
function whose(device, cloud, split) {
  return html`<p class="whose">
    This is the page of ${device ? html`the device <b>${device}</b>` : "this device"} itself. The cloud
    ${cloud ? "is connected" : "does not answer"}. Modes “device”${split ? " and “split”" : ""} keep your text on the device;
    in the others its tokens go to the cloud, and so they are only used where you choose them.
    ${split ? "In mode “split” numbers that the device's part of the model has computed go to the cloud." : nothing}
  </p>`;
}

/** @param {Session} session */
function legend(session) {
  if (!session.choices.origins) return nothing;
  return html`<ul class="legend" aria-label="Who wrote the words">
    ${Object.entries(ORIGINS).map(
      ([origin, { label, means }]) => html`<li title=${means}><span class=${colour(origin)}>${label}</span></li>`,
    )}
    <li title="where the cloud goes on in place of the device, or the device in place of the cloud">
      <span class="handed">handed over</span>
    </li>
  </ul>`;
}

/**
 * @param {Session} session
 * @param {Turn} turn
 * @param {number} at
 */
function exchange(session, turn, at) {
  return html`<article class="turn" aria-label=${`Question ${at + 1}`}>
    ${session.editing === at ? editor(session, turn, at) : question(session, turn, at)}
    ${answers(session, turn, at)}
  </article>`;
}

/**
 * Show the answers of a turn.
 * @param {Session} session
 * @param {Turn} turn
 * @param {number} at
 */
export function answers(session, turn, at) {
  return html`<div class=${turn.answers.length > 1 ? "answers side" : "answers"}>
    ${turn.answers.map((answer, i) => shown(session, turn, answer, at, i))}
  </div>`;
}

/**
 * @param {Session} session
 * @param {Turn} turn
 * @param {number} at
 */
function question(session, turn, at) {
  return html`<div class="question">
    <p>${turn.question}</p>
    <button type="button" ?disabled=${session.busy} @click=${() => session.edit(at)} aria-label=${`Edit question ${at + 1}`}>
      Edit
    </button>
  </div>`;
}

/**
 * @param {Session} session
 * @param {Turn} turn
 * @param {number} at
 */
function editor(session, turn, at) {
  const save = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    session.ask(String(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)).get("question")), at);
  };
  return html`<form class="editor" @submit=${save}>
    <label>Question ${at + 1}, changed <textarea name="question" rows="3" .defaultValue=${turn.question}></textarea></label>
    <button type="submit">Ask again</button>
    <button type="button" @click=${() => session.edit(null)}>Cancel</button>
  </form>`;
}

/**
 * @param {Session} session
 * @param {Turn} turn
 * @param {Answer} answer
 * @param {number} at
 * @param {number} i
 */
function shown(session, turn, answer, at, i) {
  const served = answer.stats?.mode ?? answer.asked;
  return html`<section class="answer ${answer.state}" aria-busy=${open(answer)} aria-label=${`Answer ${served ? `in mode ${served}` : ""}`}>
    <header>
      <span class="mode">${answer.why?.chosen ? "auto: " : ""}${served || "as the server decides"}</span>
      ${answer.stats?.device ? html`<span>with ${answer.stats.device}</span>` : nothing}
      ${answer.reconnects ? html`<span>reconnected ${answer.reconnects}×</span>` : nothing}
      ${turn.answers.length > 1
        ? html`<label>
            <input type="radio" name=${`picked-${at}`} .checked=${turn.picked === i} @change=${() => session.pick(turn, i)} />
            go on with this
          </label>`
        : nothing}
    </header>
    ${answer.thoughts ? html`<details><summary>Thoughts</summary><p>${answer.thoughts}</p></details>` : nothing}
    ${answer.state === "waiting" ? html`<p class="waiting">…</p>` : body(answer)}
    ${answer.error ? html`<p class="error">${answer.error}</p>` : nothing}
    ${answer.state === "stopped" ? html`<p class="note">stopped</p>` : nothing}
    ${answer.finish === "length" ? html`<p class="note">cut off: the longest answer, or the end of the context</p>` : nothing}
    ${journey(answer, turn.answers.length)} ${timeline(answer, turn.answers.length)} ${figures(answer)} ${reasons(answer)}
    ${open(answer)
      ? nothing
      : html`<footer>
          <button type="button" @click=${() => copy(session, answer.text)}>Copy</button>
          <button type="button" ?disabled=${session.busy} @click=${() => session.again(at)}>Again</button>
        </footer>`}
  </section>`;
}

/**
 * Return the element with an answer's text, made anew only where the text is.
 * @param {Answer} answer
 */
function body(answer) {
  const known = texts.get(answer);
  if (known?.text === answer.text) return known.element;
  const element = document.createElement("div");
  element.className = "text";
  element.append(rendered(answer.text, answer.runs));
  for (const code of element.querySelectorAll("pre")) code.tabIndex = 0; // it scrolls
  texts.set(answer, { text: answer.text, element });
  return element;
}

/** @param {Answer} answer */
function figures(answer) {
  const { stats } = answer;
  if (!stats) return nothing;
  const { timing, tokens: counts, cost } = stats;
  const spread = timing.total_s - timing.ttft_s;
  /** @type {[string, string][]} */
  const shown = [
    ["tokens", String(counts.output)],
    ["first token", seconds(timing.ttft_s)],
    ["in all", seconds(timing.total_s)],
  ];
  if (counts.output > 1 && spread > 0) shown.push(["pace", `${((counts.output - 1) / spread).toFixed(1)} tokens/s`]);
  shown.push(["cost", dollars(cost.usd)], ["device's energy", joules(cost.joules)]);
  if (stats.replans) shown.push(["continued elsewhere", `${stats.replans}×`]);
  return html`<dl class="figures">${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <details class="more">
      <summary>More figures</summary>
      <dl class="figures">
        ${flat({ tokens: counts, stages_s: timing.stages_s, ...stats.modes }).map(
          ([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`,
        )}
      </dl>
    </details>`;
}

/**
 * Return the numbers of an object, by the names on the way to them.
 * @param {Record<string, unknown>} object
 * @param {string} before
 * @returns {[string, string][]}
 */
function flat(object, before = "") {
  return Object.entries(object).flatMap(([name, value]) => {
    if (value !== null && typeof value === "object") {
      return flat(/** @type {Record<string, unknown>} */ (value), `${before}${name} `);
    }
    const number = typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(3) : String(value);
    return value === null ? [] : [/** @type {[string, string]} */ ([`${before}${name}`.replaceAll("_", " "), number])];
  });
}

/** @param {Turn[]} turns */
function sums(turns) {
  const answers = turns.flatMap((turn) => turn.answers);
  const usd = answers.reduce((sum, each) => sum + (each.stats?.cost.usd ?? 0), 0);
  const spent = answers.reduce((sum, each) => sum + (each.stats?.cost.joules ?? 0), 0);
  const written = answers.reduce((sum, each) => sum + tokens(each), 0);
  const unknown = answers.filter((each) => !each.stats).length;
  return html`<p class="sums">
    So far: ${written} tokens, ${dollars(usd)}, ${joules(spent)} of devices'
    energy${unknown ? `, and what ${unknown === 1 ? "an unfinished answer" : `${unknown} unfinished answers`} took` : ""}.
  </p>`;
}

/**
 * @param {Session} session
 * @param {string} text
 */
async function copy(session, text) {
  try {
    await navigator.clipboard.writeText(text);
    session.tell("Copied.");
  } catch {
    session.tell("The browser does not let this page copy.");
  }
}

/** @param {Session} session */
export function composer(session) {
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    const field = /** @type {HTMLTextAreaElement} */ (document.getElementById("question"));
    if (session.busy || !field.value.trim() || !session.model) return;
    session.ask(field.value);
    field.value = "";
  };
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return html`<form class="composer" @submit=${send}>
    <label for="question" class="hidden">Question</label>
    <textarea id="question" rows="2" placeholder="Ask something" aria-describedby="keys" @keydown=${pressed}></textarea>
    ${session.busy
      ? html`<button type="button" class="stop" @click=${() => session.stop()}>Stop</button>`
      : html`<button type="submit" ?disabled=${!session.model}>Send</button>`}
    <p id="keys">Enter sends, Shift+Enter begins a line, Esc stops, / goes to the question.</p>
  </form>`;
}
