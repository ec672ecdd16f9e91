/** Server-sent events, read from a response's body. */

/** @typedef {{ id: string, data: string }} ServerEvent */

/** A connection without a sign of life. */
export class Silence extends TypeError {}

/**
 * Yield the events of a stream as they come; comments are signs of life alone.
 * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body
 * @param {number} silent milliseconds without a byte after which Silence is thrown
 * @returns {AsyncGenerator<ServerEvent, void, void>}
 */
export async function* eventsOf(body, silent = Infinity) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await within(silent, reader.read());
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const event of blocks.map(parsed)) if (event.data) yield event;
    }
  } finally {
    await reader.cancel().catch(() => {}); // the connection is gone already where it broke
  }
}

/**
 * Return what a promise gives; Silence is thrown after so many milliseconds.
 * @template T
 * @param {number} ms
 * @param {Promise<T>} promise
 * @returns {Promise<T>}
 */
export async function within(ms, promise) {
  if (ms === Infinity) return promise;
  let timer = 0;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Silence("the connection is silent")), ms);
  });
  try {
    return await Promise.race([promise, /** @type {Promise<never>} */ (late)]);
  } finally {
    clearTimeout(timer);
  }
}

/** @param {string} block */
function parsed(block) {
  const event = { id: "", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) event.id = line.slice(4);
    else if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  return event;
}
