/** Experiments that run at the server, what they have told so far, and results that were kept to compare. */

import { ApiError } from "./api.js";

/** @import { Api } from "./api.js" */
/** @import { Experiment, Outcome } from "./types.d.ts" */

const MOST_KEPT = 6;

export class Laboratory {
  /** @type {Experiment[]} */
  experiments = [];
  /** Name of the chosen one. */
  chosen = "";
  /** @type {Outcome[]} the latest first */
  outcomes = [];
  /** Why nothing can be run, or the last run was refused; empty: nothing is wrong. */
  trouble = "";
  /** @type {AbortController | null} */
  #running = null;

  /**
   * @param {Api} api
   * @param {() => void} changed called after every change
   * @param {(error: unknown) => string} refused takes in a failure, and returns it in words
   */
  constructor(api, changed, refused) {
    this.api = api;
    this.changed = changed;
    this.refused = refused;
  }

  get busy() {
    return this.#running !== null;
  }

  get experiment() {
    return this.experiments.find(({ name }) => name === this.chosen) ?? this.experiments[0];
  }

  /** Ask the server what there is. */
  async look() {
    try {
      this.experiments = await this.api.experiments();
      this.trouble = "";
    } catch (error) {
      this.trouble = this.refused(error);
    }
    this.changed();
  }

  /** @param {string} name */
  choose(name) {
    this.chosen = name;
    this.changed();
  }

  /**
   * Run the chosen experiment.
   * @param {Record<string, number | string>} settings
   * @param {Record<string, (number | string)[]>} vary
   */
  async run(settings, vary) {
    const { experiment } = this;
    if (!experiment || this.busy) return;
    const stop = (this.#running = new AbortController());
    /** @type {Outcome} */
    const outcome = { experiment, settings, state: "running", done: 0, total: 0, points: [], error: "" };
    this.trouble = "";
    try {
      for await (const event of this.api.experiment({ experiment: experiment.name, settings, vary }, stop.signal)) {
        if (event.type === "begun") {
          outcome.total = event.total;
          this.outcomes = [outcome, ...this.outcomes].slice(0, MOST_KEPT);
        } else if (event.type === "progress") outcome.done = event.done;
        else if (event.type === "point") outcome.points.push(event);
        else if (event.type === "done") outcome.state = "done";
        else outcome.error = event.message;
        this.changed();
      }
      if (outcome.state !== "done") throw new ApiError(outcome.error || "the experiment ended too early", 500, null);
    } catch (error) {
      outcome.state = stop.signal.aborted ? "stopped" : "failed";
      if (!stop.signal.aborted) this.trouble = this.refused(error);
    }
    this.#running = null;
    this.changed();
  }

  /** End the experiment that runs. */
  stop() {
    this.#running?.abort();
  }

  /** @param {Outcome} outcome */
  forget(outcome) {
    this.outcomes = this.outcomes.filter((each) => each !== outcome);
    this.changed();
  }
}
