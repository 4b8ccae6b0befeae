// Places of a thread's values, so that a checkpoint is read without earlier checkpoints.
//
// A value is in the row of the checkpoint that added it; a message can be in a frame, with the
// typed events that hold it. A row has the places of its values. Places of a list are runs of
// adjacent elements, relative to a base row, which has all runs of the list: so the size of a row
// does not grow with the list, and two lookups find all of it. The Python client does the same.

import { short } from "../adapters/thread.js";
import type { Packable } from "./msgpack.js";

/** Instead of the number of a frame's events: the holder is a row. */
export const IN_ROW = -1;
/** Instead of a revision: the row that has this place. */
export const OWN_ROW = 0;
/** Instead of a revision: the frame right after the row. */
export const OWN_FRAME = -1;
/** Maximum number of runs after those of a base row; with more, a row has all runs. */
const TAIL_RUNS_MAX = 32;
/** A row has all runs of a list if they are so few: that saves a lookup. */
const FULL_RUNS_MAX = 4;

/** Revision of the holder, index of the value in it, and number of events of the frame. */
export type Place = readonly [revision: number, index: number, events: number];

/** Revision of the holder, first index, number of values, and number of events of the frame. */
export type Run = readonly [revision: number, begin: number, count: number, events: number];

/** Places of a list: the first `kept` runs of a base row, and then `tail`. */
export interface Runs {
  /** Revision of the base row; 0 if there is none and `tail` has all runs. */
  base: number;
  kept: number;
  tail: readonly Run[];
}

/** The place of a channel's value. */
export type At = Place | Runs;

/** Whether it is the place of a list, in runs. */
export const isRuns = (at: At | undefined): at is Runs => at !== undefined && "tail" in at;

/** Returns the event key of a checkpoint and the writes to it. */
export const checkpointKey = (ns: string, id: string): string =>
  keyNamed(`langgraph/checkpoint/${ns}/${id}`);

/** Returns the event key of the events that precede a namespace's checkpoints. */
export const latestKey = (ns: string): string => keyNamed(`langgraph/latest/${ns}`);

const keyNamed = (name: string): string => short(name.replaceAll("\0", " "));

// ---- runs ----

/** Joins places into runs. */
export function runsOf(places: Iterable<Place>): Run[] {
  const runs: Run[] = [];
  let [revision, begin, count, events]: Run = [0, 0, 0, 0];
  for (const [at, index, of] of places) {
    if (count && at === revision && index === begin + count) {
      count += 1;
      continue;
    }
    if (count) runs.push([revision, begin, count, events]);
    [revision, begin, count, events] = [at, index, 1, of];
  }
  if (count) runs.push([revision, begin, count, events]);
  return runs;
}

/** Returns the runs of a part of a list. */
export function cut(runs: readonly Run[], start: number, stop: number): Run[] {
  const kept: Run[] = [];
  let begin = 0;
  for (const [at, index, count, events] of runs) {
    const first = Math.max(start, begin);
    const last = Math.min(stop, begin + count);
    if (first < last) kept.push([at, index + first - begin, last - first, events]);
    begin += count;
  }
  return kept;
}

/** Returns runs relative to a base row if they share enough runs with it. */
export function saidOf(runs: readonly Run[], base: number, ofBase: readonly Run[]): Runs {
  const inFull = { base: 0, kept: 0, tail: runs };
  if (runs.length <= FULL_RUNS_MAX) return inFull;
  let kept = 0;
  while (kept < Math.min(runs.length, ofBase.length) && isSame(runs[kept], ofBase[kept])) kept += 1;
  if (kept === 0 || runs.length - kept > TAIL_RUNS_MAX) return inFull;
  return { base, kept, tail: runs.slice(kept) };
}

const isSame = (one: Run | undefined, other: Run | undefined): boolean =>
  one?.every((each, index) => each === other?.[index]) ?? false;

// ---- in rows ----

/** Encodes a place for a row. */
export const packedAt = (at: At): Packable => (isRuns(at) ? [at.base, at.kept, at.tail] : at);

/** A place in a row: three numbers for a value; base, kept and tail for a list. */
export type SaidAt = Place | readonly [base: number, kept: number, tail: readonly Run[]];

/** Decodes a place of the row with this revision. */
export function unpackedAt([first, second, third]: SaidAt, row: number): At {
  if (typeof third === "number") return [revisionOf(first, row), second, third];
  const tail = third.map(([at, ...rest]): Run => [revisionOf(at, row), ...rest]);
  return { base: first, kept: second, tail };
}

const revisionOf = (said: number, row: number): number => (said > 0 ? said : row - said);
