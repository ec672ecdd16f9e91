/** The page: puts its parts together, and shows every change once a frame. */

import { html, nothing, render } from "./vendor/lit-html.js";
import { chat, composer } from "./chat.js";
import { experiments } from "./experiments.js";
import { fleet } from "./fleet.js";
import { metrics } from "./metrics.js";
import { devices, models, status } from "./server.js";
import { Session } from "./session.js";
import { keyForm, settings } from "./settings.js";
import * as store from "./store.js";

const WIDE = matchMedia("(min-width: 64rem)");
const root = /** @type {HTMLElement} */ (document.getElementById("app"));
let due = false;

const session = new Session(() => {
  if (due) return;
  due = true;
  requestAnimationFrame(draw);
});

function draw() {
  due = false;
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  render(page(), root);
  if (atEnd && session.busy && view() === "#chat") scrollTo(0, document.documentElement.scrollHeight);
}

/** @type {Record<string, string>} names of the views, by what the address has */
const VIEWS = {
  "#chat": "Chat",
  "#fleet": "Fleet",
  "#models": "Models",
  "#devices": "Devices",
  "#metrics": "Metrics",
  "#status": "Status",
  "#experiments": "Experiments",
};

const SERVER = ["#models", "#devices", "#status"];
/** Views of what the server tells of itself. */

/** What is shown: the conversation where the address says nothing else. */
const view = () => (location.hash in VIEWS ? location.hash : "#chat");

function page() {
  return html`${view() === "#chat" ? html`<a class="skip" href="#question">To the question</a>` : nothing}
    <header class="top">
      <h1>Tandem</h1>
      <span class="at">
        ${session.own ? `device ${session.ready?.device ?? ""}` : (session.model?.id ?? "")}
        ${session.model?.demo ? html`<span class="badge" title=${session.model.about}>demo</span>` : nothing}
      </span>
      <nav aria-label="Page">
        ${Object.entries(VIEWS).map(
          ([at, name]) => html`<a href=${at} aria-current=${at === view() ? "page" : "false"}>${name}</a>`,
        )}
        <a href="docs">API reference</a>
      </nav>
      ${themes()}
    </header>
    ${view() === "#chat" ? conversation() : html`<main class="wide">${trouble()} ${wide()}</main>`}
    <p role="status" class="hidden">${session.news}</p>`;
}

function wide() {
  switch (view()) {
    case "#fleet":
      return fleet(session);
    case "#models":
      return models(session);
    case "#devices":
      return devices(session);
    case "#metrics":
      return metrics(session);
    case "#status":
      return status(session);
    default:
      return experiments(session.laboratory);
  }
}

function conversation() {
  return html`<div class="layout">
      <aside aria-label="Conversations">
        <details ?open=${WIDE.matches}><summary>Conversations</summary>${conversations()}</details>
      </aside>
      <aside class="settings-side" aria-label="Settings">
        <details ?open=${WIDE.matches}>
          <summary>Settings</summary>
          ${settings(session)}
          ${session.needsKey ? nothing : html`<details><summary>API key</summary>${keyForm(session)}</details>`}
        </details>
      </aside>
      <main>${trouble()} ${chat(session)} ${composer(session)}</main>
    </div>`;
}

function trouble() {
  const missing = session.ready?.reasons ?? [];
  if (!session.trouble && missing.length) {
    return html`<div class="trouble" role="status"><p>The server is not ready: ${missing.join("; ")}.</p></div>`;
  }
  if (!session.trouble) return nothing;
  return html`<div class="trouble" role="alert">
    <p>${session.trouble}</p>
    ${session.needsKey
      ? keyForm(session)
      : html`<button type="button" @click=${() => session.look()}>Try again</button>`}
  </div>`;
}

function conversations() {
  return html`<button type="button" class="new" @click=${() => session.begin()}>New conversation</button>
    <ul class="list">
      ${session.conversations.map(({ id, turns }) => {
        const title = turns[0]?.question ?? "Empty conversation";
        return html`<li>
          <button type="button" aria-current=${id === session.current.id} @click=${() => session.show(id)}>${title}</button>
          <button type="button" class="delete" aria-label=${`Delete: ${title}`} @click=${() => session.forget(id)}>×</button>
        </li>`;
      })}
    </ul>`;
}

function themes() {
  const change = (/** @type {Event} */ event) => {
    const chosen = /** @type {HTMLSelectElement} */ (event.target).value;
    store.keepTheme(chosen);
    document.documentElement.dataset["theme"] = chosen;
  };
  return html`<label class="theme">
    <span class="hidden">Colour scheme</span>
    <select @change=${change}>
      ${[["", "System"], ["light", "Light"], ["dark", "Dark"]].map(
        ([value, name]) => html`<option value=${value} .selected=${value === store.theme()}>${name}</option>`,
      )}
    </select>
  </label>`;
}

addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
  if (event.key === "Escape") session.stop();
  else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    document.getElementById("question")?.focus();
  }
});

function turn() {
  void session.watch(view() === "#fleet");
  void session.follow(view() === "#metrics" ? "metrics" : SERVER.includes(view()) ? "server" : null);
  if (view() === "#experiments" && !session.laboratory.experiments.length) void session.laboratory.look();
  draw();
}

addEventListener("hashchange", turn);
matchMedia("(max-width: 48rem)").addEventListener("change", draw);
document.documentElement.dataset["theme"] = store.theme();
root.replaceChildren(); // what stands there for browsers without scripts
turn();
void session.look();
