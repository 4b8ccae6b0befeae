// Converts a recorded conversation to messages of the `ai` package, directly from
// the recorded line and without Treering.

/**
 * The number of leading messages that the library accepts, and why it is not more:
 * `{ count, why }`, where `why` is null if it accepts all of them.
 */
export function usable({ messages }) {
  const open = new Set();
  for (const [at, message] of messages.entries()) {
    const why = obstacle(message, messages[at - 1], at, open);
    if (why) return { count: at, why };
  }
  return { count: messages.length, why: null };
}

/** Why the library refuses the next message, or null. Updates `open`, the ids of open calls. */
function obstacle(message, before, at, open) {
  const { role, x = {}, tool_calls = [], tool_call_id } = message;
  if (x.compact_summary || x.compact_boundary || x.compaction) return "was compacted";
  if ("parent" in x && (x.parent ?? -1) !== at - 1) return "branches";
  if (role === "tool") return open.delete(tool_call_id) ? null : "has a result without a call";
  if (open.size) return "has a call without a result, which the library refuses";
  if (role === "system" && before && before.role !== "system") {
    return "has a system message in the middle, which the library refuses";
  }
  for (const { id, function: called } of tool_calls) {
    if (open.has(id)) return "has one id for two calls of a batch";
    if (!isObject(called.arguments)) return "has arguments that are no JSON object";
    open.add(id);
  }
  return null;
}

function isObject(text) {
  try {
    const value = JSON.parse(text || "{}");
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

/**
 * Where to compare, as numbers of messages: the last place without open calls,
 * which is the head of a finished history, and the last such place in the first
 * half.
 */
export function cuts(messages) {
  const whole = [];
  let open = 0;
  messages.forEach(({ role, tool_calls }, at) => {
    open += role === "tool" ? -1 : (tool_calls?.length ?? 0);
    if (open === 0 && role !== "system") whole.push(at + 1);
  });
  const head = whole.at(-1);
  const middle = whole.findLast((count) => count <= messages.length / 2);
  return [...new Set([head, middle])].filter(Boolean);
}

/** The arguments of `generateText`: the system prompt, and the messages. */
export function modelMessages(messages) {
  const tools = new Map(); // call id to the tool of the last call with that id
  const system = messages.filter(({ role }) => role === "system").map(({ content }) => content);
  const rest = messages.filter(({ role }) => role !== "system");
  return {
    system: system.length ? system.join("\n\n") : undefined,
    messages: rest
      .map((message) => modelMessage(message, tools))
      .filter(({ content }) => content.length),
  };
}

function modelMessage(message, tools) {
  if (message.role === "tool") return { role: "tool", content: [toolResult(message, tools)] };
  const text = message.content ? [{ type: "text", text: message.content }] : [];
  const calls = (message.tool_calls ?? []).map(({ id, function: { name, arguments: input } }) => {
    tools.set(id, name);
    return { type: "tool-call", toolCallId: id, toolName: name, input: JSON.parse(input || "{}") };
  });
  return { role: message.role, content: [...text, ...calls] };
}

function toolResult({ tool_call_id, content, x }, tools) {
  const type = x?.is_error ? "error-text" : "text";
  const toolName = tools.get(tool_call_id);
  // Some sources keep the error message outside the content.
  const error = x?.error && !content.includes(x.error) ? [x.error] : [];
  const output = { type, value: [...error, content].filter(Boolean).join("\n") };
  return { type: "tool-result", toolCallId: tool_call_id, toolName, output };
}
