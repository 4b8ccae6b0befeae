// Branches of a thread's conversation, and the graph's messages on them.

import type { Body } from "../adapters/frames.js";
import type { BranchForked } from "../gen/treering/v1/event.js";
import type { Key } from "./lists.js";

/** A branch. */
export interface Branch {
  name: string;
  head: number;
  /** Keys of the graph's messages on it. */
  mirrored: Key[];
  /** Revision of the last event of each message. */
  ends: number[];
  /** Revision of the frame of the first message. */
  begin: number;
  /** Whether its messages are known. */
  isKnown: boolean;
  /** Calls without a result; undefined: not known. */
  open: Set<string> | undefined;
  archived: boolean;
}

/** Makes a branch; it is not known if it began before the first event that was read. */
export const branchNamed = (name: string, isKnown = true): Branch => ({
  name,
  head: 0,
  mirrored: [],
  ends: [],
  begin: 0,
  isKnown,
  open: isKnown ? new Set() : undefined,
  archived: false,
});

/** Makes the branch of a fork; `isWhole`: the whole thread was read. */
export function forkOf(
  parent: Branch,
  { name, forkRevision }: BranchForked,
  isWhole: boolean,
): Branch {
  const kept = parent.ends.filter((end) => end <= forkRevision).length;
  const isHead = forkRevision >= parent.head;
  return {
    ...branchNamed(name, parent.isKnown && isWhole),
    mirrored: parent.mirrored.slice(0, kept),
    ends: parent.ends.slice(0, kept),
    begin: parent.begin,
    open: isHead && parent.open ? new Set(parent.open) : undefined,
  };
}

/** Updates a branch with an event. */
export function track(on: Branch, body: Body): void {
  switch (body?.$case) {
    case "branchArchived":
      on.archived = true;
      break;
    case "branchRenamed":
      on.name = body.value.name;
      break;
    case "toolCallRequested":
      on.open?.add(body.value.callId);
      break;
    case "toolResultRecorded":
    case "toolCallCancelled":
      on.open?.delete(body.value.callId);
  }
}
