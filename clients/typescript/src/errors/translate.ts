// Translates gRPC errors into errors of the right class.

import { type ServiceError, status } from "@grpc/grpc-js";
import { ErrorInfo, RetryInfo, Status } from "../gen/google/rpc/details.js";
import * as base from "./base.js";
import * as reasons from "./reasons.js";

type ErrorClass = new (message: string, facts?: base.ErrorFacts) => base.TreeringError;

const DETAILS = "grpc-status-details-bin";
/** gRPC's prefix to the messages of errors that `encoding.ts` throws. */
const NOT_ENCODED = "Request message serialization failure: ";

/** The class of each reason. */
export const BY_REASON: ReadonlyMap<string, ErrorClass> = new Map(
  Object.values(reasons).map((each) => [each.reason, each]),
);

const BY_CODE: ReadonlyMap<status, ErrorClass> = new Map<status, ErrorClass>([
  [status.NOT_FOUND, base.NotFound],
  [status.ALREADY_EXISTS, base.Conflict],
  [status.ABORTED, base.Conflict],
  [status.FAILED_PRECONDITION, base.Refused],
  [status.INVALID_ARGUMENT, base.Invalid],
  [status.OUT_OF_RANGE, base.Invalid],
  [status.UNIMPLEMENTED, base.Invalid],
  [status.RESOURCE_EXHAUSTED, base.Unavailable],
  [status.UNAVAILABLE, base.Unreachable],
  [status.DATA_LOSS, base.Damaged],
  [status.DEADLINE_EXCEEDED, base.DeadlineExceeded],
  [status.CANCELLED, base.Cancelled],
  [status.INTERNAL, base.Failed],
  [status.UNAUTHENTICATED, base.Unauthenticated],
  [status.PERMISSION_DENIED, base.PermissionDenied],
]);

/** Makes an error of the right class. */
export function makeError(message: string, facts: base.ErrorFacts): base.TreeringError {
  const kind =
    BY_REASON.get(facts.reason ?? "") ??
    BY_CODE.get(facts.code ?? status.UNKNOWN) ??
    base.TreeringError;
  return new kind(message, facts);
}

/** Translates a gRPC error. */
export function fromRpc(error: ServiceError): base.TreeringError {
  const facts: base.ErrorFacts = { code: error.code };
  for (const value of error.metadata?.get(DETAILS) ?? []) {
    if (typeof value !== "string") readDetails(value, facts);
  }
  // Nothing was sent: the arguments do not fit the request message.
  if (error.details?.startsWith(NOT_ENCODED)) {
    return new base.Invalid(error.details.slice(NOT_ENCODED.length));
  }
  return makeError(error.details || status[error.code] || error.message, facts);
}

function readDetails(value: Uint8Array, facts: base.ErrorFacts): void {
  try {
    for (const detail of Status.decode(value).details) {
      if (detail.typeUrl.endsWith("/google.rpc.ErrorInfo")) {
        const info = ErrorInfo.decode(detail.value);
        facts.reason = info.reason;
        facts.metadata = info.metadata;
      } else if (detail.typeUrl.endsWith("/google.rpc.RetryInfo")) {
        const delay = RetryInfo.decode(detail.value).retryDelay;
        if (delay) facts.retryAfterMs = delay.seconds * 1000 + delay.nanos / 1e6;
      }
    }
  } catch {
    // This client cannot read the details; the error still has a code and a message.
  }
}

/** Translates the error of one append in a stream of appends. */
export function fromAppendError(
  code: number,
  message: string,
  reason: string,
  metadata: Record<string, string>,
): base.TreeringError {
  const { retry_after_ms: after, ...facts } = metadata;
  return makeError(message, {
    code,
    reason,
    metadata: facts,
    retryAfterMs: after ? Number(after) : undefined,
  });
}

/** Translates a gRPC error; returns anything else unchanged. */
export function translated(error: unknown): unknown {
  const isRpc = error instanceof Error && typeof (error as ServiceError).code === "number";
  return isRpc && !(error instanceof base.TreeringError) ? fromRpc(error as ServiceError) : error;
}
