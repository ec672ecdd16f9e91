/** Server-sent events, read from a response's body. */

/** @typedef {{ id: string, data: string }} ServerEvent */

/**
 * Yield the events of a stream as they come.
 * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body
 * @returns {AsyncGenerator<ServerEvent, void, void>}
 */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) yield parsed(block);
    }
  } finally {
    await reader.cancel().catch(() => {}); // the connection is gone already where it broke
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
