// A recorded conversation as messages of the `ai` package, straight from the
// line that it was recorded in: nothing of this comes from Treering.

/** Why the library cannot be asked about a conversation, or null. */
export function whyNot(conversation) {
  const { messages } = conversation;
  const linear = messages.every(({ x }, at) => !("parent" in (x ?? {})) || (x.parent ?? -1) === at - 1);
  if (!linear) return "it has branches";
  if (messages.some(({ x }) => x?.compact_summary || x?.compact_boundary || x?.compaction)) return "it was compacted";
  const system = messages.map(({ role }) => role === "system");
  if (system.lastIndexOf(true) !== system.indexOf(false) - 1 && system.includes(true)) {
    return "a system message in the middle, which the library refuses";
  }
  return whyNotCalls(messages);
}

function whyNotCalls(messages) {
  let open = new Map();
  for (const { role, tool_calls, tool_call_id } of messages) {
    if (role === "tool") {
      if (!open.delete(tool_call_id)) return "a result without a call";
      continue;
    }
    if (open.size) return "a call without a result, which the library refuses";
    for (const call of tool_calls ?? []) {
      if (open.has(call.id)) return "one id for two calls of a batch";
      if (!isObject(call.function.arguments)) return "arguments that are no JSON object";
      open.set(call.id, call);
    }
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
 * Numbers of messages to compare: all of them (also where calls are still open
 * at the end, which the library refuses: without those), and those up to the end
 * of a batch or an answer near the middle.
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

/** What `generateText` takes: the system prompt, and the messages. */
export function modelMessages(messages) {
  const tools = new Map(); // id to the name that was last called with it
  const system = messages.filter(({ role }) => role === "system").map(({ content }) => content);
  const rest = messages.filter(({ role }) => role !== "system");
  return {
    system: system.length ? system.join("\n\n") : undefined,
    messages: rest.map((message) => modelMessage(message, tools)).filter(({ content }) => content.length),
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
  return { type: "tool-result", toolCallId: tool_call_id, toolName, output: { type, value: content } };
}
