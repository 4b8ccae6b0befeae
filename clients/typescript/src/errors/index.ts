// Exception classes: one for each reason of the server.
//
// All are `TreeringError`. The classes between tell what kind of trouble it is: `NotFound`,
// `Conflict` (somebody was first), `Refused` (the state forbids it), `Invalid` (the call is
// wrong), `Unavailable` (try later), `Damaged` (stored data), `Failed` (the server).

export * from "./base.js";
export * from "./reasons.js";
