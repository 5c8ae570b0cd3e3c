// Prints what drivers for Node tried: one line of JSON for each thing.

export const PROMPT = "How can you be";
export const SAID = "Hello, how are you?"; // to the model "chat"
export const EXPECTED = process.env.EXPECTED;

export async function tried(name, what) {
  let detail = "";
  try {
    await what();
  } catch (error) {
    detail = String(error?.stack ?? error) + JSON.stringify(error);
  }
  console.log(`{"name": ${JSON.stringify(name)}, ` +
    `"ok": ${!detail}, "detail": ${JSON.stringify(detail.slice(0, 3000))}}`);
}

export function assert(holds, told) {
  if (!holds) throw new Error(`not so: ${JSON.stringify(told) ?? told}`);
}

// The text of a stream that came in more than one piece.
export async function joined(stream, text) {
  const pieces = [];
  for await (const event of stream) if (text(event)) pieces.push(text(event));
  assert(pieces.length > 1, pieces);
  return pieces.join("");
}
