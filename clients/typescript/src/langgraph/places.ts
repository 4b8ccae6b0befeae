// Where values of a thread are, so that a checkpoint is read without the steps before it.
//
// A value is in the row of the checkpoint that brought it, or, of a message, in the frame with
// the typed events that hold it. A row says where its values are. A list is said as runs of
// elements that stand together, on from a row that says it in full: so what a row takes does not
// grow with the list, and two look-ups find all of it. Python says it in the same form.

import { short } from "../adapters/thread.js";
import type { Packable } from "./msgpack.js";

/** In the place of the number of a frame's events: the holder is a row. */
export const IN_ROW = -1;
/** In the place of a revision: the row that says it. */
export const OWN_ROW = 0;
/** The frame right behind it. */
export const OWN_FRAME = -1;
/** So many runs a row says before it says the list in full. */
const TAIL_RUNS_MAX = 32;
/** Lists of so few runs are always said in full: that saves a look-up. */
const FULL_RUNS_MAX = 4;

/** Revision of the holder, which of its values, and the number of events of that frame. */
export type Place = readonly [revision: number, index: number, events: number];

/** Revision of the holder, its first value, how many, and the number of events of that frame. */
export type Run = readonly [revision: number, begin: number, count: number, events: number];

/** Where a list is: the first runs of a row that says it in full, and these. */
export interface Runs {
  /** Revision of that row; 0: there is none, and these are all. */
  base: number;
  kept: number;
  tail: readonly Run[];
}

/** Where a channel's value is. */
export type At = Place | Runs;

/** It is a list that is somewhere in parts. */
export const isRuns = (at: At | undefined): at is Runs => at !== undefined && "tail" in at;

/** What a checkpoint and the writes to it are found by. */
export const checkpointKey = (ns: string, id: string): string =>
  keyNamed(`langgraph/checkpoint/${ns}/${id}`);

/** What the latest checkpoint of a namespace is found by. */
export const latestKey = (ns: string): string => keyNamed(`langgraph/latest/${ns}`);

const keyNamed = (name: string): string => short(name.replaceAll("\0", " "));

// ---- runs ----

/** Places as runs. */
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

/** The runs of a part of a list. */
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

/** Runs as they are said, on from a row that says the list in full. */
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

// ---- as rows have it ----

/** As a row has it. */
export const packedAt = (at: At): Packable => (isRuns(at) ? [at.base, at.kept, at.tail] : at);

/** Of a row: of places the numbers, of lists the base, what is kept of it, and the runs. */
export type SaidAt = Place | readonly [base: number, kept: number, tail: readonly Run[]];

/** From the row with this revision. */
export function unpackedAt([first, second, third]: SaidAt, row: number): At {
  if (typeof third === "number") return [revisionOf(first, row), second, third];
  const tail = third.map(([at, ...rest]): Run => [revisionOf(at, row), ...rest]);
  return { base: first, kept: second, tail };
}

const revisionOf = (said: number, row: number): number => (said > 0 ? said : row - said);
