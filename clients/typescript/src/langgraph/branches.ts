// Branches of a thread's conversation, and the messages of the graph that are on them.

import type { Body } from "../adapters/frames.js";
import type { BranchForked } from "../gen/treering/v1/event.js";
import type { Key } from "./lists.js";

/** A branch. */
export interface Branch {
  name: string;
  head: number;
  /** The messages of the graph that are on it. */
  mirrored: Key[];
  /** Of each message, the revision of its last event. */
  ends: number[];
  /** Revision of the frame of the first of them. */
  begin: number;
  /** False: of its messages it is not known which they are. */
  isKnown: boolean;
  /** Calls without a result; undefined: not known. */
  open: Set<string> | undefined;
  archived: boolean;
}

/** A branch; one that was there before what was read is not known. */
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

/** A branch that begins on another one, of which all is known, or not. */
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

/** What an event changes of its branch. */
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
