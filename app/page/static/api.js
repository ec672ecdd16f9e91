/** Requests to the API that this page comes from. */

import { Silence, eventsOf, within } from "./events.js";

/** @import { Chunk, Device, Experiment, ExperimentEvent, Fleet, Model, Ready } from "./types.d.ts" */

const AGAIN_MS = [200, 500, 1000, 2000, 4000, 8000, 15000, 15000];
/** Waits before each try to come back to a stream; together less than the server keeps it. */

const SILENT_MS = 1750;
/** Time without a sign of life, which comes every second, after which a resumable answer's connection is dead. */

/** A request that was refused, in the server's words. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   * @param {string | null} param field of the request at fault
   */
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export class Api {
  /** Secret of the caller; empty: none. */
  key = "";

  /** @returns {Promise<Model[]>} */
  models = async () => (await this.#get("v1/models")).data;

  /** @returns {Promise<Device[]>} */
  devices = async () => (await this.#get("v1/devices")).data;

  /** @returns {Promise<Ready>} */
  ready = async () => (await this.#fetch("readyz", {})).json(); // 503 says what is missing

  /** @returns {Promise<string>} in Prometheus's text format */
  metrics = async () => (await this.#checked("metrics", {})).text();

  /**
   * Yield the state of the fleet whenever it changes, until the server ends the stream.
   * @param {AbortSignal} stop
   * @returns {AsyncGenerator<Fleet, void, void>}
   */
  async *fleet(stop) {
    const response = await this.#checked("v1/fleet?stream=true", { signal: stop });
    if (!response.body) throw new TypeError("a response without a body");
    for await (const { data } of eventsOf(response.body)) yield JSON.parse(data);
  }

  /** @returns {Promise<Experiment[]>} */
  experiments = async () => (await this.#get("v1/experiments")).data;

  /**
   * Run an experiment, and yield its events.
   * @param {object} form
   * @param {AbortSignal} stop
   * @returns {AsyncGenerator<ExperimentEvent, void, void>}
   */
  async *experiment(form, stop) {
    const response = await this.#checked("v1/experiments", { method: "POST", signal: stop, ...this.#json(form) });
    if (!response.body) throw new TypeError("a response without a body");
    for await (const { data } of eventsOf(response.body)) yield JSON.parse(data);
  }

  /**
   * Give an order for a part of the fleet.
   * @param {string} path of the part, below v1/fleet
   * @param {object} change
   */
  order = async (path, change) => {
    await this.#checked(`v1/fleet/${path}`, { method: "PATCH", ...this.#json(change) });
  };

  /**
   * Yield the chunks of an answer to the end, coming back to it where the connection breaks. A resumable one's breaks
   * by silence, too; if it had no event, the answer is asked for anew.
   * @param {{ tandem: { resumable?: boolean } }} body
   * @param {AbortSignal} stop
   * @param {() => void} broken called whenever the connection broke
   * @returns {AsyncGenerator<Chunk, void, void>}
   */
  async *answer(body, stop, broken) {
    const path = "v1/chat/completions";
    const least = body.tandem.resumable ? SILENT_MS : Infinity;
    let silent = least; // twice as long each time in a row: a slow server is not helped by more requests
    let last = "";
    let tries = 0;
    const told = () => {
      if (last) this.#forget(path, last);
    };
    stop.addEventListener("abort", told);
    try {
      for (;;) {
        const connection = new AbortController();
        const signal = AbortSignal.any([stop, connection.signal]);
        try {
          const request = last ? { headers: { "last-event-id": last } } : this.#json(body);
          const response = await within(silent, this.#checked(path, { method: "POST", signal, ...request }));
          if (!response.body) throw new TypeError("a response without a body");
          for await (const { id, data } of eventsOf(response.body, silent)) {
            if (data === "[DONE]") return;
            last = id || last;
            tries = 0;
            silent = least;
            const chunk = JSON.parse(data);
            yield chunk;
            if (chunk.error) return;
          }
          throw new TypeError("the connection ended before the answer");
        } catch (error) {
          const wait = AGAIN_MS[tries++];
          const lost = error instanceof TypeError && !stop.aborted; // so fetch and streams call a broken connection
          if (!lost || !(last || error instanceof Silence) || wait === undefined) throw error;
          if (error instanceof Silence) silent *= 2;
          broken();
          await pause(wait, stop);
        } finally {
          connection.abort();
        }
      }
    } finally {
      stop.removeEventListener("abort", told);
    }
  }

  /**
   * End a stream that would go on without this client.
   * @param {string} path
   * @param {string} last
   */
  #forget(path, last) {
    const id = last.slice(0, last.lastIndexOf(":"));
    void this.#fetch(`${path}/${id}`, { method: "DELETE", keepalive: true }).catch(() => {}); // it ends by itself, later
  }

  /** @param {object} body */
  #json(body) {
    return { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  }

  /** @param {string} path */
  async #get(path) {
    return (await this.#checked(path, {})).json();
  }

  /**
   * @param {string} path
   * @param {RequestInit} request
   */
  async #checked(path, request) {
    const response = await this.#fetch(path, request);
    if (response.ok) return response;
    const reply = await response.json().catch(() => ({}));
    throw new ApiError(reply.error?.message ?? response.statusText, response.status, reply.error?.param ?? null);
  }

  /**
   * @param {string} path
   * @param {RequestInit} request
   */
  #fetch(path, request) {
    const headers = new Headers(request.headers);
    if (this.key) headers.set("authorization", `Bearer ${this.key}`);
    return fetch(new URL(path, document.baseURI), { ...request, headers, cache: "no-store", credentials: "omit" });
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} stop
 */
export function pause(ms, stop) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    stop.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(stop.reason);
    });
  });
}
