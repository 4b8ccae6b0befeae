// Reads many events, and resumes after a broken connection.

import type { Event as EventMessage } from "./gen/treering/v1/event.js";
import type { ReadStop } from "./gen/treering/v1/events.js";
import type { Method } from "./methods.js";
import type { Transport } from "./transport.js";
import { Event } from "./types.js";

/**
 * Yields events in the order of the request, each once.
 *
 * Events do not change, and a history only grows at its end. So after a break the same
 * request returns the same events again. Events up to the last one that was yielded are
 * skipped.
 */
export async function* readEvents<Q extends object>(
  transport: Transport,
  method: Method<Q, { events: EventMessage[]; stoppedAt?: ReadStop | undefined }>,
  request: Q,
  limit = 0,
): AsyncGenerator<Event, void, undefined> {
  let lastId = "";
  let passingTo = "";
  let handedOut = 0;
  let goOnAt: ReadStop | undefined;
  const again = () => {
    passingTo = lastId;
    const asked = goOnAt ? { ...request, goOnAt } : request;
    // A backward read may now begin with newer events, which do not count towards the limit.
    return lastId && limit ? { ...asked, limit: 0 } : asked;
  };
  for (;;) {
    let stopped: ReadStop | undefined;
    for await (const { events, stoppedAt } of transport.read(method, again)) {
      for (const event of events) {
        if (passingTo) {
          if (event.id === passingTo) passingTo = "";
          continue;
        }
        lastId = event.id;
        handedOut += 1;
        yield new Event(event);
        if (handedOut === limit) return;
      }
      stopped = stoppedAt;
    }
    if (!stopped) return;
    // The server examined the maximum number of events of one read; the next read continues.
    goOnAt = stopped;
    lastId = "";
    passingTo = "";
  }
}
