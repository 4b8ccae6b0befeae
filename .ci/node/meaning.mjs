// The meaning of a request, independent of the provider's format: the system
// prompt, the messages, the tool calls with their arguments, and their results.
//
// Two requests have the same meaning if they differ only in:
// - the place of the system prompt (a message or a separate member), and its
//   division into parts;
// - the division of consecutive texts of one role into messages and parts, and
//   the white space between them;
// - empty messages;
// - call ids: a result belongs to the n-th call;
// - the order of the results of one batch;
// - reasoning: it goes back to its own provider only, and the reasoning in the
//   recorded histories is unsigned;
// - whether a JSON result is text or JSON (Gemini), and in which member;
// - the mark of a failure: a member where there is one (Anthropic, Gemini),
//   `Error:` before the text where there is none (OpenAI);
// - a note that stands for an empty result;
// - parts of a tool's schema other than its members, their types, and which of
//   them are required (Gemini's dialect has no `additionalProperties`).

/** A request's meaning, as a list of lines to compare. */
export function meaning(provider, body) {
  const told = new Told();
  READERS[provider](body, told);
  return [...toolsOf(body).map(toolLine), ...told.lines()];
}

const READERS = {
  "openai-chat": readChat,
  "openai-responses": readResponses,
  anthropic: readAnthropic,
  gemini: readGemini,
};

function toolsOf(body) {
  const listed = (body.tools ?? []).flatMap(
    (tool) => tool.functionDeclarations ?? [tool.function ?? tool],
  );
  return listed.sort((one, other) => (one.name < other.name ? -1 : 1));
}

function toolLine({ name, description, parameters, input_schema, parametersJsonSchema }) {
  const { properties = {}, required = [] } =
    parameters ?? input_schema ?? parametersJsonSchema ?? {};
  const members = Object.entries(properties).map(([member, { type }]) =>
    `${member} ${type}`.toLowerCase(),
  );
  return `tool ${name}: ${description} (${members.sort().join(", ")}; required ${[...required].sort()})`;
}

class Told {
  entries = [];
  calls = 0;
  numbers = new Map(); // id to the number of the last call with that id
  waiting = []; // numbers of calls without an id; results have the same order

  say(role, text) {
    const words = (text ?? "").split(/\s+/).filter(Boolean).join(" ");
    if (!words) return;
    const speaker = role === "model" ? "assistant" : role === "developer" ? "system" : role;
    const last = this.entries.at(-1);
    if (last?.kind === "text" && last.speaker === speaker) last.text += ` ${words}`;
    else this.entries.push({ kind: "text", speaker, text: words });
  }

  call(id, name, args) {
    this.calls += 1;
    if (id === undefined) this.waiting.push(this.calls);
    else this.numbers.set(id, this.calls);
    this.entries.push({ kind: "call", number: this.calls, name, args: canonical(args) });
  }

  result(id, value) {
    const number = (id === undefined ? this.waiting.shift() : this.numbers.get(id)) ?? Infinity;
    const entry = { kind: "result", number, text: resultText(value) };
    // Sorts the results of a batch into the order of its calls.
    let at = this.entries.length;
    while (at > 0 && this.entries[at - 1].kind === "result" && this.entries[at - 1].number > number)
      at -= 1;
    this.entries.splice(at, 0, entry);
  }

  lines() {
    return this.entries.map((one) => {
      if (one.kind === "text") return `${one.speaker}: ${one.text}`;
      if (one.kind === "call") return `call ${one.number}: ${one.name} ${one.args}`;
      return `result ${one.number}: ${one.text}`;
    });
  }
}

// ---- the four formats ----

function readChat(body, told) {
  for (const message of body.messages) {
    if (message.role === "tool") told.result(message.tool_call_id, message.content);
    else told.say(message.role, textOf(message.content));
    for (const call of message.tool_calls ?? []) {
      told.call(call.id, call.function.name, parsed(call.function.arguments));
    }
  }
}

function readResponses(body, told) {
  told.say("system", body.instructions);
  for (const item of body.input) {
    if (item.type === "function_call") told.call(item.call_id, item.name, parsed(item.arguments));
    else if (item.type === "function_call_output") told.result(item.call_id, item.output);
    else if (item.role) told.say(item.role, textOf(item.content));
  }
}

function readAnthropic(body, told) {
  told.say("system", textOf(body.system));
  for (const message of body.messages) {
    for (const block of blocks(message.content)) {
      if (block.type === "tool_use") told.call(block.id, block.name, block.input);
      else if (block.type === "tool_result") told.result(block.tool_use_id, block.content);
      else told.say(message.role, textOf([block]));
    }
  }
}

function readGemini(body, told) {
  told.say("system", textOf(body.systemInstruction?.parts));
  for (const { role, parts } of body.contents) {
    for (const { functionCall: call, functionResponse: answer, ...part } of parts) {
      if (call) told.call(call.id, call.name, call.args ?? {});
      else if (answer) told.result(answer.id, answer.response);
      else if (!part.thought) told.say(role, textOf([part]));
    }
  }
}

// ---- values ----

const blocks = (content) =>
  typeof content === "string" ? [{ type: "text", text: content }] : (content ?? []);

/** The text of a content; for a part that is no text, its type and the end of its data. */
function textOf(content) {
  const silent = ["thinking", "redacted_thinking"];
  return blocks(content)
    .filter((block) => !silent.includes(block.type))
    .map(
      (block) =>
        block.text ??
        block.refusal ??
        `[${block.type ?? Object.keys(block)} ${dataOf(block).slice(-24)}]`,
    )
    .join("\n");
}

/** The longest text in a value: the data or address of a medium. */
function dataOf(value) {
  if (typeof value === "string") return value;
  const inner = Object.values(value ?? {}).map(dataOf);
  return inner.reduce((longest, one) => (one.length > longest.length ? one : longest), "");
}

// Members that hold the text of a response, and members to ignore.
const CARRIERS = ["content", "output", "result", "error"];
const BESIDE = ["name", "success"];

// The notes that Treering writes for an empty result.
const NOTHING = ["(The tool returned nothing.)", "The tool failed and gave no reason."];

/** The result of a tool: JSON in canonical form, other text with normalised white space. */
function resultText(value) {
  if (Array.isArray(value) && value.every((block) => block?.type)) return resultText(textOf(value));
  const told = typeof value === "string" ? parsed(value) : value;
  if (typeof told !== "object" || told === null) return wordsOf(value);
  const members = Object.keys(told).filter((member) => !BESIDE.includes(member));
  const isCarrier = members.length === 1 && CARRIERS.includes(members[0]);
  return isCarrier ? resultText(told[members[0]]) : canonical(told);
}

function wordsOf(value) {
  const words = String(value)
    .split(/\s+/)
    .filter(Boolean)
    .join(" ")
    .replace(/^(Error: )+/, "");
  return NOTHING.includes(words) ? "" : words;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** JSON text with sorted members. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${members.join(",")}}`;
}
