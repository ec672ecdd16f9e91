/** The conversation: questions, answers, and where to type. */

import { html, nothing } from "./vendor/lit-html.js";
import { open, tokens } from "./answer.js";
import { journey } from "./journey.js";
import { rendered } from "./markdown.js";
import { MODES, ROLES } from "./models.js";
import { ORIGINS, colour } from "./origins.js";
import { timeline } from "./timeline.js";
import { dollars, joules, parameters, wholeSeconds } from "./units.js";
import { reasons } from "./why.js";

/** @import { Session } from "./session.js" */
/** @import { Answer, Example, Part, Turn } from "./types.d.ts" */

/** @type {WeakMap<Answer, { text: string, element: HTMLElement }>} */
const texts = new WeakMap();

/** @param {Session} session */
export function chat(session) {
  const { turns } = session.current;
  return html`<section class=${session.choices.origins ? "chat" : "chat plain"} aria-label="Conversation">
    ${turns.length
      ? [legend(session), turns.map((turn, at) => exchange(session, turn, at)), sums(turns), proposal(session)]
      : welcome(session)}
  </section>`;
}

/** @param {Session} session */
function welcome(session) {
  const { model, own, ready } = session;
  const body = JSON.stringify({ model: model?.id ?? "", messages: [{ role: "user", content: "Hello!" }] });
  return html`<div class="welcome">
    <h2>Ask something</h2>
    <p>
      A large model in the cloud and small models on devices answer together. The colour of each word shows which of them
      wrote it, and the time line below an answer shows when.
    </p>
    ${model?.parts.length ? html`<p class="note">Models: ${model.parts.map((part) => `${part.model} (${sizedRole(part)})`).join(", ")}.</p>` : nothing}
    ${model?.about ? html`<p class="demo">${model.about}</p>` : nothing}
    ${examples(session)}
    ${own ? whose(ready?.device ?? null, ready?.cloud === true, ready?.split === true) : nothing}
    ${legend(session)}
    <details>
      <summary>Ask from a program</summary>
      <pre><code>curl ${new URL("v1/chat/completions", document.baseURI).href} -H 'content-type: application/json' -d '${body}'</code></pre>
    </details>
  </div>`;
}

/** @param {Part} part */
const sizedRole = ({ role, parameters: number }) => `${ROLES[role]}${number ? `, ${parameters(number)} parameters` : ""}`;

/** @param {Session} session */
function examples(session) {
  if (!session.examples.length) return nothing;
  return html`<ul class="examples" aria-label="Examples">
    ${session.examples.map(
      (each) => html`<li>
        <button type="button" @click=${() => session.ask(each.question, undefined, each)}>
          <span>${each.question}</span>${shows(session, each)}
        </button>
      </li>`,
    )}
  </ul>`;
}

/**
 * Say in which mode an example is asked, and which colours that shows.
 * @param {Session} session
 * @param {Example} example
 */
function shows(session, { mode }) {
  if (mode === null) return html`<small>${session.model?.objectives.length ? "auto: the server chooses the mode" : "the server's default mode"}</small>`;
  const known = MODES[mode];
  return html`<small>${mode}: ${known?.means}</small>
    <small>${(known?.shows ?? []).map((origin) => html`<span class=${colour(origin)}>${ORIGINS[origin]?.label}</span> `)}</small>`;
}

/**
 * Say below the answers of demo models that they are ones, with a question that they know the answer to.
 * @param {Session} session
 */
function proposal(session) {
  const { model, busy, current, examples: all } = session;
  if (!model?.demo || busy) return nothing;
  const asked = new Set(current.turns.map(({ question }) => question));
  const next = all.find(({ question }) => !asked.has(question)) ?? all[0];
  return html`<div class="demo">
    <p>${model.about}</p>
    ${next
      ? html`<p>
          Try: <button type="button" class="propose" @click=${() => session.ask(next.question, undefined, next)}>${next.question}</button>
          ${next.mode ? html`<span class="note">(mode ${next.mode})</span>` : nothing}
        </p>`
      : nothing}
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
    ${cloud ? "is connected" : "does not answer"}. ${split ? "Modes “device” and “split” keep" : "Mode “device” keeps"} your text
    on the device. The other modes send it to the cloud, so they are used only when you choose them.
    ${split ? "Mode “split” sends the cloud numbers that the device's part of the model has computed." : nothing}
  </p>`;
}

/** @param {Session} session */
function legend(session) {
  if (!session.choices.origins) return nothing;
  return html`<ul class="legend" aria-label="Who wrote the words">
    ${Object.entries(ORIGINS).map(
      ([origin, { label, means }]) => html`<li title=${means}><span class=${colour(origin)}>${label}</span></li>`,
    )}
    <li title="here the cloud took over from the device, or the device from the cloud">
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
    <label>Change question ${at + 1} <textarea name="question" rows="3" .defaultValue=${turn.question}></textarea></label>
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
      <span class="mode">${answer.why?.chosen && !answer.asked ? "auto: " : ""}${served || "server's choice"}</span>
      ${answer.stats?.device ? html`<span>with ${answer.stats.device}</span>` : nothing}
      ${answer.reconnects ? html`<span>reconnected ${answer.reconnects}×</span>` : nothing}
      ${turn.answers.length > 1
        ? html`<label>
            <input type="radio" name=${`picked-${at}`} .checked=${turn.picked === i} @change=${() => session.pick(turn, i)} />
            continue with this answer
          </label>`
        : nothing}
    </header>
    ${answer.thoughts ? html`<details><summary>Reasoning</summary><p>${answer.thoughts}</p></details>` : nothing}
    ${answer.state === "waiting" ? html`<p class="waiting">…</p>` : body(answer)}
    ${answer.error ? html`<p class="error">${answer.error}</p>` : nothing}
    ${answer.state === "stopped" ? html`<p class="note">You stopped this answer.</p>` : nothing}
    ${answer.finish === "length" ? html`<p class="note">The answer ends here because it reached the longest length or the end of the context.</p>` : nothing}
    ${journey(answer, turn.answers.length)} ${timeline(answer, turn.answers.length)} ${figures(answer)} ${reasons(answer)}
    ${open(answer)
      ? nothing
      : html`<footer>
          <button type="button" @click=${() => copy(session, answer.text)}>Copy</button>
          <button type="button" ?disabled=${session.busy} @click=${() => session.again(at)}>Answer again</button>
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
    ["first token, server's clock", wholeSeconds(timing.ttft_s)],
    ["whole answer, server's clock", wholeSeconds(timing.total_s)],
  ];
  if (counts.output > 1 && spread > 0) shown.push(["speed", `${((counts.output - 1) / spread).toFixed(1)} tokens/s`]);
  shown.push(["cost", dollars(cost.usd)], ["energy on the device", joules(cost.joules)]);
  return html`<dl class="figures">${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${moved(stats.moves ?? [])}
    <details class="more">
      <summary>All figures</summary>
      <dl class="figures">
        ${flat({ tokens: counts, stages_s: timing.stages_s, ...stats.modes }).map(
          ([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`,
        )}
      </dl>
    </details>`;
}

/**
 * Say why an answer went on elsewhere: each reason once, where it held first.
 * @param {{ position: number, words: string }[]} moves
 */
function moved(moves) {
  const first = moves.filter((move, i) => moves.findIndex(({ words }) => words === move.words) === i);
  return first.map(({ position, words }) => {
    const times = moves.filter((move) => move.words === words).length;
    const when = position ? `after ${position} ${position === 1 ? "token" : "tokens"}` : "before its first token";
    const often = times > 1 ? ` ${times} times, first` : "";
    return html`<p class="note moved">This answer moved${often} ${when}: ${words}.</p>`;
  });
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
    This conversation so far: ${written} tokens, ${dollars(usd)}, ${joules(spent)} of energy on
    devices${unknown ? `, without ${unknown === 1 ? "an unfinished answer" : `${unknown} unfinished answers`}` : ""}.
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
    session.tell("The browser did not allow copying.");
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
    <textarea id="question" rows="2" placeholder=${session.model?.demo ? "Ask about a town, person, machine or dish of the encyclopedia" : "Ask something"} aria-describedby="keys" @keydown=${pressed}></textarea>
    ${session.busy
      ? html`<button type="button" class="stop" @click=${() => session.stop()}>Stop</button>`
      : html`<button type="submit" ?disabled=${!session.model}>Send</button>`}
    <p id="keys">Enter sends the question, Shift+Enter starts a new line, Esc stops the answer, / jumps here.</p>
  </form>`;
}
