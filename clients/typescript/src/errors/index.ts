// Exception classes: one for each reason of the server.
//
// All extend `TreeringError`. The classes in between are the kinds of errors: `NotFound`,
// `Conflict` (another writer was first), `Refused` (the state forbids it), `Invalid` (the call is
// wrong), `Unavailable` (try later), `Damaged` (stored data), `Failed` (the server).

export * from "./base.js";
export * from "./reasons.js";
