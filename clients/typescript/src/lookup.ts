// Looks up events by key, type, kind, id or revision, with all their bodies.

import {
  type EventName,
  GetManyRequest,
  type GotEvent,
  type LatestEvent,
  type LatestRequest,
} from "./gen/treering/v1/events.js";
import { events as eventMethods } from "./methods.js";
import type { CallOptions, Transport } from "./transport.js";
import { Event } from "./types.js";

/** Maximum number of events in one request. */
const NAMES_MAX = 4_096;

/** An event by its id, or by its conversation and its revision. */
export type EventNamed = string | readonly [conversation: string, revision: number];

/** Returns the newest event for each conversation and each key, type and kind. */
export async function latest(
  transport: Transport,
  request: LatestRequest,
  options: CallOptions = {},
): Promise<(Event | undefined)[]> {
  const { found } = await transport.unary(eventMethods.latest, request, options);
  return whole(transport, found, options);
}

/** Returns events by id or revision, in this order; undefined for a missing event. */
export async function getMany(
  transport: Transport,
  names: Iterable<EventNamed>,
  options: CallOptions & { headersOnly?: boolean | undefined } = {},
): Promise<(Event | undefined)[]> {
  const asked = [...names].map(named);
  const all: (Event | undefined)[] = [];
  for (let start = 0; start < asked.length; start += NAMES_MAX) {
    const request = GetManyRequest.fromPartial({
      events: asked.slice(start, start + NAMES_MAX),
      headersOnly: options.headersOnly ?? false,
    });
    const { events } = await transport.unary(eventMethods.getMany, request, options);
    all.push(...(await whole(transport, events, options)));
  }
  return all;
}

/** Fetches the bodies that an answer left out. Each further answer has at least one. */
async function whole(
  transport: Transport,
  got: readonly (LatestEvent | GotEvent)[],
  options: CallOptions,
): Promise<(Event | undefined)[]> {
  const bodies = new Map<string, Event>();
  let left = new Set(
    got.flatMap((each) => (each.bodyLeftOut && each.event ? [each.event.id] : [])),
  );
  while (left.size) {
    const ids = [...left].slice(0, NAMES_MAX);
    const request = GetManyRequest.fromPartial({ events: ids.map(named) });
    const { events } = await transport.unary(eventMethods.getMany, request, options);
    for (const { event, bodyLeftOut } of events) {
      if (event && !bodyLeftOut) bodies.set(event.id, new Event(event));
    }
    const missing = [...left].filter((id) => !bodies.has(id));
    if (missing.length === left.size) break;
    left = new Set(missing);
  }
  return got.map(({ event }) => event && (bodies.get(event.id) ?? new Event(event)));
}

function named(name: EventNamed): EventName {
  if (typeof name === "string") return { by: { $case: "eventId", value: name } };
  const [conversationId, revision] = name;
  return { by: { $case: "place", value: { conversationId, revision } } };
}
