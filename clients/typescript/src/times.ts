// Parses times that programs pass as arguments.

/** A `Date`, or text: "2 days", "3h ago", "2026-01-31", or another ISO time. */
export type Time = Date | string;

const DAY_S = 86_400;
/** The units of the command line, in seconds. */
const UNITS: readonly [names: string, seconds: number][] = [
  ["s sec secs second seconds", 1],
  ["m min mins minute minutes", 60],
  ["h hour hours", 3_600],
  ["d day days", DAY_S],
  ["w week weeks", 7 * DAY_S],
  ["month months", 30 * DAY_S],
  ["y year years", 365 * DAY_S],
];

/** Parses a time; `name` is the argument that an error names. */
export function moment(time: Time | undefined, name: string): Date | undefined {
  if (time === undefined) return undefined;
  const read = typeof time === "string" ? readText(time.trim()) : time;
  if (read instanceof Date && !Number.isNaN(read.getTime())) return read;
  throw new TypeError(
    `\`${name}\` is not a time: use a Date, a length of time such as "2 days" or "3h", ` +
      'or a day or time such as "2026-01-31" or "2026-01-31 08:00"',
  );
}

function readText(text: string): Date {
  const [, count, unit = ""] = /^([0-9]+) *([a-z]+)(?: +ago)?$/.exec(text) ?? [];
  const found = UNITS.find(([names]) => names.split(" ").includes(unit));
  if (found) return new Date(Date.now() - Number(count) * found[1] * 1000);
  return new Date(/^\d{4}-\d{2}/.test(text) ? text : Number.NaN);
}
