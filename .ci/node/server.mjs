// The calls to a running Treering server that the comparison needs.

import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const PROTO = fileURLToPath(new URL("../../proto/", import.meta.url));
const definition = loader.loadSync(
  ["events", "conversation", "context"].map((name) => `treering/v1/${name}.proto`),
  {
    includeDirs: [PROTO],
    keepCase: true,
    enums: String,
    longs: Number,
    defaults: true,
    oneofs: true,
  },
);
const api = grpc.loadPackageDefinition(definition).treering.v1;

// The first branch of a conversation.
const FIRST = "main";

export class Server {
  constructor(address) {
    const make = (service) =>
      new api[service](address, grpc.credentials.createInsecure(), {
        "grpc.max_receive_message_length": 64 << 20,
      });
    this.clients = {
      events: make("Events"),
      conversations: make("Conversations"),
      contexts: make("Contexts"),
    };
  }

  call(client, method, request) {
    return new Promise((resolve, reject) => {
      this.clients[client][method](request, (error, answer) =>
        error ? reject(error) : resolve(answer),
      );
    });
  }

  /** Conversation ids by source and id in the source, joined by a space. */
  async conversations() {
    const ids = new Map();
    let page_token = "";
    do {
      const page = await this.call("conversations", "List", { page_size: 1000, page_token });
      for (const one of page.conversations)
        ids.set(`${one.source} ${one.source_id}`, one.conversation_id);
      page_token = page.next_page_token;
    } while (page_token);
    return ids;
  }

  /**
   * The revision on the first branch at which each message ends, its calls
   * included.
   */
  async revisions(conversation_id) {
    const stream = this.clients.events.Read({ branch: { conversation_id, branch: FIRST } });
    const ends = [];
    for await (const { events } of stream) {
      for (const { body, revision } of events) {
        if (body === "message_appended" || body === "tool_result_recorded") ends.push(revision);
        else if (body === "tool_call_requested") ends[ends.length - 1] = revision;
      }
    }
    return ends;
  }

  /** Appends events to a new conversation. Returns its id. */
  async append(events) {
    const { events: appended } = await this.call("events", "Append", { events });
    return appended[0].conversation_id;
  }

  async build(conversation_id, provider, { model, as_of_revision, policy }) {
    const request = {
      conversation_id,
      branch: FIRST,
      provider: `PROVIDER_${provider.toUpperCase().replace("-", "_")}`,
      model,
      as_of_revision,
      policy: Buffer.from(JSON.stringify(policy)),
    };
    const { request: body } = await this.call("contexts", "Build", request);
    return JSON.parse(body.toString());
  }

  close() {
    for (const client of Object.values(this.clients)) client.close();
  }
}
