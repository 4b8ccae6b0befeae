// Acts as an agent: appends by the command line, and waits for a decision by gRPC.
import { spawnSync } from "node:child_process";
import http2 from "node:http2";

export class Agent {
  constructor(binary, url) {
    this.binary = binary;
    this.url = url;
  }

  // Runs a command on the server and returns its output.
  run(...args) {
    const done = spawnSync(this.binary, [...args, "--server", this.url], { encoding: "utf8" });
    if (done.status !== 0) throw new Error(`${args.join(" ")}: ${done.stderr}`);
    return done.stdout;
  }

  list() {
    const lines = this.run("ls", "-n", "500", "--json").trim().split("\n");
    return lines.map((line) => JSON.parse(line));
  }

  // Calls Tools.WaitForDecision. Resolves to true once the call is decided.
  waitForDecision(conversation, call) {
    const field = (number, text) => {
      const bytes = Buffer.from(text);
      return Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
    };
    const message = Buffer.concat([field(1, conversation), field(3, call), Buffer.from([4 << 3, 0xe0, 0xd4, 0x03])]);
    const frame = Buffer.alloc(5 + message.length);
    frame.writeUInt32BE(message.length, 1);
    message.copy(frame, 5);
    return new Promise((resolve, reject) => {
      const connection = http2.connect(this.url);
      connection.on("error", reject);
      const request = connection.request({
        ":method": "POST",
        ":path": "/treering.v1.Tools/WaitForDecision",
        "content-type": "application/grpc",
        te: "trailers",
      });
      const parts = [];
      request.on("data", (part) => parts.push(part));
      request.on("error", reject);
      request.on("end", () => {
        connection.close();
        // `decided` is the last field of the answer.
        const answer = Buffer.concat(parts);
        resolve(answer.subarray(-2).equals(Buffer.from([2 << 3, 1])));
      });
      request.end(frame);
    });
  }
}
