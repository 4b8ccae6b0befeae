// The two messages of the standard health service. Each has one field, so no other
// package's stubs are needed.

import { BinaryReader, BinaryWriter } from "@bufbuild/protobuf/wire";
import type { Codec } from "./methods.js";

/** Status of a service that accepts calls. */
export const SERVING = 1;

/** `HealthCheckRequest`: the name of a service. */
export const StringValue: Codec<string> = {
  encode: (service) => new BinaryWriter().uint32(10).string(service),
  decode: () => "",
};

/** `HealthCheckResponse`: a status. */
export const StatusValue: Codec<number> = {
  encode: (value) => new BinaryWriter().uint32(8).int32(value),
  decode(input) {
    const reader = new BinaryReader(input);
    let value = 0;
    while (reader.pos < reader.len) {
      const [field, type] = reader.tag();
      if (field === 1) value = reader.int32();
      else reader.skip(type);
    }
    return value;
  },
};
