// Reads values that Python's LangGraph has serialised.

import { DeltaSnapshot } from "@langchain/langgraph-checkpoint";
import { messageOf } from "./messages.js";
import { type Extension, unpacked } from "./msgpack.js";

/** The extension codes of Python's `JsonPlusSerializer`. */
enum Extended {
  SingleArgument = 0,
  Arguments = 1,
  NamedArguments = 2,
  Method = 3,
  PydanticV1 = 4,
  PydanticV2 = 5,
  DeltaSnapshot = 7,
}

/** An object of Python: its module, its class, and the arguments that make it. */
type Made = [module: string, name: string, given: unknown];

/** Reads a value of a kind that only Python writes. */
export function fromPython(kind: string, data: Uint8Array): unknown {
  if (kind === "null") return null;
  if (kind === "bytearray") return data;
  if (kind === "msgpack") return unpacked(data, extension);
  throw new TypeError(
    `a value of the kind \`${kind}\` cannot be read here: Python's serializer wrote it`,
  );
}

/** Kinds that only Python writes; `fromPython` does not read `pickle`. */
export const PYTHON_KINDS = new Set(["null", "bytearray", "msgpack", "pickle"]);

const extension: Extension = (code, data) => {
  const value = unpacked(data, extension);
  if (code === Extended.DeltaSnapshot) return new DeltaSnapshot(value);
  const [module, name, given] = value as Made;
  switch (code) {
    case Extended.SingleArgument:
      return ofOne(module, name, given);
    case Extended.Arguments:
      return ofSeveral(module, name, given as unknown[]);
    case Extended.NamedArguments:
    case Extended.Method:
      return given;
    case Extended.PydanticV1:
    case Extended.PydanticV2:
      return ofFields(module, name, given as Record<string, unknown>);
    default:
      return value;
  }
};

function ofOne(module: string, name: string, given: unknown): unknown {
  if (name === "set" || name === "frozenset") return new Set(given as unknown[]);
  if (module === "uuid" && typeof given === "string") {
    return given.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  }
  return given;
}

function ofSeveral(module: string, name: string, given: unknown[]): unknown {
  if (name === "Send") return { node: given[0], args: given[1] };
  if (module.startsWith("pathlib")) return given.join("/").replace(/^\/\//, "/");
  if (module === "datetime" && name === "date") {
    const [year, month, day] = given.map(String);
    return `${year?.padStart(4, "0")}-${month?.padStart(2, "0")}-${day?.padStart(2, "0")}`;
  }
  return given;
}

/** Returns a message, or the fields of an object of another Pydantic class. */
function ofFields(module: string, name: string, fields: Record<string, unknown>): unknown {
  if (!module.startsWith("langchain_core.messages")) return fields;
  return messageOf({ class: name, ...fields }) ?? fields;
}
