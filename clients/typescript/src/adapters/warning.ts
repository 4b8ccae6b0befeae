// What adapters say when they cannot store something as it is: once in a program.

const said = new Set<string>();

/** A warning of Node's, of the type `TreeringWarning`. */
export function warnOnce(text: string): void {
  if (said.has(text)) return;
  said.add(text);
  process.emitWarning(
    `${text}; the framework has its own value back as it was (this is said once)`,
    "TreeringWarning",
  );
}
