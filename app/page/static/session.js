/** What the page shows at the moment, and everything that changes it. */

import { ApiError, Api, pause } from "./api.js";
import { open, take, unanswered } from "./answer.js";
import { Laboratory } from "./laboratory.js";
import { kept, read } from "./metrics.js";
import { examplesOf, modesOf } from "./models.js";
import * as store from "./store.js";

/** @import { Answer, Choices, Conversation, Device, Example, Fleet, Message, Model, Ready, Sample, Turn } from "./types.d.ts" */

const AGAIN_MS = 1000;
/** Wait before the fleet is asked for again. */
const REFRESH_MS = 3000;
/** Wait before a view of the server is asked for again. */
const UNREADY_MS = 3000;
/** Wait before a server is asked again that is not ready. */

export class Session {
  api = new Api();
  choices = store.choices();
  /** @type {Model[]} */
  models = [];
  /** @type {Device[]} */
  devices = [];
  /** @type {Ready | null} */
  ready = null;
  /** Why nothing can be asked at the moment; empty: it can. */
  trouble = "";
  needsKey = false;
  /** Last news, for screen readers. */
  news = "";
  /** @type {Conversation[]} */
  conversations = store.conversations();
  /** @type {Conversation} */
  current = fresh();
  /** @type {number | null} */
  editing = null;
  /** @type {Map<Answer, AbortController>} */
  #running = new Map();
  #resumable = true;
  /** @type {Fleet | null} */
  fleet = null;
  /** Why the fleet cannot be shown; empty: it can. */
  fleetTrouble = "";
  /** Why the last order was refused; empty: it was not. */
  orderTrouble = "";
  /** @type {AbortController | null} */
  #watching = null;
  /** @type {Sample[]} metrics as they were, the latest last */
  samples = [];
  /** Why the metrics cannot be shown; empty: they can. */
  metricsTrouble = "";
  /** @type {AbortController | null} */
  #following = null;
  #again = 0;

  /** @param {() => void} changed called after every change */
  constructor(changed) {
    this.changed = changed;
    this.api.key = store.key();
    this.laboratory = new Laboratory(this.api, changed, (error) => this.#refused(error));
    store.watch((id) => this.#changedElsewhere(id));
    addEventListener("pagehide", () => this.#leave());
    addEventListener("focus", () => void this.look()); // devices come and go
  }

  get model() {
    return this.models.find(({ id }) => id === this.choices.model) ?? this.models[0];
  }

  /** Modes of the model, and what each lacks at the moment. */
  get modes() {
    return modesOf(this.model, this.ready);
  }

  /** Questions to try the model with. */
  get examples() {
    return examplesOf(this.model, this.ready);
  }

  get busy() {
    return this.#running.size > 0;
  }

  /** Whether this is a device's own page. */
  get own() {
    return this.ready !== null && "cloud" in this.ready;
  }

  /** Ask the server what there is. */
  async look() {
    try {
      [this.models, this.devices, this.ready] = await Promise.all([
        this.api.models(),
        this.api.devices(),
        this.api.ready(),
      ]);
      this.trouble = "";
      this.needsKey = false;
    } catch (error) {
      this.#refused(error);
    }
    this.changed();
    clearTimeout(this.#again);
    if (this.ready?.status === "not ready") this.#again = setTimeout(() => this.look(), UNREADY_MS);
  }

  /** Ask for the metrics. */
  async measure() {
    try {
      const text = await this.api.metrics();
      this.samples = kept(this.samples, { at_s: performance.now() / 1000, series: read(text) });
      this.metricsTrouble = "";
    } catch (error) {
      this.metricsTrouble = this.#refused(error);
    }
    this.changed();
  }

  /**
   * Ask again and again for what a view shows, until another one is followed.
   * @param {"server" | "metrics" | null} what
   */
  async follow(what) {
    this.#following?.abort();
    this.#following = what ? new AbortController() : null;
    const stop = this.#following?.signal;
    while (stop && !stop.aborted) {
      await (what === "metrics" ? this.measure() : this.look());
      await pause(REFRESH_MS, stop).catch(() => {}); // it is over then
    }
  }

  /**
   * @param {string} key
   * @param {boolean} longer whether to keep it beyond this tab
   */
  async unlock(key, longer) {
    this.api.key = key.trim();
    store.keepKey(this.api.key, longer);
    await this.look();
    if (this.#watching) void this.watch(true);
    if (this.laboratory.trouble) void this.laboratory.look();
    this.tell(this.trouble || "The key works.");
  }

  /** @param {Partial<Choices>} chosen */
  choose(chosen) {
    this.choices = { ...this.choices, ...chosen };
    store.keepChoices(this.choices);
    this.changed();
  }

  /**
   * Ask a question, in place of a turn and those behind it, or behind all.
   * @param {string} question
   * @param {number} at
   * @param {Example | null} example whose mode and options count in place of those that were chosen
   */
  ask(question, at = this.current.turns.length, example = null) {
    const { model, choices } = this;
    if (!question.trim() || !model || this.busy) return;
    this.editing = null;
    const served = (/** @type {string} */ mode) => (model.modes.includes(mode) ? mode : ""); // what was kept may be gone
    const chosen = choices.compare ? [choices.mode, choices.other] : [choices.mode];
    const modes = (example ? [example.mode ?? ""] : chosen).map(served);
    const rate = Number(choices.rate);
    /** @type {Turn} */
    const turn = { question, answers: modes.map((mode) => unanswered(mode, model.id, rate)), picked: 0 };
    if (example) for (const answer of turn.answers) answer.options = example.options;
    this.current.turns.splice(at, Infinity, turn);
    const messages = this.#messages(at);
    for (const answer of turn.answers) void this.#run(answer, messages, this.current);
    this.tell("The answer has begun.");
    this.#keep(this.current);
  }

  /** @param {number} at */
  again(at) {
    const turn = this.current.turns[at];
    if (turn) this.ask(turn.question, at);
  }

  /** End all answers that are being written. */
  stop() {
    for (const controller of this.#running.values()) controller.abort();
  }

  /** End what is being written, and keep what there is of it, at once: nothing runs any more after this. */
  #leave() {
    if (!this.busy) return;
    this.stop();
    for (const answer of this.#running.keys()) answer.state = "stopped";
    store.keep(this.current);
  }

  /**
   * Go on with one of several answers.
   * @param {Turn} turn
   * @param {number} picked
   */
  pick(turn, picked) {
    turn.picked = picked;
    this.#keep(this.current);
  }

  /** @param {number | null} at */
  edit(at) {
    this.editing = at;
    this.changed();
  }

  begin() {
    this.#show(fresh());
  }

  /** @param {string} id */
  show(id) {
    const found = this.conversations.find((each) => each.id === id);
    if (found) this.#show(found);
  }

  /** @param {string} id */
  forget(id) {
    store.forget(id);
    this.conversations = store.conversations();
    if (this.current.id === id) this.begin();
    this.tell("Conversation deleted.");
  }

  /**
   * Follow the fleet, or follow it no more.
   * @param {boolean} on
   */
  async watch(on) {
    this.#watching?.abort();
    this.#watching = on ? new AbortController() : null;
    const stop = this.#watching?.signal;
    while (stop && !stop.aborted) {
      try {
        for await (const found of this.api.fleet(stop)) {
          this.fleetTrouble = found.error?.message ?? "";
          if (!found.error) this.fleet = found;
          this.changed();
        }
      } catch (error) {
        if (stop.aborted) return;
        this.fleetTrouble = this.#refused(error);
        this.changed();
        if (error instanceof ApiError) return;
      }
      await pause(AGAIN_MS, stop).catch(() => {}); // it is over then
    }
  }

  /**
   * Give an operator's order for a part of the fleet.
   * @param {string} path
   * @param {object} change
   */
  async order(path, change) {
    try {
      await this.api.order(path, change);
      this.orderTrouble = "";
      this.tell("Done.");
    } catch (error) {
      this.orderTrouble = this.#refused(error);
      this.tell(`That did not work: ${this.orderTrouble}`);
    }
  }

  /** @param {string} news */
  tell(news) {
    this.news = news;
    this.changed();
  }

  /** @param {Conversation} conversation */
  #show(conversation) {
    this.stop();
    this.editing = null;
    this.current = conversation;
    this.changed();
  }

  /**
   * Return the messages of a question with all that was said before it.
   * @param {number} at
   * @returns {Message[]}
   */
  #messages(at) {
    /** @type {Message[]} */
    const messages = this.choices.system ? [{ role: "system", content: this.choices.system }] : [];
    for (const { question, answers, picked } of this.current.turns.slice(0, at)) {
      messages.push({ role: "user", content: question });
      const text = answers[picked]?.text;
      if (text) messages.push({ role: "assistant", content: text });
    }
    messages.push({ role: "user", content: this.current.turns[at]?.question ?? "" });
    return messages;
  }

  /**
   * @param {Answer} answer
   * @param {Message[]} messages
   * @param {Conversation} conversation
   */
  async #run(answer, messages, conversation) {
    const controller = new AbortController();
    this.#running.set(answer, controller);
    try {
      await this.#take(answer, messages, controller.signal);
      if (open(answer)) throw new ApiError("the answer ended too early", 500, null);
    } catch (error) {
      if (controller.signal.aborted) {
        answer.state = "stopped";
      } else {
        answer.state = "failed";
        answer.error = this.#refused(error);
      }
    }
    this.#running.delete(answer);
    const ends = { done: "The answer is complete.", stopped: "Stopped.", failed: `The answer failed: ${answer.error}` };
    this.tell(ends[/** @type {"done"} */ (answer.state)]);
    this.#keep(conversation);
  }

  /**
   * @param {Answer} answer
   * @param {Message[]} messages
   * @param {AbortSignal} stop
   */
  async #take(answer, messages, stop) {
    const began = performance.now();
    const broken = () => {
      answer.reconnects += 1;
      this.changed();
    };
    try {
      for await (const chunk of this.api.answer(this.#body(answer, messages), stop, broken)) {
        take(answer, chunk, (performance.now() - began) / 1000);
        this.changed();
      }
    } catch (error) {
      if (!(error instanceof ApiError && error.param === "tandem.resumable" && this.#resumable)) throw error;
      this.#resumable = false; // not at this server
      await this.#take(answer, messages, stop);
    }
  }

  /**
   * @param {Answer} answer
   * @param {Message[]} messages
   */
  #body(answer, messages) {
    const { device, rate, paced, budget, longest, temperature } = this.choices;
    return {
      model: answer.model,
      messages,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...given("max_completion_tokens", longest),
      ...given("temperature", temperature),
      tandem: {
        ...(answer.asked ? { mode: answer.asked } : {}),
        ...(answer.asked ? {} : this.#objective()),
        ...(answer.asked !== "cloud" && this.#there(device) ? { device } : {}),
        ...given("reader_rate", rate),
        ...given("budget", budget),
        ...(paced ? { paced } : {}),
        ...this.#options(answer.options ?? {}),
        ...(this.#resumable ? { resumable: true } : {}),
      },
    };
  }

  /** What counts where the server decides, and what may leave the device, as far as it was chosen and is known here. */
  #objective() {
    const { objective, privacy } = this.choices;
    const known = this.model?.objectives ?? [];
    const said = { ...(known.includes(objective) ? { prefer: objective } : {}), ...(privacy && known.length ? { privacy } : {}) };
    return Object.keys(said).length ? { objective: said } : {};
  }

  /**
   * An example's options, without a device that is not there.
   * @param {Record<string, string | number>} options
   */
  #options({ device, ...others }) {
    return device !== undefined && this.#there(String(device)) ? { device, ...others } : others;
  }

  /** @param {string} device */
  #there(device) {
    return device === "any" || this.devices.some(({ name }) => name === device);
  }

  /** @param {Conversation} conversation */
  #keep(conversation) {
    conversation.changed = Date.now();
    if (!store.keep(conversation)) this.tell("This browser has no space left to save the conversation.");
    this.conversations = store.conversations().map((each) => (each.id === this.current.id ? this.current : each));
    this.changed();
  }

  /** @param {string} id */
  #changedElsewhere(id) {
    this.conversations = store.conversations();
    if (id === this.current.id && !this.busy) this.current = this.conversations.find((each) => each.id === id) ?? fresh();
    else this.conversations = this.conversations.map((each) => (each.id === this.current.id ? this.current : each));
    this.changed();
  }

  /**
   * Take in a failure, and return it in words.
   * @param {unknown} error
   */
  #refused(error) {
    if (error instanceof ApiError) {
      if (error.status === 401) {
        this.needsKey = true;
        this.trouble = this.api.key ? "The server refused this key. Try another one." : "This server needs an API key.";
      } else if (!this.models.length) {
        this.trouble = error.message;
      }
      return error.message;
    }
    if (!(error instanceof TypeError)) throw error;
    if (!this.models.length) this.trouble = "The server does not answer.";
    return "The connection to the server is lost.";
  }
}

/** @returns {Conversation} */
function fresh() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, changed: Date.now(), turns: [] };
}

/**
 * A number that was given, by its name.
 * @param {string} name
 * @param {string} value
 */
function given(name, value) {
  return value === "" || Number.isNaN(Number(value)) ? {} : { [name]: Number(value) };
}
